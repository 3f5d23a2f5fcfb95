// SPDX-License-Identifier: Apache-2.0

/** What a verdict says of its plan: one prediction, the server's, in every figure. */
import {counted, formatBytes, formatDuration, formatPercent, num} from '../format/units';
import {BoundProof, type Plan} from '../gen/reprise/v1/plan_pb';
import type {Verdict} from '../gen/reprise/v1/query_pb';

/** Whether a verdict is about this plan; a run may have a newer one that no step ran under yet. */
export function isAbout(verdict: Verdict | undefined, plan: Plan): boolean {
  return (
    verdict !== undefined &&
    verdict.feasible &&
    plan.feasible &&
    verdict.budgetBytes === plan.budgetBytes &&
    verdict.basePeakBytes === plan.basePeakBytes &&
    verdict.overheadBound === plan.bound
  );
}

/** Whether a plan runs every op once. */
export function recomputesNothing(plan: Plan): boolean {
  return plan.feasible && plan.recomputedOps.length === 0 && plan.timeNs <= plan.baseTimeNs;
}

/**
 * What a plan costs and how far from optimal it is. With a verdict about it,
 * all percentages are of the job's own step, and what the executor itself needs
 * is part of the overhead.
 */
export function costFacts(plan: Plan, verdict: Verdict | undefined): [string, string][] {
  const known = verdict && isAbout(verdict, plan) && verdict.predictedStepNs > 0n;
  const baseNs = num(known && verdict.baseStepNs > 0n ? verdict.baseStepNs : plan.baseTimeNs);
  const recomputeNs = num(plan.timeNs - plan.baseTimeNs);
  const addedNs = known ? num(verdict.predictedStepNs) - baseNs : recomputeNs;
  const ownNs = addedNs - recomputeNs;
  const share = (ns: number): number => (baseNs > 0 ? ns / baseNs : 0);
  // The planner's fractions are of the sum of its ops.
  const ofBase = (fraction: number): number => share(fraction * num(plan.baseTimeNs));

  const facts: [string, string][] = [['Overhead', formatPercent(share(addedNs), true)]];
  if (ownNs > 0) facts.push(['of it the executor itself', formatDuration(ownNs)]);
  if (recomputesNothing(plan)) return [...facts, ['Recomputed', 'nothing']];
  const bound = formatPercent(ofBase(plan.bound), true);
  const gap = plan.provenOptimal
    ? '0, proven optimal'
    : formatPercent(ofBase(plan.overhead - plan.bound));
  // Of a step that is inferred nothing is proven.
  if (plan.inferred !== '') return [...facts, ['Bound of the estimate', bound]];
  return [
    ...facts,
    [plan.boundProof === BoundProof.CHECKED ? 'Proven bound' : 'Bound, not checked', bound],
    ['Gap', gap],
  ];
}

/**
 * What the checks of a run compared, gradients and recomputed values apart.
 * That no value differs says nothing where none is recomputed.
 */
export function checkFacts(plan: Plan, verdict: Verdict): [string, string][] {
  const {checks, valueChecks, checksDiffering, valueChecksDiffering} = verdict;
  const {gradientsDiffering, gradientsChecked, gradientsEqual, valuesEqual} = verdict;
  const text = (equal: boolean, made: number, differing: number): string => {
    if (differing > 0) return `differ in ${differing} of ${counted(made, 'check')}`;
    return equal ? `all equal bit for bit in ${counted(made, 'check')}` : '';
  };
  const gradients =
    gradientsDiffering > 0
      ? `${gradientsDiffering} of ${gradientsChecked} differ`
      : text(gradientsEqual, checks - valueChecks, checksDiffering - valueChecksDiffering);
  const values = text(valuesEqual && !recomputesNothing(plan), valueChecks, valueChecksDiffering);
  const facts: [string, string][] = [
    ['Gradients', gradients],
    ['Recomputed tensors', values],
  ];
  return facts.filter((fact) => fact[1] !== '');
}

/** What a verdict compares: name, without a plan, budget, predicted, measured, difference. */
export function figureRows(verdict: Verdict): readonly (readonly string[])[] {
  const row = (
    name: string,
    format: (value: number) => string,
    [base, budget, predicted, measured]: readonly [bigint, bigint, bigint, bigint],
    instead = '',
  ): string[] => {
    const both = predicted > 0n && measured > 0n;
    return [
      name,
      ...[base, budget, predicted, measured].map((value) => (value > 0n ? format(num(value)) : '')),
      both ? instead || formatPercent(num(measured) / num(predicted) - 1, true) : '',
    ];
  };
  const {basePeakBytes, budgetBytes, predictedPeakBytes, measuredPeakBytes} = verdict;
  const {baseStepNs, predictedStepNs, measuredStepNs, otherLoad} = verdict;
  return [
    row('Peak', formatBytes, [basePeakBytes, budgetBytes, predictedPeakBytes, measuredPeakBytes]),
    row(
      'Step',
      formatDuration,
      [baseStepNs, 0n, predictedStepNs, measuredStepNs],
      otherLoad === '' ? '' : 'not comparable',
    ),
  ];
}
