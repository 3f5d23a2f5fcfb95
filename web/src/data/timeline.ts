// SPDX-License-Identifier: Apache-2.0

/**
 * Memory over one step, as drawn. The server has already cut every curve down
 * to columns; here all curves of a picture are put on one grid of columns.
 *
 * A column keeps the largest and the smallest value in its slice of time,
 * through every cut: a one-sample peak is on the screen at any zoom.
 */
import type {Curve} from '../gen/reprise/v1/query_pb';
import type {Category} from '../gen/reprise/v1/graph_pb';
import {num} from '../format/units';

/** A part of an axis: ns since the start of a step, or places of ops. */
export interface Window {
  readonly from: number;
  readonly to: number;
}

/**
 * Columns of equal width: column i covers [start + i w, start + (i+1) w), in ns
 * since the start of the step or in places of ops.
 */
export interface Grid {
  readonly start: number;
  readonly column: number;
  readonly count: number;
}

/** One curve; a column nothing is known of holds NaN. */
export interface Columns {
  readonly start: number;
  readonly column: number;
  readonly max: Float64Array;
  readonly min: Float64Array;
}

export interface Peak {
  readonly at: number;
  readonly bytes: number;
}

/** A category's part of a stack. */
export interface Band {
  readonly category: Category;
  readonly max: Float64Array;
}

/** A curve with the facts about its whole step. */
export interface StepCurve {
  readonly columns: Columns;
  readonly stepNs: number;
  readonly peak: Peak;
  readonly bands: readonly Band[];
  readonly incomplete: boolean;
}

export function gridOver(window: Window, count: number): Grid {
  return {start: window.from, column: (window.to - window.from) / count, count};
}

/** What to ask the server for a part of a step (undefined: all of it), in about so many columns. */
export function curveRequest(runId: string, window: Window | undefined, width: number) {
  return {
    runId,
    widthPx: Math.max(200, Math.min(2048, Math.round(width))),
    t0Ns: BigInt(Math.round(window?.from ?? 0)),
    t1Ns: BigInt(Math.round(window?.to ?? 0)),
  };
}

/** Undefined for an absent or empty curve. */
export function stepCurve(curve: Curve | undefined): StepCurve | undefined {
  if (!curve || curve.maxBytes.length === 0) return undefined;
  const max = Float64Array.from(curve.maxBytes, Number);
  const min =
    curve.minBytes.length === max.length ? Float64Array.from(curve.minBytes, Number) : max;
  return {
    columns: {start: num(curve.startNs), column: num(curve.columnNs), max, min},
    stepNs: num(curve.stepNs),
    peak: {at: num(curve.peakAtNs), bytes: num(curve.peakBytes)},
    bands: stacked(
      curve.bands.map((band) => ({
        category: band.category,
        max: Float64Array.from(band.maxBytes, Number),
      })),
      max,
    ),
    incomplete: curve.incomplete,
  };
}

/** Puts a curve on a grid: every column of the grid sees all that it overlaps. */
export function onGrid(columns: Columns, grid: Grid): Columns {
  const seen = unseen(grid);
  for (let i = 0; i < grid.count; i++) {
    const from = grid.start + i * grid.column;
    const [first, last] = overlap(columns, from, from + grid.column);
    for (let j = first; j < last; j++) see(seen, i, columns.max[j]!, columns.min[j]!);
  }
  return seen;
}

function unseen({start, column, count}: Grid): Columns {
  const max = new Float64Array(count).fill(NaN);
  return {start, column, max, min: max.slice()};
}

/** Makes a column reach as far as these values do; NaN reaches nowhere. */
function see({max, min}: Columns, i: number, high: number, low: number): void {
  if (high > max[i]! || Number.isNaN(max[i]!)) max[i] = high;
  if (low < min[i]! || Number.isNaN(min[i]!)) min[i] = low;
}

/**
 * The bands of a prediction stacked from the bottom: each holds the top of its
 * part. In a column that folds several moments, the largest values of the
 * parts may add up to more than the largest total; they share it then, so
 * that the stack ends where the curve runs.
 */
export function stacked(bands: readonly Band[], total: Float64Array): Band[] {
  const tops = bands.map((band) => ({
    category: band.category,
    max: new Float64Array(total.length),
  }));
  for (let i = 0; i < total.length; i++) {
    let sum = 0;
    for (const band of bands) sum += band.max[i] ?? 0;
    const share = sum > total[i]! ? total[i]! / sum : 1;
    let top = 0;
    bands.forEach((band, k) => {
      top += (band.max[i] ?? 0) * share;
      tops[k]!.max[i] = top;
    });
  }
  return tops;
}

/**
 * Puts samples on a grid: each lasts from where it stands to the next, the last
 * one to `end`. Between `end` and the end of the grid nothing is known.
 */
export function samplesOnGrid(
  at: ArrayLike<number>,
  bytes: ArrayLike<number>,
  end: number,
  grid: Grid,
): Columns | undefined {
  const count = Math.min(at.length, bytes.length);
  if (count === 0) return undefined;
  const seen = unseen(grid);
  for (let k = 0; k < count; k++) {
    const from = at[k]!;
    const to = k + 1 < count ? at[k + 1]! : Math.max(end, from);
    const value = bytes[k]!;
    // A sample of no length still has its memory: it counts in its column.
    const begin = Math.floor((from - grid.start) / grid.column);
    const first = Math.max(0, begin);
    const last = Math.min(
      grid.count,
      Math.max(Math.ceil((to - grid.start) / grid.column), begin + 1),
    );
    for (let i = first; i < last; i++) see(seen, i, value, value);
  }
  return seen;
}

/** The highest point in [from, to), or undefined when nothing is there. */
export function peakIn(columns: Columns, from: number, to: number): Peak | undefined {
  const [first, last] = overlap(columns, from, to);
  let peak: Peak | undefined;
  for (let i = first; i < last; i++) {
    const bytes = columns.max[i]!;
    if (!Number.isNaN(bytes) && (peak === undefined || bytes > peak.bytes)) {
      peak = {at: columns.start + i * columns.column, bytes};
    }
  }
  return peak;
}

/** The exec that runs at a time: its place in the schedule's execs, or -1. */
export function execAt(startsNs: ArrayLike<number>, at: number): number {
  return lastUpTo(startsNs.length, (i) => startsNs[i]!, at);
}

/** The last of `count` things, in order of where they start, that starts at `at` or before; or -1. */
export function lastUpTo(count: number, startOf: (i: number) => number, at: number): number {
  let low = 0;
  let high = count;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (startOf(middle) <= at) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

/** Zooms by `factor` about `centre`, inside [0, length], to at least `least`. */
export function zoomed(
  window: Window,
  factor: number,
  centre: number,
  length: number,
  least = 100,
): Window {
  const span = Math.min(length, Math.max(least, (window.to - window.from) * factor));
  const share = (centre - window.from) / (window.to - window.from);
  return moved(centre - share * span, span, length);
}

/** Moves by `share` of the window's width. */
export function panned(window: Window, share: number, length: number): Window {
  const span = window.to - window.from;
  return moved(window.from + share * span, span, length);
}

function moved(wanted: number, span: number, length: number): Window {
  const from = Math.round(Math.max(0, Math.min(length - span, wanted)));
  return {from, to: Math.round(Math.min(length, from + span))};
}

function overlap(columns: Columns, from: number, to: number): [number, number] {
  const {start, column, max} = columns;
  const first = Math.max(0, Math.floor((from - start) / column));
  const last = Math.min(max.length, Math.ceil((to - start) / column));
  return [first, last];
}
