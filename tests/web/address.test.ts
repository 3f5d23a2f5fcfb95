// SPDX-License-Identifier: Apache-2.0
import {afterEach, beforeEach, expect, test, vi} from 'vitest';
import {Address} from '../../web/src/url/address';

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

function watched() {
  const shown: string[] = [];
  return {shown, address: new Address((one) => shown.push(one))};
}

test('a change of the address is shown at once', () => {
  const {shown, address} = watched();

  address.show('/a', false);
  address.show('/b', false);

  expect(shown).toEqual(['/a', '/b']);
});

test('of those of a slider that moves some are shown, and the last one always', () => {
  const {shown, address} = watched();

  for (let i = 0; i < 100; i++) {
    address.show(`/${i}`, true);
    vi.advanceTimersByTime(16);
  }
  vi.advanceTimersByTime(1000);

  expect(shown[0]).toBe('/0');
  expect(shown.length).toBeLessThanOrEqual(12);
  expect(shown.at(-1)).toBe('/99');
});

test('another page begins when the address of this one is complete', () => {
  const {shown, address} = watched();
  address.show('/a', true);
  address.show('/b', true);

  address.flush();
  address.flush();

  expect(shown).toEqual(['/a', '/b']);
});

test('what a step back in the history has overtaken is not shown', () => {
  const {shown, address} = watched();
  address.show('/a', true);
  address.show('/b', true);

  address.forget();
  vi.advanceTimersByTime(1000);

  expect(shown).toEqual(['/a']);
});
