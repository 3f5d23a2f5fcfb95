// SPDX-License-Identifier: Apache-2.0

/**
 * The trade-off curve: what each budget costs, what is proven about it, and
 * from where on no plan fits.
 */
import type {Infeasible, Plan} from '../gen/reprise/v1/plan_pb';
import type {TradeoffPoint} from '../gen/reprise/v1/planner_pb';
import type {Verdict} from '../gen/reprise/v1/query_pb';
import {num} from '../format/units';

export interface CurvePoint {
  readonly budgetBytes: number;
  readonly peakBytes: number;
  readonly overhead: number;
  readonly bound: number;
  /** A smaller budget has a plan that takes less time. */
  readonly dominated: boolean;
}

export interface Tradeoff {
  /** Feasible points, smallest budget first. */
  readonly points: readonly CurvePoint[];
  /** Of the largest impossible budget; undefined when all were possible. */
  readonly limit: Infeasible | undefined;
}

export const EMPTY_TRADEOFF: Tradeoff = {points: [], limit: undefined};

/** From what the stream has brought so far, in any order. */
export function tradeoff(received: readonly TradeoffPoint[]): Tradeoff {
  const feasible = received
    .filter((point) => point.feasible)
    .map((point) => ({
      budgetBytes: num(point.budgetBytes),
      peakBytes: num(point.peakBytes),
      overhead: point.overhead,
      bound: point.bound,
    }))
    .sort((a, b) => a.budgetBytes - b.budgetBytes);

  const points = feasible.map((point) => ({
    ...point,
    dominated: feasible.some(
      (other) =>
        other.budgetBytes <= point.budgetBytes &&
        other.peakBytes <= point.peakBytes &&
        other.overhead < point.overhead - 1e-9,
    ),
  }));

  const limits = received.flatMap(({infeasible}) => infeasible ?? []);
  limits.sort((a, b) => Number(b.smallestBudgetBytes - a.smallestBudgetBytes));
  return {points, limit: limits[0]};
}

export type Domain = NonNullable<ReturnType<typeof domainOf>>;

/**
 * The budgets worth showing: from somewhat below what is possible to what the
 * step takes without a plan. Undefined while the curve has no point yet. While
 * smaller budgets may still come (not `done`), none is said to be impossible.
 * `marks` are budgets that are shown whatever the curve says; 0: none.
 */
export function domainOf(
  curve: Tradeoff,
  basePeakBytes: number,
  done: boolean,
  marks: readonly number[] = [],
) {
  const least = curve.points[0]?.budgetBytes;
  const most = curve.points[curve.points.length - 1]?.budgetBytes;
  const known = num(curve.limit?.smallestBudgetBytes) || (done ? least : undefined);
  const from = known ?? least;
  if (from === undefined) return undefined;
  const high = Math.max(basePeakBytes, most ?? 0, from);
  const margin = Math.max(high - from, high * 0.05) * 0.15;
  // What is marked on the axis is on it, also while the curve is still coming.
  const low = Math.max(0, Math.min(from - margin, ...marks.filter((mark) => mark > 0)));
  // Below `possible` no plan fits, or is known: the grey region is [low, possible).
  return {low, high: Math.max(high, ...marks), possible: known ?? low};
}

/** "op 17 aten.bmm.default (layers.3.attn)", as the server's sentences say it. */
export function limitingOp({blockingOp, blockingOpName, blockingModule}: Infeasible): string {
  const where = blockingModule === '' ? '' : ` (${blockingModule})`;
  return `op ${blockingOp} ${blockingOpName}${where}`;
}

/** The point whose budget is nearest. */
export function nearest(
  points: readonly CurvePoint[],
  budgetBytes: number,
): CurvePoint | undefined {
  const far = (point: CurvePoint): number => Math.abs(point.budgetBytes - budgetBytes);
  return [...points].sort((a, b) => far(a) - far(b))[0];
}

/** A plan on the picture of the curve. */
export function markOf(plan: Plan | undefined) {
  return plan?.feasible ? {bytes: num(plan.budgetBytes), overhead: plan.overhead} : undefined;
}

/** What was measured; undefined where peak or times are not known, or the times not comparable. */
export function measuredMark(verdict: Verdict | undefined) {
  if (!verdict || verdict.otherLoad !== '') return undefined;
  const [bytes, step, base] = [
    num(verdict.measuredPeakBytes),
    num(verdict.measuredStepNs),
    num(verdict.baseStepNs),
  ];
  return bytes > 0 && step > 0 && base > 0 ? {bytes, overhead: step / base - 1} : undefined;
}

// ---- where it lies on the screen ----

type Scale = ReturnType<typeof scale>;

/** Values to pixels and back: from [low, high] to [from, to]; `to` may lie before `from`. */
export function scale(low: number, high: number, from: number, to: number) {
  const span = high - low || 1;
  return {
    at: (value: number) => from + ((value - low) / span) * (to - from),
    value: (pixel: number) => low + ((pixel - from) / (to - from || 1)) * span,
  };
}

/**
 * The overheads to show: all of the plans, and what was measured as long as it
 * does not dwarf them (a job timed on a busy machine may be far off). What
 * lies outside is drawn as an arrow at the rim.
 */
export function overheadRange(
  points: readonly CurvePoint[],
  marks: readonly number[],
): {readonly bottom: number; readonly top: number} {
  const planned = Math.max(0.01, ...points.map((point) => point.overhead));
  const near = marks.filter((mark) => mark <= 2 * planned && mark >= -0.4 * planned);
  return {
    bottom: Math.min(0, ...near) * 1.2,
    top: Math.max(planned, ...near) * 1.12,
  };
}

/**
 * The plans as a path of steps: a budget between two points can run the plan
 * of the smaller one. Dominated points do not take part.
 */
export function planPath(
  points: readonly CurvePoint[],
  x: Scale,
  y: Scale,
  domain: Domain,
): string {
  const kept = points.filter((point) => !point.dominated);
  const steps = kept.map((point, i) => {
    const [px, py] = [round(x.at(point.budgetBytes)), round(y.at(point.overhead))];
    return i === 0 ? `M${px} ${py}` : `H${px}V${py}`;
  });
  return kept.length === 0 ? '' : `${steps.join('')}H${round(x.at(domain.high))}`;
}

/** The lower bound: straight between points, as it is known only at them. */
export function boundPath(points: readonly CurvePoint[], x: Scale, y: Scale): string {
  return points
    .map(
      (point, i) =>
        `${i === 0 ? 'M' : 'L'}${round(x.at(point.budgetBytes))} ${round(y.at(point.bound))}`,
    )
    .join('');
}

function round(value: number): number {
  return Math.round(value * 10) / 10;
}
