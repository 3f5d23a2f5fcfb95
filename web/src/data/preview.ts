// SPDX-License-Identifier: Apache-2.0

/** What a page can say of a budget at once, from what it knows, until the planner has answered. */
import {formatBytes, num} from '../format/units';
import type {Plan} from '../gen/reprise/v1/plan_pb';
import type {PlacedCurve} from './step_axis';
import type {CurvePoint} from './tradeoff';

export type Preview = NonNullable<ReturnType<typeof previewOf>>;

/** Straight between the two known plans around a budget; `points` are sorted by budget. */
export function previewOf(
  budgetBytes: number,
  points: readonly CurvePoint[],
  plans: readonly Plan[],
) {
  const above = points.find((point) => point.budgetBytes >= budgetBytes) ?? points.at(-1);
  const below = points.findLast((point) => point.budgetBytes <= budgetBytes) ?? points[0];
  if (!above || !below) return undefined;
  const span = above.budgetBytes - below.budgetBytes;
  const share = span > 0 ? (budgetBytes - below.budgetBytes) / span : 0;
  const between = (from: number, to: number): number => from + share * (to - from);
  const names = [...new Set([below, above].map((point) => formatBytes(point.budgetBytes)))];
  return {
    budgetBytes,
    peakBytes: between(below.peakBytes, above.peakBytes),
    overhead: between(below.overhead, above.overhead),
    /** The nearest known plan for more memory; undefined: the step without a plan is. */
    plan: plans
      .filter((plan) => plan.feasible && num(plan.budgetBytes) >= budgetBytes)
      .sort((a, b) => num(a.budgetBytes) - num(b.budgetBytes))[0],
    text:
      names.length > 1
        ? `interpolated between the plans for ${names.join(' and ')}`
        : `as the plan for ${names[0]}`,
  };
}

/** The curve of the plan above, with what is over the peak cut off. */
export function previewCurve(curve: PlacedCurve, peakBytes: number): PlacedCurve {
  return {...curve, bytes: curve.bytes.map((bytes) => Math.min(bytes, peakBytes))};
}
