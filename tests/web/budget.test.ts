// SPDX-License-Identifier: Apache-2.0
import {expect, test} from 'vitest';
import {budgetText, sliderStep, snap} from '../../web/src/format/budget';

test('a budget is the shortest text that means exactly its bytes', () => {
  expect(budgetText(24 * 2 ** 30)).toBe('24GiB');
  expect(budgetText(24.25 * 2 ** 30)).toBe('24.25GiB');
  expect(budgetText(540 * 2 ** 20)).toBe('540MiB');
  expect(budgetText(1_000_000_001)).toBe('1000000001');
});

test('every stop of a slider has a short exact text', () => {
  const low = 331_456_789;
  const high = 907_654_321;
  const step = sliderStep(high - low);

  const stop = snap(500_000_000, step, low, high);

  expect(Number.isInteger(Math.log2(step))).toBe(true);
  expect(stop % step).toBe(0);
  expect(budgetText(stop)).toMatch(/^[\d.]{1,7}MiB$/);
});

test('a slider stays inside its bounds', () => {
  expect(snap(5, 10, 12, 97)).toBe(20);
  expect(snap(99, 10, 12, 97)).toBe(90);
  expect(snap(44, 10, 12, 97)).toBe(40);
});
