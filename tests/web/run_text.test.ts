// SPDX-License-Identifier: Apache-2.0
import {create} from '@bufbuild/protobuf';
import {expect, test} from 'vitest';
import {categoryStyle, CATEGORIES} from '../../web/src/format/categories';
import {sentenceParts, STANDINGS, toneOf, verdictText, waitingText} from '../../web/src/format/run';
import {Category} from '../../web/src/gen/reprise/v1/graph_pb';
import {RunSchema, RunState, Standing} from '../../web/src/gen/reprise/v1/query_pb';

test('the two parts of a sentence are the sentence', () => {
  const sentence =
    'It fits in 8.0 GiB.  Peak 7.9 GiB (was 14.2 GiB)   Step 412 ms (+11.3 %)   proven optimal' +
    '.  Measured 7.8 GiB (-0.9 %), 415 ms (+0.7 %), gradients bit for bit equal in 3 checks.';

  const [predicted, measured] = sentenceParts(sentence);

  expect(predicted + measured).toBe(sentence);
  expect(measured.startsWith('  Measured 7.8 GiB')).toBe(true);
  expect(sentenceParts('Nothing fits in 3.0 GiB.')).toEqual(['Nothing fits in 3.0 GiB.', '']);
});

test('a dead run has the colour of one, and its own word', () => {
  expect(toneOf(create(RunSchema, {state: RunState.KILLED}))).toBe('dead');
  expect(toneOf(create(RunSchema, {state: RunState.FAILED}))).toBe('dead');
  expect(toneOf(create(RunSchema, {state: RunState.FINISHED}))).toBe('over');
  expect(STANDINGS[Standing.DIED][0]).toBe('died');
});

test('a run without a plan says what it waits for', () => {
  const text = (init: Parameters<typeof create<typeof RunSchema>>[1]) =>
    waitingText(create(RunSchema, init));
  expect(text({state: RunState.RUNNING})).toContain('plain steps');
  expect(text({state: RunState.FINISHED})).toContain('without a plan');
  expect(text({state: RunState.FINISHED, graphId: '1'})).toContain('choose a budget');
});

test('a job without a budget waits for no plan while it runs', () => {
  const watched = create(RunSchema, {
    state: RunState.RUNNING,
    sessions: [{capabilities: [{name: 'budget_at_start', value: 'none'}]}],
  });

  expect(waitingText(watched)).not.toContain('first plan');
  watched.graphId = '1';
  expect(waitingText(watched)).toContain('choose a budget');
});

test('an imported file is not said to have run', () => {
  const snapshot = create(RunSchema, {
    state: RunState.FINISHED,
    imported: 'memory snapshot',
    verdict: {unplannedPeakBytes: BigInt(3 << 20)},
  });

  expect(waitingText(snapshot)).toBe(
    'A memory snapshot, imported: nothing ran here. Most of what it recorded was alive at ' +
      '3.0 MiB. Below: who was alive when, and where. It has no operators, so that no budget ' +
      'can be planned from it; `reprise run` records them.',
  );
  snapshot.imported = 'profiler trace';
  snapshot.graphId = '1';
  expect(waitingText(snapshot)).toContain('A profiler trace, imported');
  expect(waitingText(snapshot)).toContain('Choose a budget below');
});

test('the legend has the order of the protos, and the unknown has a colour', () => {
  expect(CATEGORIES.map((style) => style.category)).toEqual([9, 10, 1, 2, 3, 4, 5, 6, 7, 8]);
  expect(categoryStyle(Category.UNSPECIFIED).name).toBe('unknown');
});

test('the list says of a plan what it saves and costs, and of any other run the sentence', () => {
  const verdict = {
    feasible: true,
    sentence: 'It fits in 64 B.',
    basePeakBytes: 100n,
    predictedPeakBytes: 63n,
    measuredPeakBytes: 64n,
    baseStepNs: 100n,
    predictedStepNs: 105n,
    measuredStepNs: 300n,
  };
  const text = (more: object): string =>
    verdictText(create(RunSchema, {planId: 'p', verdict: {...verdict, ...more}}));

  expect(text({})).toBe('-36.0 % memory, +200.0 % time');
  // Measured under another load: what was predicted.
  expect(text({otherLoad: 'busy'})).toBe('-36.0 % memory, +5.0 % time');
  expect(text({measuredPeakBytes: 0n, measuredStepNs: 0n})).toBe('-37.0 % memory, +5.0 % time');
  expect(text({feasible: false})).toBe('It fits in 64 B.');
  expect(verdictText(create(RunSchema, {}))).toBe('');
});
