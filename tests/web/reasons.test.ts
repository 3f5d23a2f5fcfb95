// SPDX-License-Identifier: Apache-2.0
import {create} from '@bufbuild/protobuf';
import {expect, test} from 'vitest';
import {priceText, reasonRows, timingText} from '../../web/src/data/reasons';
import {Decision} from '../../web/src/gen/reprise/v1/plan_pb';
import {
  ExplanationSchema,
  StorageGroupSchema,
  type StorageGroup,
} from '../../web/src/gen/reprise/v1/planner_pb';

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
  expect(rows[0]).toMatchObject({decision: Decision.RECOMPUTE, bytes: 3n, why: 'cheap'});
});

// What convert_explain_test.cc asks of `reprise explain`.
function priced(price: number, peakBytes: number, staticBytes: number, addedNs: number): string {
  return priceText(
    create(ExplanationSchema, {
      plan: {
        feasible: true,
        peakBytes: BigInt(peakBytes),
        baseTimeNs: 1000n,
        timeNs: BigInt(1000 + addedNs),
      },
      priceNsPerByte: price,
      workingSet: {staticBytes: BigInt(staticBytes)},
    }),
  );
}

const KIB = 2 ** 10;
const MIB = 2 ** 20;
const GIB = 2 ** 30;

test('the price of memory is a time per unit that is small beside the step', () => {
  expect(priced(1e6 / GIB, 10 * GIB, 0, 1e9)).toBe('one more GiB saves 1 ms');
  expect(priced(1e6 / MIB, 10 * GIB, 1, 1e9)).toBe('one more MiB saves 1 ms');
  expect(priced(36e6 / MIB, 159 * MIB, 43 * MIB, 1.31e9)).toBe('one more MiB saves 36 ms');
  expect(priced(1e6 / KIB, 10 * MIB - 1, 0, 1e9)).toBe('one more KiB saves 1 ms');
  expect(priced(5, 10 * KIB - 1, 0, 1e9)).toBe('one more byte saves 5 ns');
  expect(priced(5, 0, 0, 1e9)).toBe('one more byte saves 5 ns');
});

test('more memory saves no more time than is recomputed', () => {
  expect(priced(36e6 / MIB, 159 * MIB, 0, 20e6)).toBe('one more MiB saves 20 ms');
  expect(priced(36e6 / MIB, 159 * MIB, 0, 0)).toBe('');
  expect(priced(0, 159 * MIB, 0, 20e6)).toBe('');
  expect(priceText(undefined)).toBe('');
});

test('whose clock the times of ops are of is said where kernels were asked for', () => {
  expect(timingText('kernels')).toBe('An op takes as long as its kernels.');
  expect(timingText('host: CUPTI is held by nsys: 2 of it')).toBe(
    'Ops are timed by the host: CUPTI is held by nsys: 2 of it.',
  );
  expect(timingText('')).toBe('');
});
