// SPDX-License-Identifier: Apache-2.0
import {create} from '@bufbuild/protobuf';
import {expect, test} from 'vitest';
import {changesByModule, type ModuleNode} from '../../web/src/data/changes';
import {decisionRows, type DecisionSort} from '../../web/src/data/decisions';
import {Decision} from '../../web/src/gen/reprise/v1/plan_pb';
import {
  StorageExplanationSchema,
  type StorageExplanation,
} from '../../web/src/gen/reprise/v1/planner_pb';

interface Given {
  readonly module?: string;
  readonly bytes?: number;
  readonly recompute?: boolean;
  readonly ns?: number;
  readonly times?: number;
  readonly atPeak?: boolean;
  readonly atBase?: boolean;
  readonly madeBy?: number;
}

function storage(id: number, given: Given): StorageExplanation {
  return create(StorageExplanationSchema, {
    storage: id,
    name: `s${id}`,
    module: given.module ?? '',
    bytes: BigInt(given.bytes ?? 1),
    decision: given.recompute ? Decision.RECOMPUTE : Decision.SAVE,
    recomputeNs: BigInt(given.ns ?? 0),
    timesRecomputed: given.times ?? 0,
    madeBy: given.madeBy ?? 100 - id,
    aliveAtPeak: given.atPeak ?? false,
    aliveAtBasePeak: given.atBase ?? false,
  });
}

const names = (node: ModuleNode): string[] => node.children.map((child) => child.name);

test('a module counts all that lies below it', () => {
  const root = changesByModule(
    [
      storage(0, {module: 'layers.0.mlp', bytes: 8}),
      storage(1, {
        module: 'layers.0.attn',
        bytes: 4,
        recompute: true,
        ns: 5,
        times: 2,
      }),
      storage(2, {module: 'head', bytes: 2}),
    ],
    [0, 2],
  );

  expect(root).toMatchObject({
    saved: {count: 2, bytes: 10},
    recomputed: {bytes: 4},
    recomputeNs: 10,
  });
  expect(names(root)).toEqual(['head', 'layers.0']);
  expect(root.children[1]).toMatchObject({saved: {bytes: 8}, recomputed: {bytes: 4}});
});

test('an op that makes two storages is paid for once', () => {
  const given = {module: 'norm', recompute: true, ns: 7, madeBy: 4};

  const root = changesByModule([storage(0, given), storage(1, given)], []);

  expect(root).toMatchObject({recomputed: {count: 2}, recomputeNs: 7});
});

test('what dies inside the forward pass is no decision worth showing', () => {
  const root = changesByModule([storage(0, {module: 'a'}), storage(1, {module: 'b'})], [1]);

  expect(names(root)).toEqual(['b']);
});

test('what is copied to host memory is counted apart, by module', () => {
  const sent = {...storage(1, {module: 'a', bytes: 5}), decision: Decision.OFFLOAD};
  const storages = [storage(0, {module: 'b', bytes: 8}), sent, {...sent, storage: 2, bytes: 2n}];

  const root = changesByModule(storages, [0, 1]);

  expect(root).toMatchObject({saved: {count: 1, bytes: 8}, host: {count: 2, bytes: 7}});
  expect(names(root)).toEqual(['a', 'b']);
  expect(root.children[0]).toMatchObject({saved: {count: 0}, host: {bytes: 7}});
  expect(decisionRows(storages, '', 'host', 'bytes').map((row) => row.storage)).toEqual([1, 2]);
});

test('modules stand in natural order', () => {
  const paths = ['layers.10', 'layers.2', 'layers.0'];
  const root = changesByModule(
    paths.map((module, id) => storage(id, {module})),
    [0, 1, 2],
  );

  expect(names(root.children[0]!)).toEqual(['0', '2', '10']);
});

test('a module with nothing beside it reads as one line', () => {
  const root = changesByModule([storage(0, {module: 'model.body.block'})], [0]);

  expect(names(root)).toEqual(['model.body.block']);
  expect(root.children[0]!.path).toBe('model.body.block');
});

test('the table shows what is alive at the peak in question', () => {
  const storages = [storage(0, {atPeak: true, atBase: true}), storage(1, {atBase: true})];
  const shown = (kind: 'peak' | 'base'): number[] =>
    decisionRows(storages, '', kind, 'place').map((row) => row.storage);

  expect(shown('peak')).toEqual([0]);
  // Made by op 100 - id: the last was made first.
  expect(shown('base')).toEqual([1, 0]);
});

test('the table is sorted by size, age, cost or name, and turned around', () => {
  const storages = [
    storage(0, {bytes: 4, ns: 1}),
    storage(1, {bytes: 9, ns: 3}),
    storage(2, {bytes: 4, ns: 2}),
  ];
  const order = (key: DecisionSort, reverse = false): number[] =>
    decisionRows(storages, '', 'all', key, reverse).map((row) => row.storage);

  expect(order('bytes')).toEqual([1, 0, 2]);
  expect(order('cost')).toEqual([1, 2, 0]);
  expect(order('place')).toEqual([2, 1, 0]);
  expect(order('name', true)).toEqual([2, 1, 0]);
  expect(order('cost', true)).toEqual([0, 2, 1]);
});
