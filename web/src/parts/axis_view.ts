// SPDX-License-Identifier: Apache-2.0

/** Moving and zooming over an axis of which a part is on the screen. */
import {panned, zoomed, type Window} from '../data/timeline';

export interface AxisView {
  /** The part, or all of it where that is as long. */
  readonly change: (next: Window) => void;
  readonly whole: () => void;
  readonly pan: (share: number) => void;
  readonly zoom: (factor: number, about?: number) => void;
}

export function axisView(
  /** What is on the screen, how long the axis is, and the shortest part of it, as of now. */
  now: () => {readonly view: Window; readonly length: number; readonly least: number},
  show: (next: Window | undefined) => void,
): AxisView {
  const change = (next: Window): void =>
    show(next.from <= 0 && next.to >= now().length ? undefined : next);
  return {
    change,
    whole: () => show(undefined),
    pan: (share) => change(panned(now().view, share, now().length)),
    zoom: (factor, about) => {
      const {view, length, least} = now();
      change(zoomed(view, factor, about ?? (view.from + view.to) / 2, length, least));
    },
  };
}
