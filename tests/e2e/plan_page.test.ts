// SPDX-License-Identifier: Apache-2.0

/** The plan of a run: what it changes, every decision, and how to use it. */
import {beforeAll, describe, expect, test} from 'vitest';
import type {Plan} from '../../web/src/gen/reprise/v1/plan_pb';
import {clients} from './job';
import {startSite} from './site';
import {wholeRun} from './whole_run';

const site = startSite();

describe('a validated run', () => {
  let plan: Plan;
  beforeAll(async () => {
    const made = await wholeRun(site.daemon, 'whole', '0.6x');
    plan = made.plan;
    made.job.bye();
  });

  test('says what the plan changes, by module', async () => {
    const page = await site.open('/runs/whole/plan');
    const changes = page.getByLabel('What the plan changes');

    await changes.getByText(/\d+ saved .*, \d+ recomputed .* ops run again/).waitFor();

    await changes.getByRole('button', {name: 'Close layers'}).click();
    expect(await changes.getByRole('button', {name: 'Open layers'}).isVisible()).toBe(true);
  });

  test('the plan has a page: its sentence, every decision, and how to use it', async () => {
    const page = await site.open('/runs/whole');
    await page.getByRole('link', {name: 'Plan', exact: true}).click();
    await expect
      .poll(() => page.getByRole('status', {name: 'Plan', exact: true}).textContent())
      .toBe(`${plan.sentence}.`); // as the verdict of the run begins

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
      use.getByRole('button', {name: 'Plan, JSON'}).click(),
    ]);
    expect(file.suggestedFilename()).toBe('whole_job.plan.json');
    await use.getByRole('button', {name: 'Check this plan'}).click();
    const {sentence} = await clients(site.daemon).planner.verify({
      planId: plan.planId,
    });
    await expect
      .poll(() => use.getByRole('status', {name: 'Verification'}).textContent())
      .toBe(sentence);
  });
});
