// SPDX-License-Identifier: Apache-2.0

/** The pages in a real browser, on a real reprised, fed over gRPC. */
import type {Browser, Page} from 'playwright-core';
import {afterAll, beforeAll, describe, expect, onTestFinished, test} from 'vitest';
import {formatBytes} from '../../web/src/format/units';
import type {Plan} from '../../web/src/gen/reprise/v1/plan_pb';
import {openPage, startBrowser} from './browser';
import {startDaemon, type Daemon} from './daemon';
import {layeredGraph, MIB} from './graph';
import {clients, Job, TAPE} from './job';

let daemon: Daemon;
let browser: Browser;

beforeAll(async () => {
  [daemon, browser] = await Promise.all([startDaemon(), startBrowser()]);
});

afterAll(async () => {
  await browser?.close();
  await daemon?.remove();
});

async function open(path: string, options: Parameters<typeof openPage>[1] = {}): Promise<Page> {
  const {page, problems} = await openPage(browser, options);
  onTestFinished(async () => {
    await page.close();
    expect(problems).toEqual([]);
  });
  await page.goto(daemon.link(path));
  return page;
}

const verdict = (page: Page): Promise<string | null> =>
  page.getByRole('status', {name: 'Verdict'}).textContent();

/** The legend says so: no point is still to come. */
const curveDone = (page: Page): Promise<void> => page.getByText('plans', {exact: true}).waitFor();

async function sentenceOf(runId: string): Promise<string> {
  const run = await clients(daemon).query.getRun({runId});
  return run.verdict?.sentence ?? '';
}

/** What the prediction says, as a traced step, with a spike of one microsecond. */
function measuredAs(plan: Plan, spikeBytes: number): [number, number][] {
  const {startNs = [], bytes = []} = plan.predicted ?? {};
  const points = startNs.map((at, i): [number, number] => [Number(at), Number(bytes[i])]);
  const spikeAt = spikeTime(plan);
  const [, level] = points.at(-1)!;
  return [...points, [spikeAt, spikeBytes], [spikeAt + 1000, level]];
}

/** In the last op, the optimizer's, when all that was large is gone. */
const spikeTime = (plan: Plan): number => Number(plan.timeNs) - 2_000_000;

/** Plain steps, a plan, and planned ones: a whole small run. */
async function wholeRun(
  runId: string,
  budget: string,
  differing = 0,
): Promise<{job: Job; plan: Plan}> {
  const job = new Job(daemon, runId, `${runId} job`);
  for (let i = 0; i < 3; i++) await job.step({planId: '', peakBytes: 170 * MIB, stepNs: 257e6});
  const plan = await job.plan(layeredGraph(runId), budget);
  if (!plan.feasible) return {job, plan};
  const {planId} = plan;
  const peakBytes = Number(plan.budgetBytes) - 64 * 1024;
  const stepNs = Number(plan.timeNs);
  await job.step({
    planId,
    peakBytes,
    stepNs,
    points: measuredAs(plan, peakBytes),
  });
  await job.step({
    planId,
    peakBytes: peakBytes - MIB,
    stepNs,
    check: [8, differing],
  });
  // Neither traced nor checked: its time is the one that is measured.
  await job.step({planId, peakBytes: peakBytes - MIB, stepNs});
  return {job, plan};
}

test('the first page weighs at most 120 kB on the wire', async () => {
  const page = await open('/');
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
    const page = await open('/');

    await page.getByText('No run yet. Start one:').waitFor();

    expect(await page.getByText('reprise run -- python train.py').isVisible()).toBe(true);
  });

  test('nothing may be loaded from elsewhere, and nothing is', async () => {
    const {page} = await openPage(browser);
    const hosts = new Set<string>();
    page.on('request', (request) => hosts.add(new URL(request.url()).origin));

    const answer = await page.goto(daemon.link('/'));
    await page.getByText('No run yet.').waitFor();
    await page.close();

    const policy = answer?.headers()['content-security-policy'];
    expect(policy).toContain("script-src 'self'");
    expect(policy).not.toContain('unsafe');
    expect([...hosts]).toEqual([daemon.url]);
  });

  test('a run that is not there is named, not an empty page', async () => {
    const page = await open('/runs/nothing-of-this-name');

    await page.getByRole('heading', {name: 'Not found'}).waitFor();

    expect(await page.getByText('nothing-of-this-name').isVisible()).toBe(true);
  });
});

