// SPDX-License-Identifier: Apache-2.0
import {create} from '@bufbuild/protobuf';
import {expect, test} from 'vitest';
import {memoryParts, shortageOf, wouldHaveFitted} from '../../web/src/data/shortage';
import {Category} from '../../web/src/gen/reprise/v1/graph_pb';
import {MomentReason, MomentSchema} from '../../web/src/gen/reprise/v1/ingest_pb';

const GIB = 2n ** 30n;
const outOfMemory = {reason: MomentReason.OUT_OF_MEMORY, device: 0};
const point = (budgetBytes: number, overhead: number) => ({
  budgetBytes,
  peakBytes: budgetBytes,
  overhead,
  bound: 0,
  dominated: false,
});
const curve = {
  points: [point(4 * 2 ** 30, 0.4), point(9 * 2 ** 30, 0.1), point(12 * 2 ** 30, 0)],
  limit: undefined,
};

test('the plan that would have fitted keeps within what was held and what was free', () => {
  const shortage = shortageOf(
    create(MomentSchema, {
      ...outOfMemory,
      askedBytes: 3n * GIB,
      liveBytes: 8n * GIB,
      freeBytes: 2n * GIB,
      totalBytes: 16n * GIB,
      storages: [{bytes: 1000n, blockBytes: 1024n}, {bytes: 7n}],
    }),
  )!;

  expect(shortage.figures).toEqual([
    ['asked for', '3.0 GiB'],
    ['alive', '8.0 GiB'],
    ['free on device 0', '2.0 GiB'],
    ['of', '16.0 GiB'],
    ['lost to rounding of blocks', '24 B'],
  ]);
  expect(shortage.hopeless).toBe(false);
  expect(shortage.fragmentation.map((sentence) => sentence.split(':')[0])).toEqual([
    'Not by fragmentation of what was free',
    '6.0 GiB were neither alive nor free',
    'The allocator rounds sizes up',
  ]);
  expect(wouldHaveFitted(shortage, curve)).toEqual({
    bytes: 9 * 2 ** 30,
    overhead: 0.1,
  });
});

test('memory that was free in pieces is called fragmented', () => {
  const shortage = shortageOf(
    create(MomentSchema, {
      ...outOfMemory,
      askedBytes: GIB,
      liveBytes: GIB,
      freeBytes: GIB,
      totalBytes: 16n * GIB,
    }),
  )!;

  expect(shortage.fragmentation).toEqual([
    'As much was free, and not in one piece: the memory was fragmented.',
  ]);
});

test('no plan is offered for a request larger than all there was, nor where that is not known', () => {
  const hopeless = shortageOf(
    create(MomentSchema, {
      ...outOfMemory,
      askedBytes: 99n * GIB,
      liveBytes: GIB,
      totalBytes: GIB,
    }),
  )!;
  const unknown = shortageOf(create(MomentSchema, {...outOfMemory, liveBytes: GIB}))!;

  expect(hopeless.hopeless).toBe(true);
  expect(wouldHaveFitted(hopeless, curve)).toBeUndefined();
  expect(unknown.figures).toEqual([['alive', '1.0 GiB']]);
  expect(unknown.roomBytes).toBe(0);
  expect(unknown.fragmentation).toEqual([
    'Nobody said how much was free, so whether it was in pieces is not known.',
  ]);
  expect(wouldHaveFitted(unknown, curve)).toBeUndefined();
  expect(shortageOf(create(MomentSchema, {reason: MomentReason.KILLED}))).toBeUndefined();
});

test('the memory is drawn whole: what was alive by category, the rest, and what was free', () => {
  const parts = memoryParts(
    create(MomentSchema, {
      ...outOfMemory,
      liveBytes: 8n * GIB,
      freeBytes: 2n * GIB,
      totalBytes: 16n * GIB,
      storages: [
        {bytes: 3n * GIB, category: Category.PARAMETER},
        {bytes: GIB, category: Category.ACTIVATION},
        {bytes: GIB, category: Category.PARAMETER},
      ],
    }),
  );

  expect(parts.map(({name, bytes}) => [name, bytes / 2 ** 30])).toEqual([
    ['parameters', 4],
    ['activations', 1],
    ['alive, not listed', 3],
    ['neither alive nor free', 6],
    ['free', 2],
  ]);
});
