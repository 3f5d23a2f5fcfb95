// SPDX-License-Identifier: Apache-2.0

/** Predicted and measured on one clock: the place of an op in the step. */
import type {Browser, Page} from 'playwright-core';
import {afterAll, beforeAll, expect, onTestFinished, test} from 'vitest';
import type {Plan} from '../../web/src/gen/reprise/v1/plan_pb';
import {openPage, startBrowser} from './browser';
import {startDaemon, type Daemon} from './daemon';
import {layeredGraph, MIB} from './graph';
import {Job} from './job';

let daemon: Daemon;
let browser: Browser;
let plan: Plan;

beforeAll(async () => {
  [daemon, browser] = await Promise.all([startDaemon(), startBrowser()]);
  const graph = layeredGraph('marked');
  const job = new Job(daemon, 'marked', 'marked job');
  await job.step({planId: '', peakBytes: 170 * MIB, stepNs: 257e6});
  plan = await job.plan(graph, '0.7x');
  const execs = plan.schedule.filter((entry) => entry >= 0n).map(Number);
  // The traced step takes ten times as long, and runs a detach after each op.
  await job.step({
    planId: plan.planId,
    peakBytes: Number(plan.peakBytes),
    stepNs: 10 * Number(plan.timeNs),
    ops: execs.flatMap((op, i) => {
      const bytes = Number(plan.predicted!.bytes[i]);
      return [[graph.ops[op]!.name, bytes] as const, ['aten.detach.default', bytes] as const];
    }),
  });
  job.bye();
});

afterAll(async () => {
  await browser?.close();
  await daemon?.remove();
});

async function open(path: string): Promise<Page> {
  const {page, problems} = await openPage(browser);
  onTestFinished(async () => {
    await page.close();
    expect(problems).toEqual([]);
  });
  await page.goto(daemon.link(path));
  return page;
}

test('a tooltip has predicted and measured of one op, whatever the steps took', async () => {
  const page = await open('/runs/marked');
  const panel = page.getByRole('region', {name: 'Memory over one step'});
  await panel.getByRole('button', {name: 'by op', pressed: true}).waitFor();
  const over = panel.locator('.u-over');
  const tooltip = panel.locator('.tooltip');

  for (const share of [0.1, 0.35, 0.52, 0.66, 0.8, 0.97]) {
    const box = (await over.boundingBox())!;
    await page.mouse.move(box.x + share * box.width, box.y + 40);
    await expect.poll(() => tooltip.locator('strong').textContent()).toMatch(/^op \d+: /);
    const value = async (name: string): Promise<string | null> =>
      tooltip.locator(`dt:text-is("${name}") + dd`).textContent();
    expect(await value('measured')).toBe(await value('predicted'));
  }
});

test('time is a second choice, kept in the address, and says what it cannot do', async () => {
  const page = await open('/runs/marked');
  const panel = page.getByRole('region', {name: 'Memory over one step'});

  await panel.getByRole('button', {name: 'by time'}).click();

  await panel.getByText('equal times are not equal ops').waitFor();
  expect(page.url()).toBe(`${daemon.url}/runs/marked?by=time`);
  await panel.getByRole('button', {name: 'by op'}).click();
  await expect.poll(() => page.url()).toBe(`${daemon.url}/runs/marked`);
});

test('the axis of ops is zoomed, moved and read by keys alone', async () => {
  const page = await open('/runs/marked');
  const chart = page.getByRole('application', {name: 'measured peak'});
  await page.getByRole('button', {name: 'by op', pressed: true}).waitFor();

  await page.keyboard.press('w');
  expect(page.url()).toMatch(/\?ops=\d+\.\.\d+$/);
  const zoomed = page.url();
  await page.keyboard.press('d');
  expect(page.url()).not.toBe(zoomed);

  await chart.focus();
  await page.keyboard.press('ArrowRight');
  await page.keyboard.press('Shift+ArrowRight');
  const title = chart.locator('.tooltip strong');
  await expect.poll(() => title.textContent()).toMatch(/^op \d+: aten\./);
  // What the tooltip says is read out.
  const panel = page.getByRole('region', {name: 'Memory over one step'});
  expect(await panel.locator('[aria-live]').textContent()).toMatch(/^op \d+: aten\..*, .* [KM]iB/);
  await page.keyboard.press('Escape');
  await expect.poll(() => page.url()).toBe(`${daemon.url}/runs/marked`);
});
