// SPDX-License-Identifier: Apache-2.0

/** Round numbers on an axis. */
import type {Axis} from '../data/folded_axis';
import {BYTE_UNITS, TIME_UNITS} from '../format/units';

/** Multiples of 1, 2 or 5 times a power of ten that cut [low, high] in about `count`. */
export function decimalTicks(low: number, high: number, count: number): number[] {
  const span = high - low;
  if (!(span > 0) || count < 1) return [low];
  const power = 10 ** Math.floor(Math.log10(span / count));
  const share = span / count / power;
  const step = power * (share <= 1 ? 1 : share <= 2 ? 2 : share <= 5 ? 5 : 10);
  return multiples(low, high, step);
}

/**
 * Round numbers of ops, on an axis that is not as wide everywhere: as far apart on
 * the screen as about `count` of them are on an even one.
 */
export function opTicks(axis: Axis, low: number, high: number, count: number): number[] {
  const even = decimalTicks(low, high, count);
  const step = Math.max(1, (even[1] ?? 1) - (even[0] ?? 0));
  const ticks: number[] = [];
  for (const op of multiples(axis.place(low), axis.place(high), step)) {
    const at = axis.at(op);
    if (Number.isInteger(op) && at - (ticks.at(-1) ?? -Infinity) >= step * 0.9) ticks.push(at);
  }
  return ticks;
}

/** Powers of two, or 10 and 100 of a binary unit: 0, 256 MiB, 512 MiB ... */
export function byteTicks(low: number, high: number, count: number): number[] {
  const span = high - low;
  if (!(span > 0) || count < 1) return [low];
  return multiples(low, high, 2 ** Math.ceil(Math.log2(span / count)));
}

function multiples(low: number, high: number, step: number): number[] {
  const ticks: number[] = [];
  const first = Math.ceil(low / step - 1e-9);
  for (let i = first; i * step <= high + step * 1e-9; i++) {
    // Adding the step again and again would drift: 0.1 + 0.2.
    ticks.push(Number((i * step).toPrecision(12)));
  }
  return ticks;
}

/** Byte ticks in the unit of the largest: ["0", "2 GiB", "4 GiB"]. */
export const byteLabels = (ticks: readonly number[]) => inOneUnit(ticks, BYTE_UNITS, 1, 3);

/** Time ticks in one unit: ["0", "100 ms", "200 ms"]. */
export const timeLabels = (ticks: readonly number[]) => inOneUnit(ticks, TIME_UNITS, 2, 6);

/** In the largest unit of which there are `least`; it stands at every number, so that none has to look for it. */
function inOneUnit(
  ticks: readonly number[],
  units: typeof BYTE_UNITS,
  least: number,
  decimals: number,
): string[] {
  const largest = Math.max(...ticks.map(Math.abs));
  const [unit, size] = units.findLast((one) => largest >= least * one[1]) ?? units[0]!;
  const numbers = ticks.map((tick) => Number((tick / size).toFixed(decimals)));
  return numbers.map((number) => (number === 0 ? '0' : `${number} ${unit}`));
}
