// SPDX-License-Identifier: Apache-2.0
import {create} from '@bufbuild/protobuf';
import {expect, test} from 'vitest';
import {heldRows, heldText, opText, wasKilled} from '../../web/src/data/moments';
import {Category} from '../../web/src/gen/reprise/v1/graph_pb';
import {
  HeldStorageSchema,
  MomentReason,
  MomentSchema,
} from '../../web/src/gen/reprise/v1/ingest_pb';
import {LastOpSchema, ShownMomentSchema} from '../../web/src/gen/reprise/v1/query_pb';

const held = (bytes: number, facts: object = {}) =>
  create(HeldStorageSchema, {bytes: BigInt(bytes), category: Category.ACTIVATION, ...facts});

test('a storage is known by its name, else by the op that made it, else by nothing', () => {
  const rows = heldRows([
    held(3, {name: 'head.weight'}),
    held(2, {madeBy: 'aten.mm.default', module: 'layers.2'}),
    held(1),
  ]);

  expect(rows.map((row) => [row.name, row.from])).toEqual([
    ['head.weight', ''],
    ['aten.mm.default', 'layers.2'],
    ['not known', ''],
  ]);
});

test('what is not listed counts in the sum', () => {
  const shown = create(ShownMomentSchema, {
    moment: create(MomentSchema, {
      reason: MomentReason.KILLED,
      storages: [held(1024), held(512)],
      moreStorages: 3n,
      moreBytes: 512n,
    }),
  });

  expect(heldText(shown)).toBe('2.0 KiB in 5 storages');
  expect(wasKilled(shown)).toBe(true);
});

test('an op of a graph has its number, one of a record has none', () => {
  expect(opText(create(LastOpSchema, {op: 0, name: 'aten.mm.default'}))).toBe(
    'op 0 aten.mm.default',
  );
  expect(opText(create(LastOpSchema, {name: 'aten.mm.default'}))).toBe('aten.mm.default');
});
