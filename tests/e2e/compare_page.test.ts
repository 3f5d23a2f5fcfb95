// SPDX-License-Identifier: Apache-2.0

/** Two runs beside each other, of jobs that talk as a collector does; real_run.test.ts compares trainings. */
import {beforeAll, expect, test} from 'vitest';
import {MIB} from './graph';
import {clients, Job} from './job';
import {startSite} from './site';
import {wholeRun} from './whole_run';

const site = startSite();

beforeAll(async () => {
  for (const [name, budget, differing] of [
    ['whole', '0.6x', 0],
    ['wrong', '0.7x', 3],
  ] as const) {
    const {job} = await wholeRun(site.daemon, name, budget, differing);
    job.bye();
    await job.over;
  }
});

test('two runs are compared by figures, by their steps and by owner', async () => {
  const page = await site.open('/');
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
  const {sentence} = await clients(site.daemon).query.compare({
    a: 'whole',
    b: 'wrong',
  });
  await peak.getByText(sentence).waitFor();
  await page.getByText('also what is equal').click();
  await peak.getByRole('button', {name: 'by category'}).click();
  await peak.getByRole('row', {name: /^activations/}).waitFor();
});

test('a run of which nothing was recorded is compared by figures, and says why not by owner', async () => {
  const job = new Job(site.daemon, 'bare', 'bare job');
  await job.step({planId: '', peakBytes: 30 * MIB, stepNs: 9_000_000});
  job.bye();
  const page = await site.open('/compare?a=whole&b=bare');

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
test('it fits a phone', async () => {
  const page = await site.open('/compare?a=whole&b=wrong', {width: 390});
  await page.getByRole('link', {name: /whole job/}).waitFor();

  expect(await page.evaluate(() => document.documentElement.scrollWidth)).toBe(390);
});
