// SPDX-License-Identifier: Apache-2.0

/** A job that runs: another budget, its steps at any zoom, and charts read by keys alone. */
import type {Browser, Page} from 'playwright-core';
import {afterAll, beforeAll, expect, onTestFinished, test} from 'vitest';
import {openPage, startBrowser} from './browser';
import {startDaemon, type Daemon} from './daemon';
import {layeredGraph} from './graph';
import {Job} from './job';

const MIB = 2 ** 20;
let daemon: Daemon;
let browser: Browser;

beforeAll(async () => {
  [daemon, browser] = await Promise.all([startDaemon(), startBrowser()]);
});

afterAll(async () => {
  await browser?.close();
  await daemon?.remove();
});

async function open(path: string): Promise<Page> {
  const {page, problems} = await openPage(browser, {});
  onTestFinished(async () => {
    await page.close();
    expect(problems).toEqual([]);
  });
  await page.goto(daemon.link(path));
  return page;
}

async function planned(runId: string, takesPlans: boolean): Promise<Job> {
  const job = new Job(daemon, runId, `${runId} job`);
  if (takesPlans) job.works([{name: 'apply', value: 'yes'}]);
  await job.step({planId: '', peakBytes: 170 * MIB, stepNs: 257e6});
  const plan = await job.plan(layeredGraph(runId), '0.7x');
  const peakBytes = Number(plan.budgetBytes) - MIB;
  for (let i = 0; i < 30; i++) {
    await job.step({planId: plan.planId, peakBytes, stepNs: Number(plan.timeNs)});
  }
  return job;
}

test('a job that takes no plan while it runs says why, and how to start it again', async () => {
  const job = await planned('fixed', false);
  const page = await open('/runs/fixed?budget=0.8x');

  await page
    .getByText(/takes no other budget: its executor takes a plan only when it starts/)
    .waitFor();

  expect(await page.getByText('reprise run --budget 0.8x -- python train.py').count()).toBe(1);
  expect(await page.getByRole('button', {name: 'Apply to the running job'}).count()).toBe(0);
  job.bye();
});

test('steps are zoomed into by buttons, and the address keeps the part', async () => {
  const job = await planned('stepped', true);
  const page = await open('/runs/stepped');
  const steps = page.getByRole('region', {name: 'Steps'});

  await steps.getByRole('button', {name: 'Zoom in'}).click();

  await expect.poll(() => page.url()).toMatch(/\?steps=8\.\.24$/);
  await steps.getByRole('button', {name: 'All steps'}).click();
  expect(page.url()).not.toContain('steps=');
  await steps.getByRole('application').focus();
  await page.keyboard.press('ArrowRight');
  await steps.getByText(/^step 1, peak 170.0 MiB/).waitFor();
  job.bye();
});

test('the trade-off curve is walked and tried by keys alone, and read out', async () => {
  const job = await planned('keyed', true);
  const page = await open('/runs/keyed');
  const curve = page.getByRole('region', {name: 'Trade-off'});
  await page.getByText('plans', {exact: true}).waitFor();

  await curve.getByRole('application').focus();
  await page.keyboard.press('End');
  await page.keyboard.press('ArrowLeft');
  await curve.getByText(/^budget .* Enter tries it\.$/).waitFor();
  await page.keyboard.press('Enter');

  await page.getByText('what if', {exact: true}).first().waitFor();
  expect(page.url()).toContain('?budget=');
  job.bye();
});