describe('a run that trains', () => {
  test('appears by itself, and its page grows with every step', async () => {
    const page = await open('/');
    await page.getByText('No run yet.').waitFor();

    const job = new Job(daemon, 'live', 'live job');
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
    const job = new Job(daemon, 'window', 'window job');
    job.works([
      {name: 'torch', value: '2.13.0'},
      {name: 'cupti', value: 'no', why: 'another tool holds it'},
      {name: 'cupti_holder', value: 'nsys'},
    ]);
    await job.step(step);
    const page = await open('/runs/window');
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
    const job = new Job(daemon, 'window-gone', 'gone job');
    await job.step(step);
    const page = await open('/runs/window-gone');
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
    const made = await wholeRun('whole', '0.6x');
    plan = made.plan;
    made.job.bye();
  });

  test('shows the sentence of the server letter for letter, and that it is validated', async () => {
    const page = await open('/runs/whole');

    await expect.poll(() => verdict(page)).toBe(await sentenceOf('whole'));

    expect(await page.getByLabel('Verdict').getByText('✓ validated').isVisible()).toBe(true);
    expect(await verdict(page)).toContain('It fits in ');
  });

  test('shows a peak of one microsecond with the whole step on the screen', async () => {
    const page = await open('/runs/whole', {width: 1600, height: 1000});
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
    const page = await open('/runs/whole');
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
    await expect.poll(() => page.url()).toBe(`${daemon.url}/runs/whole`);
  });

  test('draws the trade-off curve with the impossible budgets grey', async () => {
    const page = await open('/runs/whole');

    await curveDone(page);
    await page
      .getByRole('img', {
        name: /^Trade-off curve: overhead from .* \d+ budgets$/,
      })
      .waitFor();

    expect(await page.locator('rect.impossible').count()).toBe(1);
    expect(await page.locator('path.measured').count()).toBe(1);
  });

  test('the slider stops at the smallest possible budget and says why', async () => {
    const page = await open('/runs/whole');
    const slider = page.getByRole('slider', {name: 'Budget'});
    await curveDone(page);

    await slider.focus();
    await page.keyboard.press('Home');

    const alert = page.getByRole('alert');
    await alert.waitFor();
    expect(await alert.textContent()).toMatch(/Nothing fits in less than [\d.]+ MiB/);
    // It stands at a budget that is possible, and that budget is planned.
    const whatIf = page.getByLabel('What if');
    await expect.poll(() => whatIf.textContent()).toContain('It fits in ');
    expect(page.url()).toMatch(/\?budget=[\d.]+[KMG]iB$/);
  });

  test('a typed budget is planned as typed; an impossible one names the smallest', async () => {
    const {planner} = clients(daemon);
    let refused: Plan | undefined;
    const question = {
      graphId: plan.graphId,
      budget: '50MiB',
      capabilities: TAPE,
    };
    for await (const {event} of planner.plan(question)) {
      if (event.case === 'plan') refused = event.value;
    }
    const page = await open('/runs/whole');
    const typed = page.getByRole('textbox', {name: 'Budget, typed'});
    const whatIf = page.getByLabel('What if');

    await typed.fill('50MiB');
    await typed.press('Enter');
    await expect.poll(() => whatIf.textContent()).toContain(refused!.sentence);
    expect(refused!.sentence).toMatch(/^Nothing fits in 50.0 MiB: op \d+ .* needs at least /);

    await typed.fill('0.8x');
    await typed.press('Enter');
    await expect.poll(() => whatIf.textContent()).toContain('It fits in ');
    expect(page.url()).toBe(`${daemon.url}/runs/whole?budget=0.8x`);

    await typed.fill('8G');
    await typed.press('Enter');
    await expect.poll(() => whatIf.textContent()).toContain('8GiB');

    // The verdict of the run is not touched by any of it.
    expect(await verdict(page)).toBe(await sentenceOf('whole'));
  });

  test('a link to a what-if shows the same to somebody else', async () => {
    const page = await open('/runs/whole?budget=0.8x');

    await expect.poll(() => page.getByLabel('What if').textContent()).toContain('It fits in ');
    await page.locator('circle.chosen').waitFor();

    await page.getByRole('button', {name: 'Back to the plan of the run'}).click();
    await expect.poll(() => page.url()).toBe(`${daemon.url}/runs/whole`);
    expect(await page.getByLabel('What if').count()).toBe(0);
  });

  test('lists what is alive at the peak, sorted on request', async () => {
    const page = await open('/runs/whole');
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

  test('says what the plan changes, by module', async () => {
    const page = await open('/runs/whole/plan');
    const changes = page.getByLabel('What the plan changes');

    await changes.getByText(/\d+ saved .*, \d+ recomputed .* ops run again/).waitFor();

    await changes.getByRole('button', {name: 'Close layers'}).click();
    expect(await changes.getByRole('button', {name: 'Open layers'}).isVisible()).toBe(true);
  });

  test('the plan has a page: its sentence, every decision, and how to use it', async () => {
    const page = await open('/runs/whole');
    await page.getByRole('link', {name: 'Plan', exact: true}).click();
    await expect
      .poll(() => page.getByRole('status', {name: 'Plan', exact: true}).textContent())
      .toBe(plan.sentence);

    const decisions = page.getByRole('region', {name: 'Decisions'});
    await decisions
      .getByText(/(saved|recomputed): .* per step/)
      .first()
      .waitFor();
    await decisions.getByRole('searchbox').fill('layers.9: activation');
    await expect.poll(() => decisions.getByRole('row').count()).toBe(2);

    const use = page.getByRole('region', {name: 'Use this plan'});
    expect(
      await use.getByText(`reprise run --budget ${plan.budget} -- python train.py`).isVisible(),
    ).toBe(true);
    const [file] = await Promise.all([
      page.waitForEvent('download'),
      use.getByRole('button', {name: 'Storages, CSV'}).click(),
    ]);
    expect(file.suggestedFilename()).toBe('whole_job.storages.csv');
    await use.getByRole('button', {name: 'Check this plan'}).click();
    const {sentence} = await clients(daemon).planner.verify({
      planId: plan.planId,
    });
    await expect
      .poll(() => use.getByRole('status', {name: 'Verification'}).textContent())
      .toBe(sentence);
  });

  test('has help behind a key', async () => {
    const page = await open('/runs/whole');
    await page.getByRole('status', {name: 'Verdict'}).waitFor();

    await page.keyboard.press('?');
    await page.getByRole('dialog', {name: 'Keys and symbols'}).waitFor();
    await page.keyboard.press('Escape');

    await page.getByRole('dialog').waitFor({state: 'hidden'});
  });

  test('is dark from its first paint where the system is, and light on request', async () => {
    const page = await open('/runs/whole', {dark: true});
    const ground = (): Promise<string> =>
      page.evaluate(() => getComputedStyle(document.documentElement).backgroundColor);

    expect(await ground()).toBe('rgb(15, 18, 23)');
    await page.getByRole('button', {name: 'Light or dark'}).click();
    expect(await ground()).toBe('rgb(246, 247, 249)');
    await page.reload();
    expect(await ground()).toBe('rgb(246, 247, 249)');
  });

  test.each([800, 1280, 1600])('is not wider than a screen of %i pixels', async (width) => {
    const page = await open('/runs/whole?budget=0.8x', {width});
    await curveDone(page);

    const most = await page.evaluate(() => document.documentElement.scrollWidth);

    expect(most).toBeLessThanOrEqual(width);
  });
});

describe('runs that did not go well', () => {
  test('an impossible budget is refused in the words of the server', async () => {
    const {job, plan} = await wholeRun('tight', '45MiB');
    const page = await open('/runs/tight');

    const unplanned = '3 steps ran without a plan, at up to 170.0 MiB.';
    await expect.poll(() => verdict(page)).toBe(`${plan.sentence} ${unplanned}`);

    expect(await verdict(page)).toMatch(/^Nothing fits in 45.0 MiB: op \d+ /);
    expect(await page.getByText('✗ no plan fits').isVisible()).toBe(true);
    // What is alive without a plan is known, and what stands in the way adds up.
    const alive = page.getByRole('region', {name: 'At the peak'});
    await expect.poll(() => alive.getByRole('row').count()).toBeGreaterThan(2);
    const why = page.getByRole('region', {name: 'Why nothing fits'});
    await why.getByText('too much by').waitFor();
    expect(await why.getByText('the proof does not name').count()).toBe(0);
    const {workingSet} = await clients(daemon).planner.explain({
      planId: plan.planId,
    });
    const together = why.getByRole('row', {name: /^together/});
    expect(await together.textContent()).toContain(formatBytes(Number(workingSet!.bytes)));
    // The budget that does fit is one click away, and stands in the address.
    const see = why.getByRole('button', {name: /^See the plan for/});
    // It may become smaller while the curve arrives: read, and clicked, at once.
    const [text, command] = await see.evaluate((button: HTMLElement) => {
      const all = button.closest('section')?.textContent ?? '';
      button.click();
      return [button.textContent ?? '', all];
    });
    const [, budget] = /for ([\d.]+) MiB/.exec(text)!;
    expect(command).toContain(`reprise run --budget ${budget}MiB`);
    await expect.poll(() => page.getByLabel('What if').textContent()).toContain('It fits in ');
    expect(page.url()).toBe(`${daemon.url}/runs/tight?budget=${budget}MiB`);
    job.bye();
  });

  test('gradients that differ are never called validated', async () => {
    const {job} = await wholeRun('wrong', '0.7x', 3);
    const page = await open('/runs/wrong');

    await page.getByText('✗ not held').waitFor();

    expect(await page.getByText('✓ validated').count()).toBe(0);
    expect(await page.getByText('3 of 8 differ').isVisible()).toBe(true);
    job.bye();
  });
});

describe('many runs', () => {
  test('runs are searched, filtered and sorted, and the address says how', async () => {
    const page = await open('/');
    const names = (): Promise<string[]> => page.locator('td.name a').allTextContents();
    await page.getByRole('link', {name: 'tight job'}).waitFor();

    await page.getByRole('button', {name: /^no plan fits/}).click();
    await expect.poll(names).toEqual(['tight job']);
    expect(page.url()).toBe(`${daemon.url}/?show=impossible`);

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
    expect(page.url()).toBe(`${daemon.url}/?sort=name`);
  });

  test('runs are grouped by name or by how they ended', async () => {
    const page = await open('/');
    const groups = (): Promise<string[]> => page.locator('tr.group th').allTextContents();
    await page.getByRole('link', {name: 'tight job'}).waitFor();

    await page.getByLabel('Group').selectOption('ending');

    await expect.poll(groups).toContain('refused, trained on 1 run');
    expect(page.url()).toBe(`${daemon.url}/?group=ending`);
    await page.getByLabel('Group').selectOption('name');
    await expect.poll(groups).toContain('tight job 1 run');
  });

  test('two runs are compared by figures, by their steps and by owner', async () => {
    const page = await open('/');
    await page.getByRole('checkbox', {name: 'Choose whole job', exact: true}).check();
    await page.getByText('Choose a second run').waitFor();
    await page.getByRole('checkbox', {name: 'Choose wrong job', exact: true}).check();
    await page.getByRole('link', {name: 'Compare the two runs'}).click();

    await page.getByRole('heading', {name: 'Compare'}).waitFor();
    const figures = page.getByRole('region', {name: 'Figures'});
    await figures.getByRole('row', {name: /^Checks/}).waitFor();
    expect(await figures.getByRole('row', {name: /^Steps/}).count(), 'they are equal').toBe(0);
    expect(await page.getByRole('img', {name: /^Peak of A .* of B/}).isVisible()).toBe(true);
    // The rows at the peak are the server's, and so is the sentence.
    const peak = page.getByRole('region', {name: 'Alive at the peak'});
    const {sentence} = await clients(daemon).query.compare({
      a: 'whole',
      b: 'wrong',
    });
    await peak.getByText(sentence).waitFor();
    await page.getByText('also what is equal').click();
    await peak.getByRole('button', {name: 'by category'}).click();
    await peak.getByRole('row', {name: /^activations/}).waitFor();
  });

  test('a run of which nothing was recorded is compared by figures, and says why not by owner', async () => {
    const job = new Job(daemon, 'bare', 'bare job');
    await job.step({planId: '', peakBytes: 30 * MIB, stepNs: 9_000_000});
    job.bye();
    const page = await open('/compare?a=whole&b=bare');

    await page.getByRole('region', {name: 'Figures'}).getByText('bare job').waitFor();
    const peak = page.getByRole('region', {name: 'Alive at the peak'});
    const said = peak.getByText(
      'Not compared, because what was alive at the peak of run bare job is not known: ' +
        'it has no plan, and none of its steps was captured or traced.',
    );
    await said.waitFor();
    expect(await said.getAttribute('class')).toContain('soft');
    expect(await peak.getByRole('button').count()).toBe(0);
  });

  test('runs are removed after a question; one that is under way is not', async () => {
    for (const name of ['old', 'older']) {
      const job = new Job(daemon, name, `${name} job`);
      await job.step({planId: '', peakBytes: MIB, stepNs: 1e6});
      job.bye();
      await job.over;
    }
    const running = new Job(daemon, 'under-way', 'under way job');
    await running.step({planId: '', peakBytes: MIB, stepNs: 1e6});
    const page = await open('/');
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
    const page = await open('/', {width: 390});
    await page.getByRole('link', {name: 'tight job'}).waitFor();

    await page.getByLabel('Sort').selectOption('name, Z to A');

    expect(page.url()).toBe(`${daemon.url}/?sort=-name`);
    await expect.poll(() => page.locator('td.name a').first().textContent()).toBe('wrong job');
    expect(await page.getByRole('button', {name: 'Peak'}).count()).toBe(0);
    await page.setViewportSize({width: 1280, height: 900});
    await page.getByRole('button', {name: 'Peak'}).waitFor();
    expect(await page.getByLabel('Sort').isVisible()).toBe(false);
  });

  test.each(['/', '/compare?a=whole&b=wrong'])('%s fits a phone', async (path) => {
    const page = await open(path, {width: 390});
    await page.getByRole('link', {name: /whole job/}).waitFor();

    expect(await page.evaluate(() => document.documentElement.scrollWidth)).toBe(390);
  });
});

describe('a run that was killed', () => {
  test('shows its last ops and what it held, when it is killed and later', async () => {
    const {job, plan} = await wholeRun('killed', '0.7x');
    const page = await open('/runs/killed');
    await expect.poll(() => verdict(page)).toBe(await sentenceOf('killed'));
    expect(await page.getByRole('region', {name: 'The last moment'}).count()).toBe(0);

    const op = plan.schedule.filter((entry) => entry >= 0n).at(-6)!;
    await job.killed(plan, Number(op));

    const panel = page.getByRole('region', {name: 'The last moment'});
    await panel.waitFor();
    const {moments} = await clients(daemon).query.getMoments({
      runId: 'killed',
    });
    const [shown] = moments;
    expect(await panel.getByRole('status', {name: 'What happened'}).textContent()).toBe(
      shown!.sentence,
    );
    expect(shown!.sentence).toMatch(/^Killed in step 7, in the backward, at op \d+ /);
    const now = panel.locator('li[aria-current=step]');
    expect(await now.textContent()).toContain(`op ${op} ${shown!.ops.at(-1)!.name}`);
    const largest = shown!.moment!.storages[0]!;
    const first = panel.getByRole('row').first();
    expect(await first.textContent()).toContain(formatBytes(Number(largest.bytes)));
    // The link to it says the same to somebody else.
    await page.reload();
    await panel.waitFor();
    expect(await panel.getByRole('list', {name: 'The last ops'}).isVisible()).toBe(true);
  });
});

describe('the server', () => {
  test('opens by the link it prints alone, and then by its bare address', async () => {
    const {page, problems} = await openPage(browser);
    const refused = await page.goto(daemon.url);
    expect(refused?.status()).toBe(401);
    expect(await page.getByText('open the link that').isVisible()).toBe(true);

    await page.goto(daemon.link('/status'));
    await page.getByText(daemon.socket).waitFor();
    expect(page.url()).toBe(`${daemon.url}/status`);
    await page.goto(daemon.url);
    await page.getByRole('heading', {name: 'Runs'}).waitFor();

    const cookies = await page.context().cookies();
    expect(cookies.map(({httpOnly, sameSite}) => ({httpOnly, sameSite}))).toEqual([
      {httpOnly: true, sameSite: 'Strict'},
    ]);
    expect(JSON.stringify(cookies)).not.toContain(daemon.token);
    expect(problems).toEqual([]);
    await page.close();
  });

  test('has a page of its own', async () => {
    const page = await open('/status');

    await page.getByRole('status').waitFor();

    expect(await page.getByText(daemon.socket).isVisible()).toBe(true);
    expect(await page.getByText(daemon.listen, {exact: true}).isVisible()).toBe(true);
  });

  test('may be killed: the page says so, keeps what it has, and goes on by itself', async () => {
    const page = await open('/runs/whole');
    const sentence = await sentenceOf('whole');
    await expect.poll(() => verdict(page)).toBe(sentence);

    await daemon.stop('SIGKILL');
    await page.getByRole('alert').getByText('does not answer').waitFor();
    expect(await verdict(page)).toBe(sentence);

    await daemon.start();
    await page.getByRole('alert').waitFor({state: 'detached'});
    await page.getByText('connected', {exact: true}).waitFor();
    await expect.poll(() => verdict(page)).toBe(await sentenceOf('whole'));

    // And it is live again: a run that begins now shows up.
    const job = new Job(daemon, 'after', 'after the restart');
    await job.step({planId: '', peakBytes: MIB, stepNs: 1e6});
    await page.getByRole('link', {name: 'Runs'}).click();
    await page.getByRole('link', {name: 'after the restart'}).waitFor();
    job.bye();
  });
});
