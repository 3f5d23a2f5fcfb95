// SPDX-License-Identifier: Apache-2.0

/** The page of a run: while it trains, when it is over, when it was killed. */
import type {Page} from 'playwright-core';
import {beforeAll, describe, expect, test} from 'vitest';
import {formatBytes} from '../../web/src/format/units';
import type {Plan} from '../../web/src/gen/reprise/v1/plan_pb';
import {layeredGraph, MIB} from './graph';
import {clients, Job} from './job';
import {startSite} from './site';
import {curveDone, sentenceOf, spikeTime, verdict, wholeRun} from './whole_run';

const site = startSite();

describe('a run that trains', () => {
  test('appears by itself, and its page grows with every step', async () => {
    const page = await site.open('/');
    await page.getByText('No run yet.').waitFor();

    const job = new Job(site.daemon, 'live', 'live job');
    await job.step({planId: '', peakBytes: 170 * MIB, stepNs: 257e6});
    await page.getByRole('link', {name: 'live job'}).click();
    await page.getByText('1 step', {exact: true}).waitFor();
    await expect.poll(() => verdict(page)).toContain('Measuring plain steps');

    const plan = await job.plan(layeredGraph('live'), '0.5x');
    await expect.poll(() => verdict(page)).toBe(plan.sentence);

    const {planId} = plan;
    await job.step({
      planId,
      peakBytes: Number(plan.peakBytes),
      stepNs: 300e6,
      check: [8, 0],
    });
    await page.getByText('2 steps', {exact: true}).waitFor();
    await expect.poll(() => verdict(page)).toContain('bit for bit equal in 1 check.');
    expect(await page.getByText('running', {exact: true}).isVisible()).toBe(true);

    job.bye();
    await page.getByText('finished', {exact: true}).waitFor();
  });
});

describe('the job of a run', () => {
  const step = {planId: '', peakBytes: 170 * MIB, stepNs: 257e6};
  const outcome = (page: Page) => page.getByRole('status', {name: 'Window'});

  test('records steps on demand, and says what it could not', async () => {
    const job = new Job(site.daemon, 'window', 'window job');
    job.works([
      {name: 'torch', value: '2.13.0'},
      {name: 'cupti', value: 'no', why: 'another tool holds it'},
      {name: 'cupti_holder', value: 'nsys'},
    ]);
    await job.step(step);
    const page = await site.open('/runs/window');
    const panel = page.getByRole('region', {name: 'The job'});
    await panel.getByText('another tool holds it').waitFor();

    await panel.getByLabel('steps').fill('2');
    await panel.getByRole('button', {name: 'Record now'}).click();
    await expect.poll(() => outcome(page).textContent()).toContain('Waits for the next step');
    await expect.poll(() => job.windows.map((window) => window.steps)).toEqual([2]);
    expect(await panel.getByRole('button').isDisabled()).toBe(true);

    const traced = {
      ...step,
      points: [[0, 100 * MIB] as const, [5e6, 170 * MIB] as const],
    };
    await job.step(traced);
    await expect.poll(() => outcome(page).textContent()).toContain('Recording: 1 of 2 steps');
    await job.step(traced);

    const why = 'kernels are not recorded: another tool holds it (held by nsys)';
    await expect.poll(() => outcome(page).textContent()).toBe(`Recorded 2 steps, 2 to 3; ${why}.`);
    expect(await panel.getByRole('button').isEnabled()).toBe(true);
    job.bye();
    await page.getByText('finished', {exact: true}).waitFor();
    expect(await panel.getByRole('button').count()).toBe(0);
  });

  test('that nobody is connected to refuses, and says why', async () => {
    const job = new Job(site.daemon, 'window-gone', 'gone job');
    await job.step(step);
    const page = await site.open('/runs/window-gone');
    const panel = page.getByRole('region', {name: 'The job'});
    await panel.getByRole('button', {name: 'Record now'}).waitFor();
    job.abandon();
    await job.over;

    await panel.getByRole('button', {name: 'Record now'}).click();

    await expect
      .poll(() => panel.getByRole('alert').textContent())
      .toBe('no process of run window-gone is connected to this server');
  });
});

