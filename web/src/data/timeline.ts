// SPDX-License-Identifier: Apache-2.0

/**
 * Memory over one step, as drawn. The server has already cut every curve down
 * to columns; here all curves of a picture are put on one grid of columns.
 *
 * A column keeps the largest and the smallest value in its slice of time,
 * through every cut: a one-sample peak is on the screen at any zoom.
 */
import type {Curve} from '../gen/reprise/v1/query_pb';
import type {PredictedTimeline} from '../gen/reprise/v1/plan_pb';
import type {Category} from '../gen/reprise/v1/graph_pb';
import {num} from './number';
import type {Window} from '../url/state';

/** Columns of equal width: column i covers [startNs + i w, startNs + (i+1) w). */
export interface Grid {
  readonly startNs: number;
  readonly columnNs: number;
  readonly count: number;
}

/** One curve; a column nothing is known of holds NaN. */
export interface Columns {
  readonly startNs: number;
  readonly columnNs: number;
  readonly max: Float64Array;
  readonly min: Float64Array;
}

export interface Peak {
  readonly atNs: number;
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
  readonly step: number;
  readonly bands: readonly Band[];
  readonly incomplete: boolean;
}

export function gridOver(window: Window, count: number): Grid {
  return {startNs: window.fromNs, columnNs: (window.toNs - window.fromNs) / count, count};
}

/** Undefined for an absent or empty curve. */
export function stepCurve(curve: Curve | undefined): StepCurve | undefined {
  if (!curve || curve.maxBytes.length === 0) return undefined;
  const max = Float64Array.from(curve.maxBytes, Number);
  const min =
    curve.minBytes.length === max.length ? Float64Array.from(curve.minBytes, Number) : max;
  return {
    columns: {startNs: num(curve.startNs), columnNs: num(curve.columnNs), max, min},
    stepNs: num(curve.stepNs),
    peak: {atNs: num(curve.peakAtNs), bytes: num(curve.peakBytes)},
    step: Number(curve.step),
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
  const max = new Float64Array(grid.count).fill(NaN);
  const min = new Float64Array(grid.count).fill(NaN);
  for (let i = 0; i < grid.count; i++) {
    const from = grid.startNs + i * grid.columnNs;
    const [first, last] = overlap(columns, from, from + grid.columnNs);
    for (let j = first; j < last; j++) {
      const high = columns.max[j]!;
      const low = columns.min[j]!;
      if (!(max[i]! >= high)) max[i] = Number.isNaN(high) ? max[i]! : high;
      if (!(min[i]! <= low)) min[i] = Number.isNaN(low) ? min[i]! : low;
    }
  }
  return {startNs: grid.startNs, columnNs: grid.columnNs, max, min};
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

/** Puts a prediction, one point per executed op, on a grid. */
export function predictedOnGrid(
  predicted: PredictedTimeline,
  stepNs: number,
  grid: Grid,
): Columns | undefined {
  const count = Math.min(predicted.startNs.length, predicted.bytes.length);
  if (count === 0) return undefined;
  const max = new Float64Array(grid.count).fill(NaN);
  const min = new Float64Array(grid.count).fill(NaN);
  for (let k = 0; k < count; k++) {
    const from = Number(predicted.startNs[k]);
    const to = k + 1 < count ? Number(predicted.startNs[k + 1]) : Math.max(stepNs, from);
    const bytes = Number(predicted.bytes[k]);
    // An op of no length still has its memory: it counts in its column.
    const first = Math.max(0, Math.floor((from - grid.startNs) / grid.columnNs));
    const end = Math.ceil((to - grid.startNs) / grid.columnNs);
    const last = Math.min(
      grid.count,
      Math.max(end, Math.floor((from - grid.startNs) / grid.columnNs) + 1),
    );
    for (let i = first; i < last; i++) {
      if (!(max[i]! >= bytes)) max[i] = bytes;
      if (!(min[i]! <= bytes)) min[i] = bytes;
    }
  }
  return {startNs: grid.startNs, columnNs: grid.columnNs, max, min};
}

/** The highest point in [fromNs, toNs), or undefined when nothing is there. */
export function peakIn(columns: Columns, fromNs: number, toNs: number): Peak | undefined {
  const [first, last] = overlap(columns, fromNs, toNs);
  let peak: Peak | undefined;
  for (let i = first; i < last; i++) {
    const bytes = columns.max[i]!;
    if (!Number.isNaN(bytes) && (peak === undefined || bytes > peak.bytes)) {
      peak = {atNs: columns.startNs + i * columns.columnNs, bytes};
    }
  }
  return peak;
}

/** The exec that runs at a time: its place in the schedule's execs, or -1. */
export function execAt(startsNs: ArrayLike<number>, atNs: number): number {
  let low = 0;
  let high = startsNs.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (startsNs[middle]! <= atNs) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

/** Zooms by `factor` about `centreNs`, inside [0, stepNs], to at least 100 ns. */
export function zoomed(window: Window, factor: number, centreNs: number, stepNs: number): Window {
  const span = Math.min(stepNs, Math.max(100, (window.toNs - window.fromNs) * factor));
  const share = (centreNs - window.fromNs) / (window.toNs - window.fromNs);
  return placed(centreNs - share * span, span, stepNs);
}

/** Moves by `share` of the window's width. */
export function panned(window: Window, share: number, stepNs: number): Window {
  const span = window.toNs - window.fromNs;
  return placed(window.fromNs + share * span, span, stepNs);
}

function placed(fromNs: number, span: number, stepNs: number): Window {
  const from = Math.round(Math.max(0, Math.min(stepNs - span, fromNs)));
  return {fromNs: from, toNs: Math.round(Math.min(stepNs, from + span))};
}

function overlap(columns: Columns, fromNs: number, toNs: number): [number, number] {
  const {startNs, columnNs, max} = columns;
  const first = Math.max(0, Math.floor((fromNs - startNs) / columnNs));
  const last = Math.min(max.length, Math.ceil((toNs - startNs) / columnNs));
  return [first, last];
}
