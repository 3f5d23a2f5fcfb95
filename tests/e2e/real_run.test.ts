// SPDX-License-Identifier: Apache-2.0

/**
 * A real training under `reprise run`, without a budget, from its first step to its end: its
 * captured step on every page, a budget sent from there while it trains, the verdict, another
 * budget. `PICTURES=FOLDER` keeps pictures.
 */
import {execFileSync, spawn, type ChildProcess} from 'node:child_process';
import {existsSync} from 'node:fs';
import {dirname, join} from 'node:path';
import {fileURLToPath} from 'node:url';
import type {Browser, Locator, Page} from 'playwright-core';
import {afterAll, beforeAll, expect, onTestFinished, test, vi} from 'vitest';
import {categoryStyle} from '../../web/src/format/categories';
import type {Category} from '../../web/src/gen/reprise/v1/graph_pb';
import {Standing, type Run} from '../../web/src/gen/reprise/v1/query_pb';
import {formatBytes} from '../../web/src/format/units';
import {openPage, startBrowser} from './browser';
import {startDaemon, type Daemon} from './daemon';
import {clients} from './job';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const NAME = 'a small network';
const PLAIN = 'plain twin';
/** Of a machine that does much else. */
const LONG = {timeout: 150_000, interval: 200};

let daemon: Daemon;
let browser: Browser;
let job: ChildProcess;
/** The same training once more, that nobody sends a budget to. */
let plain: ChildProcess | undefined;
let runId = '';
let said = '';
let out = '';

beforeAll(async () => {
  [daemon, browser] = await Promise.all([startDaemon(), startBrowser()]);
  job = start(NAME);
  await vi.waitUntil(async () => {
    const {runs} = await clients(daemon).query.listRuns({});
    alive();
    runId = runs[0]?.runId ?? '';
    return runs[0]?.graphId;
  }, LONG);
}, 200_000);

afterAll(async () => {
  for (const one of [job, plain]) if (one) await ended(one);
  await browser?.close();
  await daemon?.remove();
});

const built = process.env['REPRISED'] ?? `${ROOT}build/bin/reprised`;
const reprise = join(dirname(built), 'reprise');

/** `reprise run -- python real_job.py`, without a budget. */
function start(name: string): ChildProcess {
  const python = process.env['REPRISE_PYTHON'] ?? `${ROOT}.venv/bin/python`;
  const agent = process.env['REPRISE_AGENT'] ?? `${ROOT}build/lib/libreprise_agent.so`;
  for (const file of [python, agent, reprise]) {
    if (!existsSync(file)) throw new Error(`${file}: is not there; run scripts/build`);
  }
  const command = ['run', '--name', name, '--', python, `${ROOT}tests/e2e/real_job.py`];
  const started = spawn(reprise, command, {
    env: {
      ...process.env,
      PYTHONPATH: `${ROOT}clients/python/src`,
      REPRISE_AGENT: agent,
      REPRISE_SOCKET: daemon.socket,
      XDG_STATE_HOME: join(daemon.folder, 'state'),
    },
    stdio: ['pipe', 'pipe', 'pipe'],
  });
  started.stdout.on('data', (part: Buffer) => void (out += part.toString()));
  started.stderr.on('data', (part: Buffer) => void (said += part.toString()));
  return started;
}

/** Ends the input of a job, and with it the job. */
async function ended(one: ChildProcess): Promise<void> {
  one.stdin?.end();
  if (one.exitCode === null) await new Promise((resolve) => one.once('close', resolve));
}

/** What the command prints. */
function printed(...words: string[]): string {
  return execFileSync(reprise, words, {
    encoding: 'utf8',
    env: {...process.env, REPRISE_SOCKET: daemon.socket},
  });
}

/** What `reprise show` says of the run. */
const shown = (): string => printed('show', runId);

function alive(): void {
  if (job.exitCode !== null) throw new Error(`the job ended with ${job.exitCode}: ${said}`);
}

/** The run as the server has it. */
async function run(): Promise<Run> {
  alive();
  return clients(daemon).query.getRun({runId});
}

