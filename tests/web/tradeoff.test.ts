// SPDX-License-Identifier: Apache-2.0
import {create} from '@bufbuild/protobuf';
import {expect, test} from 'vitest';
import {
  boundPath,
  domainOf,
  limitingOp,
  measuredMark,
  nearest,
  overheadRange,
  planPath,
  scale,
  tradeoff,
} from '../../web/src/data/tradeoff';
import {VerdictSchema} from '../../web/src/gen/reprise/v1/query_pb';
import {TradeoffPointSchema, type TradeoffPoint} from '../../web/src/gen/reprise/v1/planner_pb';

function point(budget: number, overhead: number, peak = budget): TradeoffPoint {
  return create(TradeoffPointSchema, {
    budgetBytes: BigInt(budget),
    peakBytes: BigInt(peak),
    feasible: true,
    overhead,
    bound: overhead / 2,
  });
}

function impossible(budget: number, smallest: number): TradeoffPoint {
  return create(TradeoffPointSchema, {
    budgetBytes: BigInt(budget),
    infeasible: {
      smallestBudgetBytes: BigInt(smallest),
      blockingOp: 17,
      blockingOpName: 'aten.bmm.default',
      blockingModule: 'layers.3.attn',
    },
  });
}

test('a point is dominated when a smaller budget is faster', () => {
  const curve = tradeoff([point(100, 0), point(80, 0.2), point(60, 0.1)]);

  expect(curve.points.map((p) => [p.budgetBytes, p.dominated])).toEqual([
    [60, false],
    [80, true],
    [100, false],
  ]);
});

test('two budgets with the same plan do not dominate each other', () => {
  const curve = tradeoff([point(100, 0.1, 60), point(60, 0.1, 60)]);

  expect(curve.points.every((p) => !p.dominated)).toBe(true);
});

test('the limit and its op come from the impossible budgets', () => {
  const curve = tradeoff([point(100, 0), impossible(30, 40)]);

  expect(curve.limit?.smallestBudgetBytes).toBe(40n);
  expect(limitingOp(curve.limit!)).toBe('op 17 aten.bmm.default (layers.3.attn)');
});

test('the slider reaches from below what is possible to no plan at all', () => {
  const domain = domainOf(tradeoff([point(100, 0), impossible(30, 40)]), 120, true)!;

  expect(domain.possible).toBe(40);
  expect(domain.high).toBe(120);
  // 40 - 15 % of 80
  expect(domain.low).toBe(28);
});

test('while points still come none is said to be the least', () => {
  const soFar = tradeoff([point(100, 0)]);
  const early = domainOf(soFar, 120, false)!;

  expect(early.possible).toBe(early.low);
  expect(early.low).toBe(97);
  expect(domainOf(soFar, 120, true)!.possible).toBe(100);
});

test('without a point there is nothing to slide over', () => {
  expect(domainOf(tradeoff([]), 120, true)).toBeUndefined();
});

test('the nearest point is picked', () => {
  const {points} = tradeoff([point(100, 0), point(60, 0.1)]);

  expect(nearest(points, 70)?.budgetBytes).toBe(60);
  expect(nearest([], 70)).toBeUndefined();
});

test('plans are steps: between two budgets the plan of the smaller one runs', () => {
  const curve = tradeoff([point(0, 0.2), point(50, 0.1)]);
  const x = scale(0, 100, 0, 100);
  const y = scale(0, 0.2, 20, 0);

  expect(planPath(curve.points, x, y, {low: 0, high: 100, possible: 0})).toBe('M0 0H50V10H100');
  expect(boundPath(curve.points, x, y)).toBe('M0 10L50 15');
});

test('a scale goes both ways', () => {
  const y = scale(0, 0.5, 300, 20);

  expect(y.at(0.25)).toBe(160);
  expect(y.value(160)).toBeCloseTo(0.25);
});

test('the picture shows all plans, and what was measured near them', () => {
  const {points} = tradeoff([point(100, 0), point(60, 0.1)]);

  expect(overheadRange(points, [NaN]).top).toBeCloseTo(0.112);
  expect(overheadRange(points, [0.15]).top).toBeCloseTo(0.168);
  expect(overheadRange(points, [-0.03]).bottom).toBeCloseTo(-0.036);
});

test('a job timed on a busy machine does not dwarf the plans', () => {
  const {points} = tradeoff([point(100, 0), point(60, 0.1)]);

  const {bottom, top} = overheadRange(points, [-0.6, 3]);

  expect(bottom + 0).toBe(0);
  expect(top).toBeCloseTo(0.112);
});

test('a measured plan has a place where its time can be compared, and none elsewhere', () => {
  const known = {measuredPeakBytes: 70n, measuredStepNs: 120n, baseStepNs: 100n};

  expect(measuredMark(create(VerdictSchema, known))?.overhead).toBeCloseTo(0.2);
  expect(measuredMark(create(VerdictSchema, {...known, otherLoad: 'it waited'}))).toBeUndefined();
  expect(measuredMark(create(VerdictSchema, {...known, baseStepNs: 0n}))).toBeUndefined();
  expect(measuredMark(undefined)).toBeUndefined();
});
