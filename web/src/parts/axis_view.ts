// SPDX-License-Identifier: Apache-2.0

/** Moving and zooming over an axis of which a part is on the screen, and keys of a page. */
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

type Actions = Readonly<Record<string, (() => void) | undefined>>;

/** Does what a key stands for, unless a person types, holds another key or has a dialog open. */
export function onPageKey(event: KeyboardEvent, actions: Actions): void {
  if (event.target instanceof HTMLInputElement) return;
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (!document.querySelector('dialog[open]')) actions[event.key]?.();
}

/** The keys of an axis: w and s zoom, a and d move along it, Esc shows all of it. */
export function axisKeys({zoom, pan, whole}: AxisView): Actions {
  return {
    w: () => zoom(0.5),
    s: () => zoom(2),
    a: () => pan(-0.25),
    d: () => pan(0.25),
    Escape: whole,
  };
}