async function open(path: string): Promise<Page> {
  const {page, problems} = await openPage(browser, {width: 1440});
  page.setDefaultTimeout(LONG.timeout);
  onTestFinished(async () => {
    await page.close();
    expect(problems).toEqual([]);
  });
  await page.goto(daemon.link(path));
  return page;
}

const region = (page: Page, name: string): Locator => page.getByRole('region', {name, exact: true});
const textOf = (page: Page, name: string): Promise<string | null> =>
  region(page, name).textContent();

/** Wide and narrow, one of them dark: no wider than the screen. */
async function fits(page: Page, name: string, dark: 1440 | 390): Promise<void> {
  for (const width of [1440, 390]) {
    await page.emulateMedia({colorScheme: width === dark ? 'dark' : 'light'});
    await page.setViewportSize({width, height: 900});
    const wide = (): Promise<number> => page.evaluate(() => document.documentElement.scrollWidth);
    await expect.poll(wide, {...LONG, message: `${name}, ${width} px`}).toBe(width);
    const folder = process.env['PICTURES'];
    if (!folder) continue;
    await page.waitForTimeout(300);
    await page.screenshot({path: `${folder}/${name}-${width}.png`, fullPage: true});
  }
}

/** Of "1.2 MiB  optimizer state": the words. */
const nameIn = (line: string): string => line.replace(/[\d.,]+ ([KMG]?i?B|%)/g, '').trim();

// The tests follow each other as the job goes on.

test('a job without a budget has its captured step on the page of the run', async () => {
  const page = await open(`/runs/${runId}`);

  await page.getByText('No plan yet: choose a budget below').waitFor();
  const peak = region(page, 'At the peak');
  await peak.getByText('0.up.aten.addmm.default').waitFor();
  expect(await peak.textContent()).toMatch(/[\d.]+ MiB in \d+ storages/);
  await peak.getByText(/activations · 0\.up · real_job\.py:\d+/).waitFor();
  await expect.poll(() => textOf(page, 'Steps'), LONG).toMatch(/\d+ steps, 0 under a plan/);
  expect(await textOf(page, 'The job')).toMatch(/Budget at the start\s*none/);
  await fits(page, 'real-run', 390);
}, 200_000);

test('its steps are recorded on request', async () => {
  const page = await open(`/runs/${runId}`);
  const panel = region(page, 'The job');

  await panel.getByLabel('steps').fill('2');
  await panel.getByRole('button', {name: 'Record now'}).click();

  await panel.getByText(/^Recorded 2 steps/).waitFor();
}, 200_000);

test('its graph has the operators of the program, by module', async () => {
  const page = await open(`/runs/${runId}/graph`);
  const map = region(page, 'Step graph');

  await map.getByText(/^\d{3} ops; [\d.]+ MiB kept for the backward pass/).waitFor();
  await map.getByRole('application').focus();
  await page.keyboard.press('ArrowRight');

  const chosen = page.getByRole('status', {name: 'Chosen module'});
  await expect.poll(() => chosen.textContent(), LONG).toMatch(/1\.0 MiB\s*0\.up\.aten\.addmm/);
  // Adam's ops are folded, on the page of the run, too, until they are wanted wide.
  const wide = page.getByRole('button', {name: 'wide optimizer'});
  expect(await wide.getAttribute('aria-pressed')).toBe('false');
  await page.getByRole('link', {name: 'Run', exact: true}).click();
  await wide.click();
  expect(page.url()).toMatch(/\?optimizer=wide$/);
  await page.reload();
  await page.getByRole('button', {name: 'wide optimizer', pressed: true}).click();
  expect(page.url()).not.toContain('optimizer');
  await page.getByRole('link', {name: 'Graph', exact: true}).click();
  await fits(page, 'real-graph', 1440);
}, 200_000);

