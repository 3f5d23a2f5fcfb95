// SPDX-License-Identifier: Apache-2.0

/** A small run of the layered graph, from plain steps to checked ones, and what a page says of it. */
import type {Page} from 'playwright-core';
import type {Plan} from '../../web/src/gen/reprise/v1/plan_pb';
import type {Daemon} from './daemon';
import {layeredGraph, MIB} from './graph';
import {clients, Job} from './job';

export const verdict = (page: Page): Promise<string | null> =>
  page.getByRole('status', {name: 'Verdict'}).textContent();

/** The legend says so: no point is still to come. The server searches for 20 seconds at most. */
export const curveDone = (page: Page): Promise<void> =>
  page.getByText('plans', {exact: true}).waitFor({timeout: 40_000});

export async function sentenceOf(daemon: Daemon, runId: string): Promise<string> {
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
export const spikeTime = (plan: Plan): number => Number(plan.timeNs) - 2_000_000;

/** Plain steps, a plan, and planned ones: a whole small run. */
export async function wholeRun(
  daemon: Daemon,
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
