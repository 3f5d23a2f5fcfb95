// SPDX-License-Identifier: Apache-2.0
import {create} from '@bufbuild/protobuf';
import {expect, test} from 'vitest';
import {foldedText, liveParts, liveRows, nextPeak} from '../../web/src/data/live';
import type {Columns} from '../../web/src/data/timeline';
import {Category} from '../../web/src/gen/reprise/v1/graph_pb';
import {
  LiveAllocationSchema,
  LiveGroupSchema,
  LiveMemorySchema,
} from '../../web/src/gen/reprise/v1/query_pb';

const KIB = 1024n;

function columns(...max: number[]): Columns {
  return {start: 100, column: 10, max: Float64Array.from(max), min: Float64Array.from(max)};
}

test('a row says how long an allocation lived, and names it by address and use', () => {
  const rows = liveRows([
    create(LiveAllocationSchema, {
      address: 0x7f00n,
      use: 2,
      bytes: 2n * KIB,
      bornNs: 1_500_000n,
      freedNs: 3_000_000n,
      category: Category.ACTIVATION,
    }),
    create(LiveAllocationSchema, {address: 1n, bytes: 1n}),
    create(LiveAllocationSchema, {address: 2n, bytes: 1n, bornNs: -5n}),
  ]);

  expect(rows.map((row) => row.lived)).toEqual([
    '1.5 ms – 3 ms (1.5 ms)',
    'before the recording – not freed',
    'an earlier step – not freed',
  ]);
  expect(rows[0]!.name).toBe('7f00_2');
  expect(rows[0]!.category.name).toBe('activations');
});

test('the parts of what is alive are shares of all of it', () => {
  const parts = liveParts(
    [
      create(LiveGroupSchema, {category: Category.ACTIVATION, bytes: 300n, count: 2n}),
      create(LiveGroupSchema, {category: Category.UNKNOWN, bytes: 100n}),
    ],
    400,
  );

  expect(parts.map((part) => part.share)).toEqual([0.75, 0.25]);
});

test('what is folded is said, and nothing where nothing is', () => {
  const memory = create(LiveMemorySchema, {
    foldedCount: 1200n,
    foldedBytes: 3n * KIB,
    matchedBytes: 300n * KIB,
    unlistedBytes: 5n * KIB,
  });

  expect(foldedText(memory)).toBe(
    '1,200 smaller allocations not listed: 3.0 KiB, 1.0 %. ' +
      '5.0 KiB are alive that no record names: ' +
      'there before the recording, or in events that were folded.',
  );
  expect(foldedText(create(LiveMemorySchema))).toBe('');
});

test('the next peak is a local one, not the noise on the way to it', () => {
  const curve = columns(0, 400, 398, 1000, 200, 201, 200, 700, 650, 100);

  expect(nextPeak(curve, 0, 1)).toEqual({at: 130, bytes: 1000});
  expect(nextPeak(curve, 3, 1)).toEqual({at: 170, bytes: 700});
  expect(nextPeak(curve, 7, 1)).toBeUndefined();
  expect(nextPeak(curve, 9, -1)).toEqual({at: 170, bytes: 700});
  expect(nextPeak(curve, 7, -1)).toEqual({at: 130, bytes: 1000});
});