test('its memory has a module and an owner for every large allocation', async () => {
  const page = await open(`/runs/${runId}/memory`);
  const alive = region(page, 'Alive at the instant');

  await alive.getByTitle(/^all › 0 › up › aten\.addmm\.default: [\d.]+ MiB/).waitFor();
  expect(await textOf(page, 'Memory over the recording')).toMatch(/recorded, peak [\d.]+ MiB/);
  await alive.getByRole('button', {name: 'inverted'}).click();
  await alive.getByTitle(/^all › aten\.addmm\.default › up › 0: [\d.]+ MiB/).waitFor();
  await alive.getByRole('button', {name: 'one by one'}).click();
  await alive.getByText('aten.gelu.default').first().waitFor();
  await fits(page, 'real-memory', 390);
}, 200_000);

test('it takes a budget from its page, trains under the plan and is validated', async () => {
  const page = await open(`/runs/${runId}`);
  const form = region(page, 'Plan');
  await form.getByText(/[\d.]+ MiB is without a plan/).waitFor();
  const apply = form.getByRole('button', {name: 'Apply to the running job'});

  // Nothing fits there: the job goes on as it is.
  await form.getByLabel('Budget, typed').fill('1MiB');
  await apply.click();
  await form.getByText(/^Not sent\. Nothing fits in 1\.0 MiB/).waitFor();
  expect((await run()).planId).toBe('');
  await fits(page, 'real-plan-none', 1440);

  await form.getByLabel('Budget, typed').fill('0.6x');
  await apply.click();

  const verdict = region(page, 'Verdict');
  await verdict.getByText('validated').waitFor();
  expect(await verdict.textContent()).toMatch(
    /Measured [\d.]+ MiB .*values made again bit for bit equal in \d+ checks?/,
  );
  await page.getByRole('link', {name: 'Plan', exact: true}).click();
  await region(page, 'This plan').getByText('The plan of the run.').waitFor();
  const text = await textOf(page, 'This plan');
  expect(text).toContain('It fits in');
  expect(text).toMatch(/Recomputed tensors\s*all equal bit for bit in \d+ checks?/);
  await region(page, 'Decisions')
    .getByText(/^recomputed: /)
    .first()
    .waitFor();
  await page.getByRole('link', {name: 'Run', exact: true}).click();
  await expect.poll(() => textOf(page, 'Steps'), LONG).toMatch(/all within the budget/);
  expect(await textOf(page, 'The job')).toMatch(/Executor of plans\s*tape/);
  expect(shown()).toMatch(/^ {2}executor +tape$/m);
  expect(shown()).toMatch(/^ {2}budget_at_start +none$/m);
  const has = (await run()).verdict!;
  expect(has.measuredPeakBytes).toBeLessThanOrEqual(has.budgetBytes);
  expect(has.measuredPeakBytes).toBeLessThan(has.basePeakBytes);
  await fits(page, 'real-validated', 390);
}, 400_000);

test('it takes another budget from the slider, which is then the plan of the run', async () => {
  const before = await run();
  const page = await open(`/runs/${runId}`);
  await page.getByRole('slider').focus();
  for (let i = 0; i < 5; i++) await page.keyboard.press('ArrowRight');
  expect(page.url()).toContain('?budget=');

  await page.getByRole('button', {name: 'Apply to the running job'}).click();

  await expect.poll(() => page.url(), LONG).not.toContain('budget=');
  await page.getByRole('link', {name: 'Plan', exact: true}).click();
  await region(page, 'This plan').getByText('The plan of the run.').waitFor();
  // The verdict speaks of a plan once a step has run under it.
  const budget = async (): Promise<bigint> => (await run()).verdict!.budgetBytes;
  await expect.poll(budget, LONG).toBeGreaterThan(before.verdict!.budgetBytes);
  expect((await run()).planId).not.toBe(before.planId);
  expect(await textOf(page, 'This plan')).toContain(
    `It fits in ${formatBytes(Number(await budget()))}`,
  );
  await fits(page, 'real-plan', 1440);
}, 200_000);

test('its graph and its memory are shown with the plan', async () => {
  const page = await open(`/runs/${runId}/graph`);
  await region(page, 'Step graph')
    .getByText(/^\d{3} ops, \d+ run again/)
    .waitFor();
  await page.getByRole('link', {name: 'Memory', exact: true}).click();
  await page.getByRole('button', {name: 'with the plan', pressed: true}).waitFor();
  await region(page, 'Alive at the instant').getByText('aten.gelu.default').first().waitFor();
  await fits(page, 'real-memory-planned', 1440);
}, 200_000);

