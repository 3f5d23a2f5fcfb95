// SPDX-License-Identifier: Apache-2.0
import {expect, test} from 'vitest';
import {byteLabels, byteTicks, decimalTicks, timeLabels} from '../../web/src/charts/ticks';

const MIB = 2 ** 20;

test('bytes are cut at powers of two', () => {
  const ticks = byteTicks(0, 900 * MIB, 4);

  expect(ticks).toEqual([0, 256 * MIB, 512 * MIB, 768 * MIB]);
  expect(byteLabels(ticks)).toEqual(['0', '256 MiB', '512 MiB', '768 MiB']);
});

test('an axis speaks one unit, that of its largest number', () => {
  expect(byteLabels([0, 512 * MIB, 1024 * MIB])).toEqual(['0', '0.5 GiB', '1 GiB']);
  expect(timeLabels([0, 500e6, 1000e6])).toEqual(['0', '500 ms', '1000 ms']);
  expect(timeLabels([0, 2e9])).toEqual(['0', '2 s']);
});

test('decimal ticks are exact multiples', () => {
  expect(decimalTicks(0, 0.33, 4)).toEqual([0, 0.1, 0.2, 0.3]);
  expect(decimalTicks(-0.05, 0.2, 5)).toEqual([-0.05, 0, 0.05, 0.1, 0.15, 0.2]);
});

test('an axis without length has one tick', () => {
  expect(byteTicks(5, 5, 4)).toEqual([5]);
  expect(decimalTicks(1, 0, 4)).toEqual([1]);
});
