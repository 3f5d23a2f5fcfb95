// SPDX-License-Identifier: Apache-2.0

/** A picture of rectangles: what stands where, in which colour, and what a tooltip says of it. */
import type {TooltipContent} from '../format/tooltip';
import type {Category} from '../gen/reprise/v1/graph_pb';

/** What something lies on. */
export interface Ground {
  /** Parts of the width of the picture. */
  readonly left: number;
  readonly right: number;
  /** In CSS pixels, from the top of the picture. */
  readonly y: number;
  readonly height: number;
}

export interface Shape extends Ground, TooltipContent {
  /** Whose colour it has; undefined: that of predictions. */
  readonly category?: Category;
  /** How much of its height is filled, from the bottom; all. */
  readonly filled?: number;
}

export interface Shapes {
  /** In the order in which they are drawn; the last is on top. */
  readonly shapes: readonly Shape[];
  readonly ground: readonly Ground[];
  readonly height: number;
}

const ROW = 24;
const BAR = 17;

/** One row after another, each with a bar. */
export function rowAt(row: number): Ground {
  return {left: 0, right: 1, y: row * ROW + (ROW - BAR) / 2, height: BAR};
}

export function heightOf(rows: number): number {
  return rows * ROW;
}
