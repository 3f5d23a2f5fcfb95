// SPDX-License-Identifier: Apache-2.0

/** The list of runs: empty, long, on a phone. */
import {beforeAll, describe, expect, test} from 'vitest';
import {openPage} from './browser';
import {MIB} from './graph';
import {Job} from './job';
import {startSite} from './site';
import {wholeRun} from './whole_run';

const site = startSite();

test('the first page weighs at most 120 kB on the wire', async () => {
  const page = await site.open('/');
  await page.getByRole('heading', {name: 'Runs'}).waitFor();

  const bytes = await page.evaluate(() =>
    [...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')]
      .map((entry) => (entry as PerformanceResourceTiming).transferSize)
      .reduce((sum, size) => sum + size, 0),
  );

  expect(bytes).toBeGreaterThan(50_000);
  expect(bytes).toBeLessThanOrEqual(120_000);
});

describe('with nothing recorded', () => {
  test('the first page says how to start a run', async () => {
    const page = await site.open('/');

    await page.getByText('No run yet. Start one:').waitFor();

    expect(await page.getByText('reprise run -- python train.py').isVisible()).toBe(true);
  });

  test('nothing may be loaded from elsewhere, and nothing is', async () => {
    const {page} = await openPage(site.browser);
    const hosts = new Set<string>();
    page.on('request', (request) => hosts.add(new URL(request.url()).origin));

    const answer = await page.goto(site.daemon.link('/'));
    await page.getByText('No run yet.').waitFor();
    await page.close();

    const policy = answer?.headers()['content-security-policy'];
    expect(policy).toContain("script-src 'self'");
    expect(policy).not.toContain('unsafe');
    expect([...hosts]).toEqual([site.daemon.url]);
  });

  test('a run that is not there is named, not an empty page', async () => {
    const page = await site.open('/runs/nothing-of-this-name');

    await page.getByRole('heading', {name: 'Not found'}).waitFor();

    expect(await page.getByText('nothing-of-this-name').isVisible()).toBe(true);
  });
});

describe('many runs', () => {
  beforeAll(async () => {
    for (const [name, budget, differing] of [
      ['whole', '0.6x', 0],
      ['tight', '45MiB', 0],
      ['wrong', '0.7x', 3],
    ] as const) {
      const {job} = await wholeRun(site.daemon, name, budget, differing);
      job.bye();
      await job.over;
    }
  });

  test('the list is asked for before the program of the page is there', async () => {
    const page = await site.open('/status');
    const asked = page.waitForRequest(/Query\/ListRuns$/);
    await page.route(/\/assets\/index-.*\.js$/, async (route) => {
      await asked;
      await route.continue();
    });

    await page.goto(`${site.daemon.url}/`);

    await page.getByRole('link', {name: 'whole job'}).waitFor();
  });

  test('runs are searched, filtered and sorted, and the address says how', async () => {
    const page = await site.open('/');
    const names = (): Promise<string[]> => page.locator('td.name a').allTextContents();
    await page.getByRole('link', {name: 'tight job'}).waitFor();

    await page.getByRole('button', {name: /^no plan fits/}).click();
    await expect.poll(names).toEqual(['tight job']);
    expect(page.url()).toBe(`${site.daemon.url}/?show=impossible`);

    await page.getByRole('button', {name: /^all/}).click();
    await page.getByRole('searchbox').fill('whole job');
    await expect.poll(names).toEqual(['whole job']);

    await page.getByRole('searchbox').fill('no such run');
    await page.getByText('is of this kind').waitFor();
    await page.getByRole('button', {name: 'Show all'}).click();
    await page.getByRole('button', {name: 'Run', exact: true}).click();
    // The server sorts: the names change when its answer is there.
    const inOrder = async (): Promise<boolean> => {
      const sorted = (await names()).map((name) => name.toLowerCase());
      return sorted.every((name, i) => i === 0 || sorted[i - 1]! <= name);
    };
    await expect.poll(inOrder).toBe(true);
    expect(page.url()).toBe(`${site.daemon.url}/?sort=name`);
  });

  test('runs are grouped by name or by how they ended', async () => {
    const page = await site.open('/');
    const groups = (): Promise<string[]> => page.locator('tr.group th').allTextContents();
    await page.getByRole('link', {name: 'tight job'}).waitFor();

    await page.getByLabel('Group').selectOption('ending');

    await expect.poll(groups).toContain('refused, trained on 1 run');
    expect(page.url()).toBe(`${site.daemon.url}/?group=ending`);
    await page.getByLabel('Group').selectOption('name');
    await expect.poll(groups).toContain('tight job 1 run');
  });

  test('runs are removed after a question; one that is under way is not', async () => {
    for (const name of ['old', 'older']) {
      const job = new Job(site.daemon, name, `${name} job`);
      await job.step({planId: '', peakBytes: MIB, stepNs: 1e6});
      job.bye();
      await job.over;
    }
    const running = new Job(site.daemon, 'under-way', 'under way job');
    await running.step({planId: '', peakBytes: MIB, stepNs: 1e6});
    const page = await site.open('/');
    const tick = (name: string): Promise<void> =>
      page.getByRole('checkbox', {name: `Choose ${name} job`, exact: true}).check();
    const said = page.getByRole('status', {name: 'Removed'});

    await tick('old');
    await tick('under way');
    await page.getByRole('button', {name: 'Remove 2 runs'}).click();
    await page.getByText('Remove 2 runs (old job, under way job) with everything').waitFor();
    await page.getByRole('button', {name: 'Remove', exact: true}).click();
    await expect
      .poll(() => said.textContent())
      .toBe('run under-way is under way; end it first, nothing was removed');

    await page.getByRole('button', {name: 'Choose none'}).click();
    await tick('old');
    await tick('older');
    await page.getByRole('button', {name: 'Remove 2 runs'}).press('Enter');
    // The question has the focus: Enter confirms it, and Tab leads to Keep.
    await page.keyboard.press('Tab');
    await page.keyboard.press('Enter');
    await page.getByRole('button', {name: 'Remove 2 runs'}).press('Enter');
    await page.keyboard.press('Enter');

    await expect.poll(() => said.textContent()).toMatch(/^2 runs removed: old job, older job\./);
    await expect.poll(() => page.getByRole('link', {name: /^old/}).count()).toBe(0);
    expect(await page.getByRole('link', {name: 'under way job'}).count()).toBe(1);
    running.bye();
  });

  test('a phone, where no head of a table sorts, has the orders in a list', async () => {
    const page = await site.open('/', {width: 390});
    await page.getByRole('link', {name: 'tight job'}).waitFor();

    await page.getByLabel('Sort').selectOption('name, Z to A');

    expect(page.url()).toBe(`${site.daemon.url}/?sort=-name`);
    await expect.poll(() => page.locator('td.name a').first().textContent()).toBe('wrong job');
    expect(await page.getByRole('button', {name: 'Peak'}).count()).toBe(0);
    await page.setViewportSize({width: 1280, height: 900});
    await page.getByRole('button', {name: 'Peak'}).waitFor();
    expect(await page.getByLabel('Sort').isVisible()).toBe(false);
  });
  test('it fits a phone', async () => {
    const page = await site.open('/', {width: 390});
    await page.getByRole('link', {name: /whole job/}).waitFor();

    expect(await page.evaluate(() => document.documentElement.scrollWidth)).toBe(390);
  });
});
