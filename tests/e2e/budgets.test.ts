// SPDX-License-Identifier: Apache-2.0

/** Budgets that are tried on the page of a run: the curve, the slider, what is typed, what is refused. */
import {beforeAll, describe, expect, test} from 'vitest';
import {formatBytes} from '../../web/src/format/units';
import type {Plan} from '../../web/src/gen/reprise/v1/plan_pb';
import {clients, TAPE} from './job';
import {startSite} from './site';
import {curveDone, sentenceOf, verdict, wholeRun} from './whole_run';

const site = startSite();

describe('a validated run', () => {
  let plan: Plan;
  beforeAll(async () => {
    const made = await wholeRun(site.daemon, 'whole', '0.6x');
    plan = made.plan;
    made.job.bye();
  });

  test('draws the trade-off curve with the impossible budgets grey', async () => {
    const page = await site.open('/runs/whole');

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
    const page = await site.open('/runs/whole');
    const slider = page.getByRole('slider', {name: 'Budget'});
    await curveDone(page);

    await slider.focus();
    await page.keyboard.press('Home');

    const alert = page.getByRole('alert');
    await alert.waitFor();
    expect(await alert.textContent()).toMatch(/No plan fits in less than [\d.]+ MiB/);
    // It stands at a budget that is possible, and that budget is planned.
    const whatIf = page.getByLabel('What if');
    await expect.poll(() => whatIf.textContent()).toContain('It fits in ');
    expect(page.url()).toMatch(/\?budget=[\d.]+[KMG]iB$/);
  });

  test('a moving slider redraws the memory at once, says that it is interpolated, and is replaced', async () => {
    const page = await site.open('/runs/whole');
    await curveDone(page);
    let answer = (): void => undefined;
    const held = new Promise<void>((resolve) => (answer = resolve));
    await page.route(/Planner\/Plan$/, async (route) => {
      await held;
      await route.continue();
    });
    const memory = page.getByRole('region', {name: 'Memory over one step'});
    const whatIf = page.getByLabel('What if');

    await page.getByRole('slider', {name: 'Budget'}).focus();
    await page.keyboard.press('ArrowRight');

    await memory.getByText('what if, interpolated').waitFor();
    await whatIf.getByText(/^\s*About [\d.]+ MiB, [+-][\d.]+ %: interpolated between/).waitFor();
    expect(await page.locator('circle.chosen[stroke-dasharray]').count()).toBe(1);
    answer();
    await expect.poll(() => whatIf.textContent()).toContain('It fits in ');
    await memory.getByText('what if, interpolated').waitFor({state: 'detached'});
    await memory.getByText('what if', {exact: true}).waitFor();
    expect(await page.locator('circle.chosen[stroke-dasharray]').count()).toBe(0);
  });

  test('a typed budget is planned as typed; an impossible one names the smallest', async () => {
    const {planner} = clients(site.daemon);
    let refused: Plan | undefined;
    const question = {
      graphId: plan.graphId,
      budget: '50MiB',
      capabilities: TAPE,
    };
    for await (const {event} of planner.plan(question)) {
      if (event.case === 'plan') refused = event.value;
    }
    const page = await site.open('/runs/whole');
    const typed = page.getByRole('textbox', {name: 'Budget, typed'});
    const whatIf = page.getByLabel('What if');

    await typed.fill('50MiB');
    await typed.press('Enter');
    await expect.poll(() => whatIf.textContent()).toContain(refused!.sentence);
    expect(refused!.sentence).toMatch(/^Nothing fits in 50.0 MiB: op \d+ .* needs at least /);

    await typed.fill('0.8x');
    await typed.press('Enter');
    await expect.poll(() => whatIf.textContent()).toContain('It fits in ');
    expect(page.url()).toBe(`${site.daemon.url}/runs/whole?budget=0.8x`);

    await typed.fill('8G');
    await typed.press('Enter');
    await expect.poll(() => whatIf.textContent()).toContain('8GiB');

    // The verdict of the run is not touched by any of it.
    expect(await verdict(page)).toBe(await sentenceOf(site.daemon, 'whole'));
  });

  test('a link to a what-if shows the same to somebody else', async () => {
    const page = await site.open('/runs/whole?budget=0.8x');

    await expect.poll(() => page.getByLabel('What if').textContent()).toContain('It fits in ');
    await page.locator('circle.chosen').waitFor();

    await page.getByRole('button', {name: 'Back to the plan of the run'}).click();
    await expect.poll(() => page.url()).toBe(`${site.daemon.url}/runs/whole`);
    expect(await page.getByLabel('What if').count()).toBe(0);
  });

  test.each([800, 1280, 1600])('is not wider than a screen of %i pixels', async (width) => {
    const page = await site.open('/runs/whole?budget=0.8x', {width});
    await curveDone(page);

    const most = await page.evaluate(() => document.documentElement.scrollWidth);

    expect(most).toBeLessThanOrEqual(width);
  });
});

test('an impossible budget is refused in the words of the server', async () => {
  const {job, plan} = await wholeRun(site.daemon, 'tight', '45MiB');
  const page = await site.open('/runs/tight');

  const unplanned = '3 steps ran without a plan, at up to 170.0 MiB.';
  await expect.poll(() => verdict(page)).toBe(`${plan.sentence} ${unplanned}`);

  expect(await verdict(page)).toMatch(/^Nothing fits in 45.0 MiB: op \d+ /);
  expect(await page.getByText('✗ no plan fits').isVisible()).toBe(true);
  // What is alive without a plan is known, and what stands in the way adds up.
  const alive = page.getByRole('region', {name: 'At the peak'});
  await expect.poll(() => alive.getByRole('row').count()).toBeGreaterThan(2);
  const why = page.getByRole('region', {name: 'Why no plan fits'});
  await why.getByText('too much by').waitFor();
  expect(await why.getByText('the proof does not name').count()).toBe(0);
  const {workingSet} = await clients(site.daemon).planner.explain({
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
  expect(page.url()).toBe(`${site.daemon.url}/runs/tight?budget=${budget}MiB`);
  job.bye();
});
