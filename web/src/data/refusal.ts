// SPDX-License-Identifier: Apache-2.0

/** Why no plan fits, byte by byte, and the smallest budget that does. */
import type {WorkingSet} from '../gen/reprise/v1/planner_pb';
import {STATIC_TEXT} from '../format/categories';
import {num} from '../format/units';
import type {Tradeoff} from './tradeoff';

/** What the blocking op has in memory at once; the rows add up to `bytes`. */
export function needRows(need: WorkingSet) {
  const row = (name: string, bytes: number, module = '') => ({name, bytes, module});
  const rows = [
    row(`resident during the whole step: ${STATIC_TEXT}`, num(need.staticBytes)),
    row('workspace of the op', num(need.workspaceBytes)),
    ...need.storages.map(({storage, name, bytes, module}) =>
      row(name || `storage ${storage}`, num(bytes), module),
    ),
  ].filter(({bytes}) => bytes > 0);
  // A bound over several ops names some of what it counts.
  const rest = num(need.bytes) - rows.reduce((sum, {bytes}) => sum + bytes, 0);
  if (rest > 0) rows.push(row('other storages that must stay; the proof does not name them', rest));
  return rows;
}

export interface SmallestFit {
  readonly bytes: number;
  /** Extra time as a fraction; undefined: there is a plan, and its time is not on the curve. */
  readonly overhead: number | undefined;
}

/** The smallest budget for which a plan is known, from the curve; undefined: none is. */
export function smallestFit({points, limit}: Tradeoff): SmallestFit | undefined {
  const first = points[0];
  const known = num(limit?.smallestKnownBytes);
  if (known > 0 && (first === undefined || known < first.budgetBytes)) {
    return {bytes: known, overhead: undefined};
  }
  return first && {bytes: first.budgetBytes, overhead: first.overhead};
}

/** The point that takes least time of those that fit in `bytes`; undefined: none does. */
export function quickestWithin({points}: Tradeoff, bytes: number): SmallestFit | undefined {
  let best: SmallestFit | undefined;
  for (const point of points) {
    if (point.peakBytes > bytes) continue;
    if (best === undefined || point.overhead < best.overhead! - 1e-12) {
      best = {bytes: point.budgetBytes, overhead: point.overhead};
    }
  }
  return best;
}