test('every place calls its bytes by the same names', async () => {
  const {query} = clients(daemon);
  const named = (groups: readonly {category: Category}[]): string[] =>
    groups.map(({category}) => categoryStyle(category).name).toSorted();
  const words = (lines: readonly string[]): string[] => [...new Set(lines)].toSorted();

  const measured = named((await query.getMemory({runId, planned: true})).categories);
  const page = await open(`/runs/${runId}/memory`);
  const keys = page.getByRole('list', {name: 'By category'}).getByRole('listitem');
  await keys.first().waitFor();
  expect(words((await keys.allTextContents()).map(nameIn))).toEqual(measured);
  const file = join(daemon.folder, 'run.html');
  printed('export', runId, '--format', 'html', '--out', file);
  await page.goto(`file://${file}`);
  const cells = page.getByRole('table').first().locator('td:nth-child(2)');
  expect(words(await cells.allTextContents())).toEqual(measured);

  const predicted = named((await query.compare({a: runId, b: runId})).categories);
  const said = shown().split('BY CATEGORY, predicted under the plan')[1]!.split('\n\n')[0]!;
  expect(words(said.split('\n').slice(1).filter(Boolean).map(nameIn))).toEqual(predicted);
  await page.goto(daemon.link(`/runs/${runId}`));
  const legend = region(page, 'Memory over one step').getByRole('listitem');
  await expect
    .poll(async () => words((await legend.allTextContents()).map((line) => line.trim())), LONG)
    .toEqual(expect.arrayContaining(predicted));
}, 200_000);

test('the list of runs says that it finished', async () => {
  const page = await open('/');
  const row = page.getByRole('row').filter({hasText: NAME});
  await row.getByText('running').waitFor();

  await ended(job);

  await row.getByText('finished').waitFor();
  expect(job.exitCode).toBe(0);
  expect(out).toMatch(/^stopped after \d+ steps, the loss is a number: True$/m);
  expect(said).not.toContain('failed');
  const {runs} = await clients(daemon).query.listRuns({});
  expect(runs.map(({standing}) => standing)).toEqual([Standing.VALIDATED]);
  expect(await row.textContent()).toContain('validated');
  await fits(page, 'real-runs', 390);
}, 200_000);

test('it is compared with a training without a plan: the same program, fewer activations', async () => {
  const {query} = clients(daemon);
  plain = start(PLAIN);
  const other = await vi.waitUntil(async () => {
    const {runs} = await query.listRuns({search: PLAIN});
    if (plain!.exitCode !== null) throw new Error(`the plain job ended: ${said}`);
    return runs[0]?.graphId ? runs[0] : undefined;
  }, LONG);
  await ended(plain);
  const page = await open('/');
  for (const name of [NAME, PLAIN]) {
    await page.getByRole('checkbox', {name: `Choose ${name}`, exact: true}).check();
  }

  await page.getByRole('link', {name: 'Compare the two runs'}).click();

  const comparison = await query.compare({a: runId, b: other.runId});
  const peak = region(page, 'Alive at the peak');
  await peak.getByText(comparison.sentence).waitFor();
  expect(printed('diff', runId, other.runId)).toContain(comparison.sentence);
  await peak.getByRole('button', {name: 'by category'}).click();
  const activations = peak.getByRole('row', {name: /^activations/});
  expect(await activations.textContent()).toMatch(/\+[\d.]+ MiB/);
  await peak.getByRole('button', {name: 'by source line'}).click();
  await peak
    .getByRole('row', {name: /real_job\.py:\d+/})
    .first()
    .waitFor();
  const again = region(page, 'Run again');
  await again
    .getByRole('row', {name: /aten\./})
    .first()
    .waitFor();
  expect(
    await region(page, 'Figures')
      .getByRole('row', {name: /^Budget/})
      .count(),
  ).toBe(1);
  await fits(page, 'real-compare', 390);
}, 300_000);
