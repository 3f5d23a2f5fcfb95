// SPDX-License-Identifier: Apache-2.0

/** The page's colours, for canvases. */
import {CATEGORIES} from '../format/categories';
import type {Category} from '../gen/reprise/v1/graph_pb';

export interface Palette {
  readonly text: string;
  readonly soft: string;
  readonly faint: string;
  readonly grid: string;
  readonly card: string;
  readonly measured: string;
  readonly predicted: string;
  readonly base: string;
  readonly budget: string;
  readonly whatif: string;
  readonly good: string;
  readonly bad: string;
  readonly font: string;
  readonly category: ReadonlyMap<Category, string>;
}

export function readPalette(): Palette {
  const style = getComputedStyle(document.documentElement);
  const value = (name: string): string => style.getPropertyValue(name).trim();
  return {
    text: value('--text'),
    soft: value('--soft'),
    faint: value('--faint'),
    grid: value('--grid'),
    card: value('--card'),
    measured: value('--measured'),
    predicted: value('--predicted'),
    base: value('--base'),
    budget: value('--budget'),
    whatif: value('--whatif'),
    good: value('--good'),
    bad: value('--bad'),
    font: `11px ${value('--font')}`,
    category: new Map(CATEGORIES.map((style) => [style.category, value(style.variable)])),
  };
}

/** Calls back when the page turns light or dark; returns what stops it. */
export function onTheme(changed: () => void): () => void {
  addEventListener('reprise-theme', changed);
  return () => removeEventListener('reprise-theme', changed);
}