describe('a validated run', () => {
  let plan: Plan;
  beforeAll(async () => {
    const made = await wholeRun(site.daemon, 'whole', '0.6x');
    plan = made.plan;
    made.job.bye();
  });

  test('its first request is sent once, by the script before the program', async () => {
    const page = await site.open('/status');
    const asked: string[] = [];
    page.on('request', (request) => asked.push(new URL(request.url()).pathname));

    await page.goto(`${site.daemon.url}/runs/whole`);
    await page.getByRole('status', {name: 'Verdict'}).waitFor();

    expect(asked.filter((path) => path.endsWith('/WatchRun'))).toHaveLength(1);
    expect(asked.filter((path) => /\/Run-.*js$/.test(path))).toHaveLength(1);
  });

  test('shows the sentence of the server letter for letter, and that it is validated', async () => {
    const page = await site.open('/runs/whole');

    await expect.poll(() => verdict(page)).toBe(await sentenceOf(site.daemon, 'whole'));

    expect(
      await page.getByLabel('Verdict').getByText('✓ budget and bits validated').isVisible(),
    ).toBe(true);
    expect(await verdict(page)).toContain('It fits in ');
  });

  test.each([
    [1280, 800],
    [1440, 900],
  ])(
    'has the curve and the memory of the step on the first screen, %i by %i',
    async (width, height) => {
      const page = await site.open('/runs/whole', {width, height});
      await curveDone(page);
      await page.getByRole('application', {name: 'measured peak'}).waitFor();
      await page.getByText(/^Most at the peak: .* [\d.]+ MiB/).waitFor();
      const bottom = async (name: string): Promise<number> => {
        const box = (await page.getByRole('region', {name, exact: true}).boundingBox())!;
        return box.y + box.height;
      };

      expect(await bottom('Trade-off')).toBeLessThanOrEqual(height);
      expect(await bottom('Memory over one step')).toBeLessThanOrEqual(height);
      const line = (await page.getByRole('status', {name: 'Verdict'}).boundingBox())!;
      expect(line.height).toBeLessThan(40);
      // All of the sentence is one click away, and its figures are on the page of the plan.
      await page.getByRole('button', {name: 'all of it'}).click();
      await page.getByRole('button', {name: 'less'}).waitFor();
      expect(await page.getByRole('row', {name: /^Peak/}).count()).toBe(0);
      await page.getByRole('link', {name: 'Plan', exact: true}).click();
      await page.getByRole('row', {name: /^Peak [\d.]+ MiB/}).waitFor();
      expect(await page.getByRole('slider').count()).toBe(0);
      expect(await page.getByRole('region', {name: 'Memory over one step'}).count()).toBe(0);
    },
  );

  test('shows a peak of one microsecond with the whole step on the screen', async () => {
    const page = await site.open('/runs/whole', {width: 1600, height: 1000});
    const peak = formatBytes(Number(plan.budgetBytes) - 64 * 1024);
    const chart = page.getByRole('application', {name: `measured peak ${peak}`});
    await chart.waitFor();

    // Halfway between the level around it and its top there is ink at its time.
    const share = spikeTime(plan) / Number(plan.timeNs);
    const inked = (around: number): Promise<number> =>
      chart.evaluate((element, at) => {
        const canvas = element.querySelector('canvas')!;
        const over = element.querySelector('.u-over')!.getBoundingClientRect();
        const box = canvas.getBoundingClientRect();
        const x = Math.round(over.left - box.left + at * over.width);
        const y = Math.round(over.top - box.top + over.height * 0.5);
        const {data} = canvas.getContext('2d')!.getImageData(x - 3, y, 7, 20);
        const dark = (i: number): boolean => data[i]! + data[i + 1]! + data[i + 2]! < 200;
        let count = 0;
        for (let i = 0; i < data.length; i += 4) if (data[i + 3]! > 0 && dark(i)) count++;
        return count;
      }, around);
    await expect.poll(() => inked(share)).toBeGreaterThan(10);
    expect(await inked(share - 0.03)).toBe(0);
  });

  test('zooms and moves by keys, keeps the window in the address, and asks the server anew', async () => {
    const page = await site.open('/runs/whole');
    const chart = page.getByRole('application', {name: 'measured peak'});
    await chart.waitFor();
    const asked = (): Promise<unknown> => page.waitForRequest(/Query\/GetTimeline$/);

    await Promise.all([asked(), page.keyboard.press('w')]);
    const zoomed = page.url();
    expect(zoomed).toMatch(/\?t=[\d.]+m?s\.\.[\d.]+m?s$/);

    await Promise.all([asked(), page.keyboard.press('d')]);
    expect(page.url()).not.toBe(zoomed);

    await Promise.all([asked(), page.keyboard.press('p')]);
    const [from, to] = /t=([\d.]+)ms\.\.([\d.]+)ms/.exec(page.url())!.slice(1).map(Number);
    expect(from! * 1e6).toBeLessThan(spikeTime(plan));
    expect(to! * 1e6).toBeGreaterThan(spikeTime(plan));

    await page.keyboard.press('Escape');
    await expect.poll(() => page.url()).toBe(`${site.daemon.url}/runs/whole`);
  });

  test('lists what is alive at the peak, sorted on request', async () => {
    const page = await site.open('/runs/whole');
    const table = page.getByLabel('At the peak').getByRole('table');
    await table.waitFor();
    const names = (): Promise<string[]> =>
      table.locator('td.name > span:first-child').allTextContents();

    const bySize = await names();
    expect(await table.getByRole('columnheader', {name: 'Bytes'}).getAttribute('aria-sort')).toBe(
      'descending',
    );
    await table.getByRole('button', {name: 'Storage'}).click();
    const byName = await names();

    expect(bySize.length).toBeGreaterThan(3);
    expect(byName).toEqual([...byName].sort((a, b) => a.localeCompare(b, 'en', {numeric: true})));
  });
});

