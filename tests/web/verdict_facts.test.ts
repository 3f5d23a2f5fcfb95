// SPDX-License-Identifier: Apache-2.0
import {create, type MessageInitShape} from '@bufbuild/protobuf';
import {expect, test} from 'vitest';
import {checkFacts, costFacts, figureRows, isAbout} from '../../web/src/data/verdict_facts';
import {BoundProof, PlanSchema, type Plan} from '../../web/src/gen/reprise/v1/plan_pb';
import {VerdictSchema} from '../../web/src/gen/reprise/v1/query_pb';

// 20 ns of recomputation in a step of 100 ns, 18 of them unavoidable.
function plan(more: MessageInitShape<typeof PlanSchema> = {}): Plan {
  return create(PlanSchema, {
    feasible: true,
    budgetBytes: 10n,
    baseTimeNs: 100n,
    timeNs: 120n,
    overhead: 0.2,
    bound: 0.18,
    boundProof: BoundProof.CHECKED,
    recomputedOps: [3],
    ...more,
  });
}

// The job's own step takes 200 ns; its executor needs 10 for itself.
const verdict = create(VerdictSchema, {
  feasible: true,
  budgetBytes: 10n,
  overheadBound: 0.18,
  baseStepNs: 200n,
  predictedStepNs: 230n,
});

test('every figure of a verdict is of the step that the job has', () => {
  expect(costFacts(plan(), verdict)).toEqual([
    ['Overhead', '+15.0 %'],
    ['of it the executor itself', '10 ns'],
    ['Proven bound', '+9.0 %'],
    ['Gap', '1.0 %'],
  ]);
});

test('a plan that no job has run has the figures of the planner', () => {
  const facts = [
    ['Overhead', '+20.0 %'],
    ['Proven bound', '+18.0 %'],
    ['Gap', '2.0 %'],
  ];

  expect(costFacts(plan(), undefined)).toEqual(facts);
  expect(costFacts(plan({budgetBytes: 9n}), verdict)).toEqual(facts);
  expect(isAbout(verdict, plan({budgetBytes: 9n}))).toBe(false);
});

test('where nothing is recomputed there is no optimum to speak of', () => {
  const nothing = plan({timeNs: 100n, overhead: 0, bound: 0, recomputedOps: []});

  expect(costFacts(nothing, undefined)).toEqual([
    ['Overhead', '+0.0 %'],
    ['Recomputed', 'nothing'],
  ]);
});

test('gradients are called equal only where gradients were compared', () => {
  const values = create(VerdictSchema, {checks: 2, valueChecks: 2, valuesEqual: true});
  const both = create(VerdictSchema, {
    checks: 5,
    valueChecks: 2,
    gradientsEqual: true,
    checksDiffering: 1,
    valueChecksDiffering: 1,
  });

  expect(checkFacts(plan(), values)).toEqual([
    ['Recomputed tensors', 'all equal bit for bit in 2 checks'],
  ]);
  expect(checkFacts(plan(), both)).toEqual([
    ['Gradients', 'all equal bit for bit in 3 checks'],
    ['Recomputed tensors', 'differ in 1 of 2 checks'],
  ]);
  expect(checkFacts(plan({timeNs: 100n, recomputedOps: []}), values)).toEqual([]);
});

test('the figures stand beside each other, and times under another load have no difference', () => {
  const measured = {
    ...verdict,
    predictedPeakBytes: 8n,
    measuredPeakBytes: 6n,
    measuredStepNs: 460n,
  };

  expect(figureRows(create(VerdictSchema, {...measured, basePeakBytes: 20n}))).toEqual([
    ['Peak', '20 B', '10 B', '8 B', '6 B', '-25.0 %'],
    ['Step', '200 ns', '', '230 ns', '460 ns', '+100.0 %'],
  ]);
  const [, step] = figureRows(create(VerdictSchema, {...measured, otherLoad: 'another'}));
  expect(step!.at(-1)).toBe('not comparable');
});
