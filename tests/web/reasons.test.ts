// SPDX-License-Identifier: Apache-2.0
import {create} from '@bufbuild/protobuf';
import {expect, test} from 'vitest';
import {priceText, reasonRows, timingText} from '../../web/src/data/reasons';
import {Decision} from '../../web/src/gen/reprise/v1/plan_pb';
import {StorageGroupSchema, type StorageGroup} from '../../web/src/gen/reprise/v1/planner_pb';

function group(name: string, bytes: number, recompute: boolean): StorageGroup {
  return create(StorageGroupSchema, {
    name,
    count: 2,
    bytes: BigInt(bytes),
    decision: recompute ? Decision.RECOMPUTE : Decision.SAVE,
    why: recompute ? 'cheap' : 'costly',
  });
}

test('what is recomputed comes first, largest first, and only so many of each', () => {
  const rows = reasonRows(
    [group('a', 9, false), group('b', 1, true), group('c', 3, true), group('d', 2, true)],
    2,
  );

  expect(rows.map((row) => row.name)).toEqual(['c', 'd', 'a']);
  expect(rows[0]).toMatchObject({recomputed: true, bytes: 3, why: 'cheap'});
});

test('the price of memory is a time per GiB, where there is one', () => {
  expect(priceText(1e6 / 2 ** 30)).toBe('one more GiB saves 1 ms');
  expect(priceText(0)).toBe('');
});

test('whose clock the times of ops are of is said where kernels were asked for', () => {
  expect(timingText('kernels')).toBe('An op takes as long as its kernels.');
  expect(timingText('host: CUPTI is held by nsys: 2 of it')).toBe(
    'Ops are timed by the host: CUPTI is held by nsys: 2 of it.',
  );
  expect(timingText('')).toBe('');
});
