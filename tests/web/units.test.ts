// SPDX-License-Identifier: Apache-2.0
import {expect, test} from 'vitest';
import table from '../fixtures/units.json';
import {
  formatAgo,
  formatBytes,
  formatBytesUp,
  formatCount,
  formatDuration,
  formatElapsed,
  formatPercent,
} from '../../web/src/format/units';

test('bytes print as in the table shared with C++ and Python', () => {
  expect(table.length).toBeGreaterThan(10);
  for (const [bytes, text] of table) expect(formatBytes(Number(bytes))).toBe(text);
});

test('what is needed is rounded up, so that the printed number is enough', () => {
  expect(formatBytesUp(1023)).toBe('1023 B');
  expect(formatBytesUp(3 * 2 ** 30)).toBe('3.0 GiB');
  expect(formatBytesUp(3 * 2 ** 30 + 1)).toBe('3.1 GiB');
});

test('durations have three digits and no trailing zeros', () => {
  expect(formatDuration(0)).toBe('0 ns');
  expect(formatDuration(999)).toBe('999 ns');
  expect(formatDuration(1_500)).toBe('1.5 us');
  expect(formatDuration(41_260)).toBe('41.3 us');
  expect(formatDuration(412_000_000)).toBe('412 ms');
  expect(formatDuration(1_234_567_890)).toBe('1.23 s');
  expect(formatDuration(3_600_000_000_000)).toBe('3600 s');
  expect(formatDuration(-1_500)).toBe('-1.5 us');
});

test('a duration that rounds up moves to the next unit', () => {
  expect(formatDuration(999_499)).toBe('999 us');
  expect(formatDuration(999_500)).toBe('1 ms');
  expect(formatDuration(999_499_999)).toBe('999 ms');
  expect(formatDuration(999_500_000)).toBe('1 s');
});

test('percentages have one decimal and a sign on request', () => {
  expect(formatPercent(0.0937)).toBe('9.4 %');
  expect(formatPercent(0.0937, true)).toBe('+9.4 %');
  expect(formatPercent(-0.009, true)).toBe('-0.9 %');
  expect(formatPercent(0, true)).toBe('+0.0 %');
  expect(formatPercent(-0.0001)).toBe('0.0 %');
  expect(formatPercent(NaN)).toBe('? %');
});

test('counts have a comma at every thousand', () => {
  expect(formatCount(999)).toBe('999');
  expect(formatCount(1_204_551)).toBe('1,204,551');
});

test('times past are said roughly, times that last precisely', () => {
  const now = 10 * 86_400_000;
  expect(formatAgo(now - 3_000, now)).toBe('just now');
  expect(formatAgo(now - 200_000, now)).toBe('3 min ago');
  expect(formatAgo(now - 90_000_000, now)).toBe('yesterday');
  expect(formatElapsed(42e9)).toBe('42 s');
  expect(formatElapsed(200e9)).toBe('3 min 20 s');
  expect(formatElapsed(7_500e9)).toBe('2 h 5 min');
});
