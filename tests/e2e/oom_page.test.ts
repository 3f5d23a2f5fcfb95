// SPDX-License-Identifier: Apache-2.0

/** When memory ran out: of a real PyTorch job, and of one on a device whose figures are known. */
import {spawn} from 'node:child_process';
import {existsSync} from 'node:fs';
import {fileURLToPath} from 'node:url';
import type {Browser, Page} from 'playwright-core';
import {afterAll, beforeAll, describe, expect, onTestFinished, test} from 'vitest';
import {formatBytes} from '../../web/src/format/units';
import {openPage, startBrowser} from './browser';
import {startDaemon, type Daemon} from './daemon';
import {layeredGraph} from './graph';
import {clients, Job} from './job';

const MIB = 2 ** 20;
const ROOT = fileURLToPath(new URL('../..', import.meta.url));
let daemon: Daemon;
let browser: Browser;

beforeAll(async () => {
  [daemon, browser] = await Promise.all([startDaemon(), startBrowser()]);
});

afterAll(async () => {
  await browser?.close();
  await daemon?.remove();
});

async function open(
  path: string,
  options: {readonly dark?: boolean; readonly width?: number} = {},
): Promise<Page> {
  const {page, problems} = await openPage(browser, options);
  onTestFinished(async () => {
    await page.close();
    expect(problems).toEqual([]);
  });
  await page.goto(daemon.link(path));
  return page;
}

/** A program of PyTorch under the agent of this build, until it ends. */
async function train(script: string, runId: string): Promise<void> {
  const python = process.env['REPRISE_PYTHON'] ?? `${ROOT}.venv/bin/python`;
  const agent = process.env['REPRISE_AGENT'] ?? `${ROOT}build/lib/libreprise_agent.so`;
  for (const file of [python, agent]) {
    if (!existsSync(file)) throw new Error(`${file}: is not there; run scripts/build`);
  }
  const job = spawn(python, [`${ROOT}tests/e2e/${script}`], {
    env: {
      ...process.env,
      PYTHONPATH: `${ROOT}clients/python/src`,
      REPRISE_AGENT: agent,
      REPRISE_SOCKET: daemon.socket,
      REPRISE_RUN_ID: runId,
    },
    stdio: ['ignore', 'ignore', 'pipe'],
  });
  let said = '';
  job.stderr.on('data', (part: Buffer) => void (said += part.toString()));
  await new Promise((resolve) => job.once('close', resolve));
  expect(said).toContain("can't allocate memory");
}

describe('a PyTorch job that ran out of memory', () => {
  beforeAll(() => train('out_of_memory_job.py', 'real'), 250_000);

  test('has a page: what was asked, what was alive, and the plan with the smallest budget', async () => {
    const {moments} = await clients(daemon).query.getMoments({
      runId: 'real',
    });
    const {sentence, moment} = moments[0]!;
    const page = await open('/runs/real');

    await page.getByRole('link', {name: 'What was alive, and what would have fitted'}).click();

    expect(page.url()).toBe(`${daemon.url}/runs/real/oom`);
    const asked = page.getByRole('region', {name: 'The last moment'});
    expect(await asked.getByRole('status').textContent()).toBe(sentence);
    await asked
      .getByText(formatBytes(Number(moment!.askedBytes)), {exact: true})
      .first()
      .waitFor();
    const alive = page.getByRole('region', {name: 'What was alive'});
    const largest = moment!.storages[0]!;
    expect(await alive.getByRole('row').first().textContent()).toContain(
      formatBytes(Number(largest.bytes)),
    );
    // Nothing says how much a process on the CPU could have had.
    await page.getByText('Nobody said how much was free').waitFor();
    const fitted = page.getByRole('region', {name: 'What would have fitted'});
    await fitted.getByText('The smallest budget with a known plan is').waitFor();
    // Its batch was eight times that of the captured step.
    await fitted.getByText('is not known to be the same').waitFor();
    await fitted.getByRole('link', {name: 'See this plan'}).click();
    await page.getByRole('heading', {name: 'Use this plan'}).waitFor();
    expect(page.url()).toContain('/runs/real/plan?budget=');
  });

  test.each([
    [1440, false],
    [1280, true],
    [390, false],
    [390, true],
  ])('fits %i px, dark: %s', async (width, dark) => {
    const page = await open('/runs/real/oom', {width, dark});
    await page.getByRole('link', {name: 'See this plan'}).waitFor();

    expect(await page.evaluate(() => document.documentElement.scrollWidth)).toBe(width);
    const pictures = process.env['PICTURES'];
    if (pictures) {
      await page.screenshot({
        path: `${pictures}/oom-${width}${dark ? '-dark' : ''}.png`,
        fullPage: true,
      });
    }
  });
});

describe('a job on a device', () => {
  test('is offered the quickest plan that keeps within what it could have had', async () => {
    const job = new Job(daemon, 'short', 'short job');
    await job.step({planId: '', peakBytes: 170 * MIB, stepNs: 257e6});
    const plan = await job.plan(layeredGraph('short'), '1x');
    await job.step({
      planId: plan.planId,
      peakBytes: 170 * MIB,
      stepNs: 257e6,
    });
    await job.outOfMemory(plan, {
      asked: 24 * MIB,
      alive: 150 * MIB,
      free: 12 * MIB,
      total: 170 * MIB,
    });
    job.bye();
    const page = await open('/runs/short/oom');

    await page.getByText('24.0 MiB', {exact: true}).first().waitFor();
    await page
      .getByRole('img', {
        name: 'Memory: parameters 150.0 MiB, neither alive nor free 8.0 MiB, free 12.0 MiB',
      })
      .waitFor();
    const fitted = page.getByRole('status', {
      name: 'The plan that would have fitted',
    });
    await fitted.getByText(/A plan for [\d.]+ MiB keeps within the\s+162.0 MiB/).waitFor();
    const budget = async (): Promise<string> =>
      /A plan for ([\d.]+) MiB/.exec((await fitted.textContent())!)![1]!;
    // The curve grows, and the offer with it.
    await expect.poll(budget).toMatch(/^1[56]/);
    expect(Number(await budget())).toBeLessThanOrEqual(162.1);
    await page.getByText('24.0 MiB were asked for and 12.0 MiB were free').waitFor();
    await page.getByRole('link', {name: 'See this plan'}).press('Enter');
    const shown = page.getByRole('status', {name: 'Plan', exact: true});
    await expect.poll(() => shown.textContent()).toContain('It fits in ');
    await page.getByText('A what-if: the job runs another plan.').waitFor();
  });

  test('a run that has memory left has no such page', async () => {
    const job = new Job(daemon, 'fine', 'fine job');
    await job.step({planId: '', peakBytes: MIB, stepNs: 1e6});
    job.bye();
    await job.over;
    const page = await open('/runs/fine/oom');

    await page.getByText('This run did not run out of memory.').waitFor();
    await page.getByRole('link', {name: 'Run', exact: true}).click();
    await page.getByRole('region', {name: 'Verdict'}).waitFor();
    expect(await page.getByRole('status', {name: 'What happened'}).count()).toBe(0);
    expect(await page.getByRole('link', {name: 'Out of memory'}).count()).toBe(0);
  });
});
