// SPDX-License-Identifier: Apache-2.0

/** Keys that work anywhere on a page. */
import type {AxisView} from './axis_view';

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
