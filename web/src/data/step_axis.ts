// SPDX-License-Identifier: Apache-2.0

/**
 * One clock for every step of a step graph: the place of an op in the step as
 * it is without a plan.
 *
 *   op of the graph        0    1    2              3    4
 *   place                  0    1    2   2.33 2.67  3    4
 *   a plan runs            op 0 op 1 op 2  op 0 op 1  op 3 op 4
 *
 * The first run of op i has place i; what a plan runs again stands between the
 * two first runs around it. Predicted, measured and unplanned steps agree on
 * the places of their first runs, whatever their times are.
 */
import type {Peak} from './timeline';

/** Runs of ops in their order. */
export interface Execs {
  readonly places: Float64Array;
  /** The op of each. */
  readonly ops: Int32Array;
  /** Which run of its op it is: 0 the first. */
  readonly runs: Int32Array;
}

/** Bytes alive by place, one sample per run of an op. */
export interface PlacedCurve extends Execs {
  readonly bytes: Float64Array;
}

/** The runs of a schedule, each with its place. O(entries). */
export function placedExecs(schedule: readonly bigint[]): Execs {
  const ops = Int32Array.from(
    schedule.filter((entry) => entry >= 0n),
    Number,
  );
  const runs = new Int32Array(ops.length);
  const places = new Float64Array(ops.length);
  const seen = new Map<number, number>();
  let place = 0;
  let pending = 0;
  const spread = (end: number): void => {
    for (let k = 1; k <= pending; k++) places[end - pending + k - 1] = place + k / (pending + 1);
    pending = 0;
  };
  ops.forEach((op, i) => {
    const run = seen.get(op) ?? 0;
    seen.set(op, run + 1);
    runs[i] = run;
    if (run > 0) {
      pending++;
      return;
    }
    spread(i);
    place = Math.max(place, op);
    places[i] = place;
  });
  spread(ops.length);
  return {places, ops, runs};
}

/** The ops of a graph in their order, each once. */
export function baseExecs(count: number): Execs {
  return placedExecs(Array.from({length: count}, (_, op) => BigInt(op)));
}

export function placed(execs: Execs, bytes: ArrayLike<number | bigint>): PlacedCurve {
  const count = Math.min(execs.ops.length, bytes.length);
  return {
    places: execs.places.subarray(0, count),
    ops: execs.ops.subarray(0, count),
    runs: execs.runs.subarray(0, count),
    bytes: Float64Array.from({length: count}, (_, i) => Number(bytes[i])),
  };
}

/** The index of the sample that is this run of this op, or -1. O(samples). */
export function sampleOf(curve: PlacedCurve, op: number, run: number): number {
  return curve.ops.findIndex((one, i) => one === op && curve.runs[i] === run);
}

/** The highest sample that is the newest somewhere in [from, to), or -1. */
export function highestIn(curve: PlacedCurve, from: number, to: number): number {
  let best = -1;
  for (let i = 0; i < curve.places.length; i++) {
    if (curve.places[i]! >= to) break;
    const ends = curve.places[i + 1] ?? Infinity;
    if (ends <= from) continue;
    if (best < 0 || curve.bytes[i]! > curve.bytes[best]!) best = i;
  }
  return best;
}

/** Where a curve is highest. */
export function peakOf(curve: PlacedCurve | undefined): Peak | undefined {
  const at = curve ? highestIn(curve, -Infinity, Infinity) : -1;
  return at < 0 ? undefined : {at: curve!.places[at]!, bytes: curve!.bytes[at]!};
}

/** Most edits that an alignment tries: its work and memory grow with their square. */
const MOST_EDITS = 3000;

/**
 * For every entry of `a` the index of the entry of `b` that it is, or -1: the
 * longest common subsequence, by Myers' greedy algorithm. Undefined where the
 * two differ in more than 3,000 entries.
 */
export function aligned(a: readonly string[], b: readonly string[]): Int32Array | undefined {
  const match = new Int32Array(a.length).fill(-1);
  let front = 0;
  while (front < a.length && front < b.length && a[front] === b[front]) match[front] = front++;
  let back = 0;
  while (
    back < a.length - front &&
    back < b.length - front &&
    a[a.length - 1 - back] === b[b.length - 1 - back]
  ) {
    back++;
    match[a.length - back] = b.length - back;
  }
  const n = a.length - front - back;
  const m = b.length - front - back;
  if (n === 0 || m === 0) return match;

  // reach[k]: how far into `a` the best path on diagonal k has come.
  const most = Math.min(n + m, MOST_EDITS);
  const reach = new Int32Array(2 * most + 3);
  const at = (k: number): number => k + most + 1;
  const history: Int32Array[] = [];
  for (let edits = 0; edits <= most; edits++) {
    history.push(reach.slice(at(-edits) - 1, at(edits) + 2));
    for (let k = -edits; k <= edits; k += 2) {
      const down = k === -edits || (k !== edits && reach[at(k - 1)]! < reach[at(k + 1)]!);
      let x = down ? reach[at(k + 1)]! : reach[at(k - 1)]! + 1;
      let y = x - k;
      while (x < n && y < m && a[front + x] === b[front + y]) {
        x++;
        y++;
      }
      reach[at(k)] = x;
      if (x >= n && y >= m) {
        backtrack(history, n, m, (i, j) => void (match[front + i] = front + j));
        return match;
      }
    }
  }
  return undefined;
}

function backtrack(
  history: readonly Int32Array[],
  n: number,
  m: number,
  pair: (i: number, j: number) => void,
): void {
  let x = n;
  let y = m;
  for (let edits = history.length - 1; edits >= 0 && (x > 0 || y > 0); edits--) {
    // What was reached with one edit less: diagonals -edits - 1 to edits + 1.
    const reach = history[edits]!;
    const at = (k: number): number => reach[k + edits + 1]!;
    const k = x - y;
    const down = k === -edits || (k !== edits && at(k - 1) < at(k + 1));
    const fromX = edits === 0 ? 0 : down ? at(k + 1) : at(k - 1);
    const fromY = edits === 0 ? 0 : fromX - (down ? k + 1 : k - 1);
    const startX = edits === 0 ? 0 : down ? fromX : fromX + 1;
    while (x > startX) pair(--x, --y);
    x = fromX;
    y = fromY;
  }
}
