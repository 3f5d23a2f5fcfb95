// SPDX-License-Identifier: Apache-2.0

/**
 * Budgets as the slider hands them out. What a person types goes to the server
 * as typed: only the server knows what "0.5x" means for a graph.
 */
import {BYTE_UNITS} from './units';

/**
 * The shortest text that means exactly these bytes: 25769803776 -> "24GiB",
 * 26038239232 -> "24.25GiB", 1000 -> "1000".
 */
export function budgetText(bytes: number): string {
  // At most three decimals, and the same number again when read.
  const exact = BYTE_UNITS.slice(1, 5).findLast(
    ([, unit]) => bytes >= unit && Number.isInteger((bytes / unit) * 1000),
  );
  return exact ? `${bytes / exact[1]}${exact[0]}` : String(Math.round(bytes));
}

/**
 * Step of a slider over `span` bytes: a power of two, about 256 steps, never
 * less than 1 KiB, so that every stop has a short exact text.
 */
export function sliderStep(span: number): number {
  return Math.max(1024, 2 ** Math.floor(Math.log2(Math.max(1, span) / 256)));
}

/** The multiple of `step` next to `bytes`, inside [low, high]. */
export function snap(bytes: number, step: number, low: number, high: number): number {
  const snapped = Math.round(bytes / step) * step;
  if (snapped < low) return Math.min(high, Math.ceil(low / step) * step);
  if (snapped > high) return Math.max(low, Math.floor(high / step) * step);
  return snapped;
}