test('gradients that differ are never called validated', async () => {
  const {job} = await wholeRun(site.daemon, 'wrong', '0.7x', 3);
  const page = await site.open('/runs/wrong');

  await page.getByText('✗ not held').waitFor();

  expect(await page.getByText('✓ budget and bits validated').count()).toBe(0);
  await page.getByRole('link', {name: 'Plan', exact: true}).click();
  await page.getByText('3 of 8 differ').waitFor();
  job.bye();
});

describe('a run that was killed', () => {
  test('shows its last ops and what it held, when it is killed and later', async () => {
    const {job, plan} = await wholeRun(site.daemon, 'killed', '0.7x');
    const page = await site.open('/runs/killed');
    await expect.poll(() => verdict(page)).toBe(await sentenceOf(site.daemon, 'killed'));
    const headline = page.getByRole('status', {name: 'What happened'});
    expect(await headline.count()).toBe(0);

    const op = plan.schedule.filter((entry) => entry >= 0n).at(-6)!;
    await job.killed(plan, Number(op));

    // The page is headed by how it died, not by a budget that held until then.
    await headline.getByText(/^Killed in step 7/).waitFor();
    const words = await page.getByRole('region', {name: 'Verdict'}).textContent();
    expect(words!.indexOf('Killed in step 7')).toBeLessThan(words!.indexOf('It fits in'));
    await page.getByRole('link', {name: 'What it did last, and what was alive'}).click();
    await page.getByRole('link', {name: 'Killed', exact: true}).waitFor();
    const panel = page.getByRole('region', {name: 'The last moment'});
    const {moments} = await clients(site.daemon).query.getMoments({
      runId: 'killed',
    });
    const [shown] = moments;
    expect(await panel.getByRole('status', {name: 'What happened'}).textContent()).toBe(
      shown!.sentence,
    );
    expect(shown!.sentence).toMatch(/^Killed in step 7, in the backward, at op \d+ /);
    const now = page.locator('li[aria-current=step]');
    expect(await now.textContent()).toContain(`op ${op} ${shown!.ops.at(-1)!.name}`);
    const largest = shown!.moment!.storages[0]!;
    const first = page.getByRole('region', {name: 'What was alive'}).getByRole('row').first();
    expect(await first.textContent()).toContain(formatBytes(Number(largest.bytes)));
    // The link to it says the same to somebody else.
    await page.reload();
    await panel.waitFor();
    expect(await page.getByRole('list', {name: 'The last ops'}).isVisible()).toBe(true);
  });
});
