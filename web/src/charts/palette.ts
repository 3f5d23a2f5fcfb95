// SPDX-License-Identifier: Apache-2.0

/** The page's colours, for canvases. */
import {CATEGORIES} from '../format/categories';
import type {Category} from '../gen/reprise/v1/graph_pb';

/** CSS variables of styles/tokens.css. */
const COLOURS = [
  ...(['text', 'soft', 'faint', 'grid', 'card', 'measured', 'predicted'] as const),
  ...(['base', 'budget', 'whatif', 'good', 'bad'] as const),
];

export interface Palette extends Readonly<Record<(typeof COLOURS)[number], string>> {
  readonly font: string;
  readonly category: ReadonlyMap<Category, string>;
}

export function readPalette(): Palette {
  // A colour is one for light and one for dark until an element has it.
  const probe = document.body.appendChild(document.createElement('i'));
  const style = getComputedStyle(probe);
  const value = (variable: string): string => {
    probe.style.color = `var(${variable})`;
    return style.color;
  };
  const colours = Object.fromEntries(COLOURS.map((name) => [name, value(`--${name}`)]));
  const palette = {
    ...(colours as Record<(typeof COLOURS)[number], string>),
    font: `11px ${style.getPropertyValue('--font').trim()}`,
    category: new Map(CATEGORIES.map((one) => [one.category, value(one.variable)])),
  };
  probe.remove();
  return palette;
}

/** Calls back when the page turns light or dark; returns what stops it. */
export function onTheme(changed: () => void): () => void {
  addEventListener('reprise-theme', changed);
  return () => removeEventListener('reprise-theme', changed);
}
