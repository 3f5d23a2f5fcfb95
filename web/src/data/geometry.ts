// SPDX-License-Identifier: Apache-2.0

/** Where things of the trade-off curve lie on the screen. No browser needed. */
import type {CurvePoint, Domain} from './tradeoff';

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
