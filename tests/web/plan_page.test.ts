// SPDX-License-Identifier: Apache-2.0
import {create} from '@bufbuild/protobuf';
import {expect, test} from 'vitest';
import {decisionRows} from '../../web/src/data/decisions';
import {needRows, quickestWithin, smallestFit} from '../../web/src/data/refusal';
import {domainOf, type Tradeoff} from '../../web/src/data/tradeoff';
import {Decision, InfeasibleSchema} from '../../web/src/gen/reprise/v1/plan_pb';
import {StorageExplanationSchema, WorkingSetSchema} from '../../web/src/gen/reprise/v1/planner_pb';

const storages = [
  create(StorageExplanationSchema, {
    storage: 0,
    name: 'attn',
    module: 'layers.0',
    bytes: 2048n,
    decision: Decision.RECOMPUTE,
    why: 'cheap',
    madeBy: 9,
    whatIf: {decision: Decision.SAVE, addedNs: -2_000_000n, addedBytes: 1024n},
  }),
  create(StorageExplanationSchema, {
    storage: 1,
    name: 'mlp',
    module: 'layers.1',
    bytes: 4096n,
    decision: Decision.SAVE,
    why: 'costly',
    madeBy: 3,
    recomputeNs: 5000n,
    aliveAtPeak: true,
    whatIf: {decision: Decision.RECOMPUTE, addedNs: 5000n, addedBytes: 0n},
  }),
  create(StorageExplanationSchema, {storage: 2, bytes: 1n, decision: Decision.SAVE, why: 'small'}),
];

test('a decision says what the other one costs, in time and in bytes', () => {
  const rows = decisionRows(storages, '', 'all', 'bytes');

  expect(rows.map((row) => row.name)).toEqual(['mlp', 'attn', 'storage 2']);
  expect(rows[0]).toMatchObject({
    decision: 'saved: costly to make again',
    other: 'recomputed: 5 us more per step',
  });
  expect(rows[1]!.other).toBe('saved: 2 ms less per step, 1.0 KiB more at the peak');
  expect(rows[2]!.other).toBe('');
});

test('decisions are searched, filtered and sorted', () => {
  const names = (...args: [string, 'all' | 'saved' | 'recomputed' | 'peak', 'bytes' | 'other']) =>
    decisionRows(storages, ...args).map((row) => row.name);

  expect(names('LAYERS.1', 'all', 'bytes')).toEqual(['mlp']);
  expect(names('cheap', 'all', 'bytes')).toEqual(['attn']);
  expect(names('', 'recomputed', 'bytes')).toEqual(['attn']);
  expect(names('', 'peak', 'bytes')).toEqual(['mlp']);
  // What would save most time first; what is not known last.
  expect(names('', 'all', 'other')).toEqual(['attn', 'mlp', 'storage 2']);
});

test('what an impossible budget needs adds up to the byte, named or not', () => {
  const need = create(WorkingSetSchema, {
    bytes: 10_000n,
    staticBytes: 3000n,
    workspaceBytes: 0n,
    storages,
  });

  const rows = needRows(need);

  expect(rows.reduce((sum, row) => sum + row.bytes, 0)).toBe(10_000);
  expect(rows.map((row) => row.bytes)).toEqual([3000, 2048, 4096, 1, 855]);
  expect(rows.at(-1)!.name).toMatch(/does not name them/);
  expect(needRows(create(WorkingSetSchema, {bytes: 1n, storages: [storages[2]!]}))).toHaveLength(1);
});

const point = (budgetBytes: number, peakBytes: number, overhead: number) => ({
  budgetBytes,
  peakBytes,
  overhead,
  bound: 0,
  dominated: false,
});
const curve: Tradeoff = {
  points: [point(100, 90, 0.3), point(120, 110, 0.2), point(150, 140, 0.05)],
  limit: undefined,
};

test('the smallest budget that fits is a point of the curve, or the one a refusal names', () => {
  const limit = create(InfeasibleSchema, {smallestBudgetBytes: 50n, smallestKnownBytes: 95n});

  expect(smallestFit(curve)).toEqual({bytes: 100, overhead: 0.3});
  expect(smallestFit({...curve, limit})).toEqual({bytes: 95, overhead: undefined});
  expect(smallestFit({points: [], limit: undefined})).toBeUndefined();
});

test('the quickest plan within some bytes is by its peak', () => {
  expect(quickestWithin(curve, 115)).toEqual({bytes: 120, overhead: 0.2});
  expect(quickestWithin(curve, 1000)).toEqual({bytes: 150, overhead: 0.05});
  expect(quickestWithin(curve, 89)).toBeUndefined();
});

test('budgets that are marked are on the axis while the curve is coming', () => {
  const early = {points: [point(1000, 900, 0)], limit: undefined};

  expect(domainOf(early, 1000, false, [400, 0])).toMatchObject({low: 400, high: 1000});
  expect(domainOf(early, 1000, false)!.low).toBeGreaterThan(900);
});
