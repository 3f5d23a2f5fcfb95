// SPDX-License-Identifier: Apache-2.0
import {create, type MessageInitShape} from '@bufbuild/protobuf';
import {expect, test} from 'vitest';
import {categoryStyle, CATEGORIES} from '../../web/src/format/categories';
import {sentenceParts, standingOf, stateText, waitingText} from '../../web/src/format/run';
import {Category} from '../../web/src/gen/reprise/v1/graph_pb';
import {RunSchema, RunState, type VerdictSchema} from '../../web/src/gen/reprise/v1/query_pb';

const run = (verdict: MessageInitShape<typeof VerdictSchema>, state = RunState.RUNNING) =>
  create(RunSchema, {planId: '00000000000000ff', state, verdict});

test('the two parts of a sentence are the sentence', () => {
  const sentence =
    'It fits in 8.0 GiB.  Peak 7.9 GiB (was 14.2 GiB)   Step 412 ms (+11.3 %)   proven optimal' +
    '.  Measured 7.8 GiB (-0.9 %), 415 ms (+0.7 %), gradients bit for bit equal in 3 checks.';

  const [predicted, measured] = sentenceParts(sentence);

  expect(predicted + measured).toBe(sentence);
  expect(measured.startsWith('  Measured 7.8 GiB')).toBe(true);
  expect(sentenceParts('Nothing fits in 3.0 GiB.')).toEqual(['Nothing fits in 3.0 GiB.', '']);
});

test('a run is validated only when the server says so', () => {
  expect(standingOf(undefined)).toBe('waiting');
  expect(standingOf(create(RunSchema, {}))).toBe('waiting');
  expect(standingOf(run({feasible: true, validated: true}))).toBe('validated');
  expect(standingOf(run({feasible: false}))).toBe('impossible');
  expect(standingOf(run({feasible: true, plannedSteps: 1, budgetBytes: 9n}))).toBe('measuring');
});

test('a plan that did not hold is never called measuring', () => {
  expect(standingOf(run({feasible: true, gradientsDiffering: 1}))).toBe('failed');
  expect(standingOf(run({feasible: true, mismatches: 2}))).toBe('failed');
  expect(standingOf(run({feasible: true, overBudgetSteps: 1}))).toBe('failed');
  expect(standingOf(run({feasible: true, withdrawn: 'gradients differ'}))).toBe('failed');
  expect(standingOf(run({feasible: true, refused: 'it cannot run here'}))).toBe('failed');
  expect(standingOf(run({feasible: true, checksDiffering: 1}))).toBe('failed');
  expect(
    standingOf(
      run({
        feasible: true,
        plannedSteps: 1,
        budgetBytes: 9n,
        measuredPeakBytes: 10n,
      }),
    ),
  ).toBe('failed');
});

test('a run that ended without a proof says so', () => {
  expect(standingOf(run({feasible: true}, RunState.FINISHED))).toBe('unproven');
  expect(standingOf(create(RunSchema, {state: RunState.FINISHED}))).toBe('unplanned');
});

test('a run that died has no other badge, whatever it had shown before', () => {
  for (const state of [RunState.KILLED, RunState.FAILED]) {
    expect(standingOf(run({feasible: true, validated: true}, state))).toBe('died');
    expect(standingOf(run({feasible: false}, state))).toBe('died');
    expect(standingOf(create(RunSchema, {state}))).toBe('died');
  }
  expect(stateText(RunState.KILLED)).toBe('killed');
  expect(stateText(RunState.FAILED)).toBe('failed');
});

test('a run without a plan says what it waits for', () => {
  expect(waitingText(create(RunSchema, {state: RunState.RUNNING}))).toContain('plain steps');
  expect(waitingText(create(RunSchema, {state: RunState.FINISHED}))).toContain('without a plan');
  expect(waitingText(create(RunSchema, {state: RunState.FINISHED, graphId: '1'}))).toContain(
    'choose a budget',
  );
});

test('the legend has the order of the protos, and the unknown has a colour', () => {
  expect(CATEGORIES.map((style) => style.category)).toEqual([1, 2, 3, 4, 5, 6, 7, 8]);
  expect(categoryStyle(Category.UNSPECIFIED).name).toBe('unknown');
});
