// SPDX-License-Identifier: Apache-2.0
import {create} from '@bufbuild/protobuf';
import {expect, test} from 'vitest';
import {arcsOf, boxesOf, openedAtFirst, segmentAt, segmentsOf} from '../../web/src/data/step_map';
import {baseExecs, placedExecs} from '../../web/src/data/step_axis';
import {Phase, StepGraphSchema} from '../../web/src/gen/reprise/v1/graph_pb';

const op = (module: string, phase: Phase, ms = 1) => ({module, phase, timeNs: BigInt(ms * 1e6)});
const {FORWARD, BACKWARD} = Phase;
const graph = create(StepGraphSchema, {
  ops: [
    op('', FORWARD),
    op('net.0.attn', FORWARD),
    op('net.0.mlp', FORWARD, 3),
    op('', FORWARD),
    op('net.1.attn', FORWARD),
    op('net.1.attn', BACKWARD),
    op('net.0.mlp', BACKWARD),
    op('net.0.attn', BACKWARD),
  ],
});
const names = (opened: readonly string[], execs = baseExecs(8)): string[] =>
  segmentsOf(graph, execs, new Set(opened)).map(
    (one) => `${one.module} ${one.from}-${one.to}${one.again ? ' again' : ''}`,
  );

test('a step is folded by module, in the order in which it runs', () => {
  expect(names([])).toEqual(['net 0-5', 'net 5-8']);
  expect(names(['net'])).toEqual(['net.0 0-4', 'net.1 4-5', 'net.1 5-6', 'net.0 6-8']);
  // A module that is opened inside one that is not stays closed.
  expect(names(['net.0'])).toEqual(names([]));
  expect(names(['net', 'net.0'])[1]).toBe('net.0.mlp 2-4');
});

test('what a plan runs again is a segment of its own, with its time', () => {
  const execs = placedExecs([0n, 1n, 2n, 3n, 4n, 5n, 1n, 2n, 6n, 7n]);

  expect(names(['net'], execs)).toEqual([
    'net.0 0-4',
    'net.1 4-5',
    'net.1 5-6',
    'net.0 6-8 again',
    'net.0 8-10',
  ]);
  expect(segmentsOf(graph, execs, new Set(['net']))[3]!.timeNs).toBe(4e6);
});

test('modules are opened, siblings together, as long as the map stays small', () => {
  expect([...openedAtFirst(graph, baseExecs(8), 2)]).toEqual([]);
  expect([...openedAtFirst(graph, baseExecs(8), 4)]).toEqual(['net']);
  expect([...openedAtFirst(graph, baseExecs(8), 100)].sort()).toEqual(['net', 'net.0', 'net.1']);
});

test('arcs are what the forward keeps for the backward, added up', () => {
  const segments = segmentsOf(graph, baseExecs(8), new Set(['net']));
  const life = (born: number, last: number, bytes: number) => ({storage: born, born, last, bytes});

  const arcs = arcsOf(segments, [
    life(1, 7, 10),
    life(2, 6, 20),
    life(4, 5, 5),
    life(1, 4, 99), // read within the forward
    life(5, 7, 99), // made in the backward
  ]);

  expect(arcs).toEqual([
    {from: 0, to: 3, bytes: 30, count: 2},
    {from: 1, to: 2, bytes: 5, count: 1},
  ]);
});

test('a run is in the segment around it', () => {
  const segments = segmentsOf(graph, baseExecs(8), new Set(['net']));

  expect([0, 3, 4, 5, 7].map((run) => segmentAt(segments, run))).toEqual([0, 0, 1, 2, 3]);
});

test('however many segments there are, few boxes are drawn, and none is lost', () => {
  const many = Array.from({length: 10_000}, (_, i) => ({
    from: i,
    to: i + 1,
    module: `m${i}`,
    phase: FORWARD,
    again: false,
    timeNs: 0,
    deeper: false,
  }));

  const boxes = boxesOf(many, (run) => run * 0.08, 800);

  expect(boxes.length).toBeLessThanOrEqual(400);
  expect(boxes[0]!.first).toBe(0);
  expect(boxes.at(-1)!.last).toBe(9999);
  boxes.slice(1).forEach((box, i) => expect(box.first).toBe(boxes[i]!.last + 1));
  expect(boxesOf(many, (run) => (run - 10) * 80, 800)).toHaveLength(10);
});
