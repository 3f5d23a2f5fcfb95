// SPDX-License-Identifier: Apache-2.0

/** The step as a map: modules in their order, what is kept, what runs again. */
import type {Browser, Page} from 'playwright-core';
import {afterAll, beforeAll, expect, onTestFinished, test} from 'vitest';
import {openPage, startBrowser} from './browser';
import {startDaemon, type Daemon} from './daemon';
import {layeredGraph, MIB} from './graph';
import {Job} from './job';

let daemon: Daemon;
let browser: Browser;

beforeAll(async () => {
  [daemon, browser] = await Promise.all([startDaemon(), startBrowser()]);
  const job = new Job(daemon, 'mapped', 'mapped job');
  await job.step({planId: '', peakBytes: 170 * MIB, stepNs: 257e6});
  const {planId, timeNs} = await job.plan(layeredGraph('mapped'), '0.7x');
  await job.step({planId, peakBytes: 100 * MIB, stepNs: Number(timeNs)});
  job.bye();
});

afterAll(async () => {
  await browser?.close();
  await daemon?.remove();
});

async function open(path: string, width = 1280): Promise<Page> {
  const {page, problems} = await openPage(browser, {width});
  onTestFinished(async () => {
    await page.close();
    expect(problems).toEqual([]);
  });
  await page.goto(daemon.link(path));
  return page;
}

test('shows the modules in the order in which they run, what is kept, and what runs again', async () => {
  const page = await open('/runs/mapped');
  await page.getByRole('link', {name: 'Graph', exact: true}).click();
  const map = page.getByRole('region', {name: 'Step graph'});

  await map.getByText(/35 ops, \d+ run again; [\d.]+ MiB kept for the backward pass/).waitFor();
  expect(await map.locator('rect.again').count()).toBeGreaterThan(0);
  const withPlan = await map.locator('path.arc').count();

  // Without a plan all that the backward reads is kept.
  await page.getByRole('button', {name: 'without a plan'}).click();
  await map.getByText(/35 ops; 157.0 MiB kept for the backward pass/).waitFor();
  expect(await map.locator('rect.again').count()).toBe(0);
  expect(await map.locator('path.arc').count()).toBeGreaterThan(withPlan);
});

test('is read, zoomed and left by keys alone', async () => {
  const page = await open('/runs/mapped/graph');
  const map = page.getByRole('application');
  const chosen = page.getByRole('status', {name: 'Chosen module'});
  await map.focus();

  await page.keyboard.press('ArrowRight');
  await page.keyboard.press('ArrowRight');
  await expect.poll(() => chosen.textContent()).toMatch(/^layers\.\d+, forward: \d+ ops?, 10 ms/);
  const first = await chosen.textContent();
  await page.keyboard.press('ArrowRight');
  expect(await chosen.textContent()).not.toBe(first);
  await page.keyboard.press('w');
  expect(page.url()).toMatch(/\?ops=\d+\.\.\d+$/);
  await page.keyboard.press('Escape');
  await expect.poll(() => page.url()).toBe(`${daemon.url}/runs/mapped/graph`);
  await expect.poll(() => chosen.textContent()).toMatch(/Click a module/);
});

test.each([390, 800])('is not wider than a screen of %i pixels', async (width) => {
  const page = await open('/runs/mapped/graph', width);
  await page.getByRole('application').waitFor();

  expect(await page.evaluate(() => document.documentElement.scrollWidth)).toBeLessThanOrEqual(
    width,
  );
});
