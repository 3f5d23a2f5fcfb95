// SPDX-License-Identifier: Apache-2.0

/** Several users on one server. */
import {beforeAll, expect, test} from 'vitest';
import type {Page} from 'playwright-core';
import {MIB} from './graph';
import {Job} from './job';
import {startSite} from './site';

const TOKENS = {alice: 'a'.repeat(32), bob: 'b'.repeat(32), boss: 'c'.repeat(32)};
const site = startSite(
  `${'0'.repeat(32)}\nalice user ${TOKENS.alice}\nbob user ${TOKENS.bob}\nboss admin ${TOKENS.boss}\n`,
);

/** The page as this user sees it. */
async function openAs(user: keyof typeof TOKENS): Promise<Page> {
  const page = await site.open('/');
  await page.goto(`${site.daemon.url}/?token=${TOKENS[user]}`);
  return page;
}

const names = (page: Page): Promise<string[]> => page.locator('td.name a').allTextContents();

beforeAll(async () => {
  for (const user of ['alice', 'bob', 'boss'] as const) {
    const job = new Job({...site.daemon, token: TOKENS[user]}, `run-${user}`, `job of ${user}`);
    await job.step({planId: '', peakBytes: MIB, stepNs: 1e6});
    job.bye();
    await job.over;
  }
});

test('a user sees the own runs, and no filter and no owner', async () => {
  const page = await openAs('alice');

  await page.getByRole('link', {name: 'job of alice'}).waitFor();

  expect(await names(page)).toEqual(['job of alice']);
  expect(await page.getByRole('button', {name: 'mine'}).count()).toBe(0);
  expect(await page.getByRole('columnheader', {name: 'Owner'}).count()).toBe(0);
  await page.goto(`${site.daemon.url}/runs/run-bob`);
  await page.getByRole('heading', {name: 'Not found'}).waitFor();
  await page.goto(`${site.daemon.url}/status`);
  await page.getByText('All is well.').waitFor();
  expect(await page.getByText('Data folder').count()).toBe(0);
});

test('an admin sees whose runs they are, and can look at the own ones', async () => {
  const page = await openAs('boss');
  await page.getByRole('link', {name: 'job of bob'}).waitFor();
  expect(await page.locator('[data-name="owner"]').allTextContents()).toEqual([
    'boss',
    'bob',
    'alice',
  ]);

  await page.getByRole('button', {name: 'mine'}).click();

  await expect.poll(() => names(page)).toEqual(['job of boss']);
  expect(page.url()).toBe(`${site.daemon.url}/?mine=1`);
  await page.getByRole('button', {name: 'mine'}).click();
  await expect.poll(async () => (await names(page)).length).toBe(3);
});
