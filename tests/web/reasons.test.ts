// SPDX-License-Identifier: Apache-2.0
import {create} from '@bufbuild/protobuf';
import {expect, test} from 'vitest';
import {priceText, timingText} from '../../web/src/data/changes';
import {ExplanationSchema} from '../../web/src/gen/reprise/v1/planner_pb';

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
