// SPDX-License-Identifier: Apache-2.0
import {create} from '@bufbuild/protobuf';
import {expect, test} from 'vitest';
import {previewOf} from '../../web/src/data/preview';
import type {CurvePoint} from '../../web/src/data/tradeoff';
import {PlanSchema} from '../../web/src/gen/reprise/v1/plan_pb';

const MIB = 2 ** 20;
const point = (mib: number, overhead: number): CurvePoint => ({
  budgetBytes: mib * MIB,
  peakBytes: (mib - 2) * MIB,
  overhead,
  bound: 0,
  dominated: false,
});
const points = [point(10, 0.4), point(20, 0.1), point(40, 0)];
const plan = (mib: number, feasible = true) =>
  create(PlanSchema, {feasible, budgetBytes: BigInt(mib * MIB)});

test('between two known budgets peak and time lie between theirs, and it says of which', () => {
  const preview = previewOf(15 * MIB, points, [])!;

  expect(preview.peakBytes).toBe(13 * MIB);
  expect(preview.overhead).toBeCloseTo(0.25);
  expect(preview.text).toBe('interpolated between the plans for 10.0 MiB and 20.0 MiB');
  expect(preview.plan).toBeUndefined();
});

test('at a known budget, and beyond the last one, it is as there', () => {
  expect(previewOf(20 * MIB, points, [])).toMatchObject({
    peakBytes: 18 * MIB,
    text: 'as the plan for 20.0 MiB',
  });
  expect(previewOf(50 * MIB, points, [])).toMatchObject({overhead: 0, peakBytes: 38 * MIB});
  expect(previewOf(50 * MIB, [], [])).toBeUndefined();
});

test('its curve is that of the nearest plan for more memory', () => {
  const [near, far] = [plan(16), plan(30)];
  const shown = previewOf(15 * MIB, points, [far, plan(12), near, plan(15, false)])!;

  expect(shown.plan).toBe(near);
});
