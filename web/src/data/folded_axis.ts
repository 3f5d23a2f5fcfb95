// SPDX-License-Identifier: Apache-2.0

/**
 * The axis of ops on the screen. An optimizer has most of the ops and none of the decisions: its
 * ops are folded into a narrow band, unless a person wants them wide.
 *
 *   places   0 ... forward ... backward ... | optimizer, 1,000 ops ...................... |
 *   axis     0 ... forward ... backward ... | narrow |
 */
import {Phase} from '../gen/reprise/v1/graph_pb';
import {execAt, type Window} from './timeline';

export interface Axis {
  readonly length: number;
  /** Where a place stands on the axis, and what place stands there. */
  readonly at: (place: number) => number;
  readonly place: (at: number) => number;
}

/** The share of the axis that a folded optimizer takes. */
const BAND = 0.09;

/** Every place as wide as another. */
export function flatAxis(length: number): Axis {
  return {length, at: (place) => place, place: (at) => at};
}

/** Undefined where the optimizer takes no more room than its band would. */
export function foldedAxis(phases: readonly Phase[]): Axis | undefined {
  const folded = phases.filter((phase) => phase === Phase.OPTIMIZER).length;
  const width = (BAND * (phases.length - folded)) / ((1 - BAND) * folded);
  if (!(width > 0 && width < 1)) return undefined;
  const starts = new Float64Array(phases.length + 1);
  phases.forEach((phase, i) => {
    starts[i + 1] = starts[i]! + (phase === Phase.OPTIMIZER ? width : 1);
  });
  const last = phases.length - 1;
  const widthAt = (i: number): number => starts[i + 1]! - starts[i]!;
  return {
    length: starts[phases.length]!,
    at: (place) => {
      const i = Math.max(0, Math.min(last, Math.floor(place)));
      return starts[i]! + (place - i) * widthAt(i);
    },
    place: (at) => {
      const i = Math.max(0, Math.min(last, execAt(starts, at)));
      return i + (at - starts[i]!) / widthAt(i);
    },
  };
}

/** The places, as whole ones, that a part of the axis shows. */
export function placesOf(axis: Axis, {from, to}: Window): Window {
  return {from: Math.floor(axis.place(from)), to: Math.ceil(axis.place(to))};
}
