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
  const style = getComputedStyle(document.documentElement);
  const value = (name: string): string => style.getPropertyValue(name).trim();
  const colours = Object.fromEntries(COLOURS.map((name) => [name, value(`--${name}`)]));
  return {
    ...(colours as Record<(typeof COLOURS)[number], string>),
    font: `11px ${value('--font')}`,
    category: new Map(CATEGORIES.map((style) => [style.category, value(style.variable)])),
  };
}

/** Calls back when the page turns light or dark; returns what stops it. */
export function onTheme(changed: () => void): () => void {
  addEventListener('reprise-theme', changed);
  return () => removeEventListener('reprise-theme', changed);
}
