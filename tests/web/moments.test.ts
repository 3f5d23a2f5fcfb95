// SPDX-License-Identifier: Apache-2.0
import {create} from '@bufbuild/protobuf';
import {expect, test} from 'vitest';
import {endText, heldRows, heldText, markOf, opText, wasKilled} from '../../web/src/data/moments';
import {Category} from '../../web/src/gen/reprise/v1/graph_pb';
import {
  HeldStorageSchema,
  MomentReason,
  MomentSchema,
} from '../../web/src/gen/reprise/v1/ingest_pb';
import {
  LastOpSchema,
  RunSchema,
  ShownMomentSchema,
  Standing,
} from '../../web/src/gen/reprise/v1/query_pb';

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

test('where a job ended is marked on the step of its own graph alone', () => {
  const moment = {
    reason: MomentReason.KILLED,
    graphId: 'g',
    op: 4,
    storages: [held(512)],
    moreBytes: 88n,
  };
  const shown = create(ShownMomentSchema, {moment, ops: [{op: 3}, {op: 4, underWay: true}]});

  expect(markOf(shown, 'g')).toEqual({op: 4, bytes: 600, name: 'killed here'});
  expect(markOf(shown, 'another')).toBeUndefined();
  // After the step, or nobody knows where.
  expect(markOf(create(ShownMomentSchema, {moment, ops: [{op: 4}]}), 'g')).toEqual({
    op: undefined,
    bytes: 600,
    name: 'killed, with this much alive',
  });

  const short = {reason: MomentReason.OUT_OF_MEMORY, graphId: 'g', op: 9, liveBytes: 70n};
  const ranOut = create(ShownMomentSchema, {moment: short, ops: [{op: 4}]});
  expect(markOf(ranOut, 'g')).toEqual({op: 9, bytes: 70, name: 'memory ran out here'});
});

test('a job that died is headed by how, one that ended well by nothing', () => {
  const run = (standing: Standing, ending: string, failure = '') =>
    create(RunSchema, {standing, ending, verdict: {failure, sentence: 'It fits in 1.0 GiB.'}});

  expect(endText(run(Standing.VALIDATED, 'finished'), undefined)).toBe('');
  expect(endText(run(Standing.DIED, 'killed by signal 9'), undefined)).toBe(
    'The job ended: killed by signal 9.',
  );
  expect(endText(run(Standing.DIED, 'out of memory', 'MemoryError'), undefined)).toBe(
    'The job ended: out of memory, MemoryError.',
  );
  const newest = create(ShownMomentSchema, {sentence: 'Killed in step 12.'});
  expect(endText(run(Standing.DIED, 'killed'), newest)).toBe('Killed in step 12.');
});
