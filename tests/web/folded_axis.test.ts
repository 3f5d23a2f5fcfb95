// SPDX-License-Identifier: Apache-2.0
import {expect, test} from 'vitest';
import {opTicks} from '../../web/src/charts/ticks';
import {flatAxis, foldedAxis, placesOf} from '../../web/src/data/folded_axis';
import {Phase} from '../../web/src/gen/reprise/v1/graph_pb';

const phases = (forward: number, backward: number, optimizer: number): Phase[] => [
  ...new Array<Phase>(forward).fill(Phase.FORWARD),
  ...new Array<Phase>(backward).fill(Phase.BACKWARD),
  ...new Array<Phase>(optimizer).fill(Phase.OPTIMIZER),
];

test('an optimizer of most ops has a narrow band, and all else its own width', () => {
  const axis = foldedAxis(phases(200, 348, 1010))!;

  expect(axis.at(0)).toBe(0);
  expect(axis.at(200)).toBe(200);
  expect(axis.at(547.5)).toBe(547.5);
  expect(axis.length).toBe(axis.at(1558));
  expect((axis.length - axis.at(548)) / axis.length).toBeCloseTo(0.09);
});

test('a place is found again from where it stands', () => {
  const axis = foldedAxis(phases(3, 4, 90))!;

  for (const place of [0, 0.5, 6.9, 7, 7.25, 50, 96.5, 97]) {
    expect(axis.place(axis.at(place))).toBeCloseTo(place);
  }
  expect(placesOf(axis, {from: axis.at(2), to: axis.length})).toEqual({from: 2, to: 97});
});

test('nothing is folded where the optimizer is short, absent or all', () => {
  expect(foldedAxis(phases(50, 50, 5))).toBeUndefined();
  expect(foldedAxis(phases(50, 50, 0))).toBeUndefined();
  expect(foldedAxis(phases(0, 0, 9))).toBeUndefined();
});

test('ticks are of whole ops, stand where these ops stand, and leave each other room', () => {
  const axis = foldedAxis(phases(200, 200, 1600))!;

  const ticks = opTicks(axis, 0, axis.length, 5);
  const ops = ticks.map((tick) => Math.round(axis.place(tick)));

  expect(ops.slice(0, 5)).toEqual([0, 100, 200, 300, 400]);
  // In the band no two labels have room.
  expect(ops).toHaveLength(5);
  expect(opTicks(flatAxis(2), 0, 2, 8)).toEqual([0, 1, 2]);
});
