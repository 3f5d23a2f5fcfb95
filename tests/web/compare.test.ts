// SPDX-License-Identifier: Apache-2.0
import {create, type MessageInitShape} from '@bufbuild/protobuf';
import {expect, test} from 'vitest';
import {figures, owners, shareCurve} from '../../web/src/data/compare';
import {StorageExplanationSchema} from '../../web/src/gen/reprise/v1/planner_pb';
import {RunSchema, RunState, TimelineSchema} from '../../web/src/gen/reprise/v1/query_pb';

const storage = (init: MessageInitShape<typeof StorageExplanationSchema>) =>
  create(StorageExplanationSchema, init);

test('figures of two runs stand side by side, with what has changed', () => {
  const a = create(RunSchema, {
    name: 'one',
    state: RunState.FINISHED,
    steps: 10n,
    verdict: {measuredPeakBytes: 1000n, measuredStepNs: 5000n, checks: 2},
  });
  const b = create(RunSchema, {
    name: 'two',
    state: RunState.FINISHED,
    steps: 10n,
    verdict: {measuredPeakBytes: 1500n, measuredStepNs: 5000n, checks: 2, checksDiffering: 1},
  });

  const rows = new Map(figures(a, b).map((row) => [row.name, row]));

  expect(rows.get('Peak, measured')).toMatchObject({differs: true, difference: '+50.0 %'});
  expect(rows.get('Step, measured')).toMatchObject({differs: false, difference: ''});
  expect(rows.get('Checks')).toMatchObject({a: '2 checks, all equal', b: '1 of 2 differ'});
  expect(rows.has('Budget'), 'neither run has one').toBe(false);
});

test('owners are told by module and op, the largest difference first', () => {
  const a = [
    storage({module: 'layers.0', name: 'op 3 relu', bytes: 10n, aliveAtPeak: true}),
    storage({module: 'layers.0', name: 'op 9 relu', bytes: 5n, aliveAtPeak: true}),
    storage({module: 'head', name: 'op 4 mm', bytes: 7n, aliveAtPeak: true}),
    storage({module: 'head', name: 'op 5 add', bytes: 99n, aliveAtBasePeak: true}),
  ];
  // Without a plan there is only one peak.
  const b = [storage({module: 'head', name: 'op 8 mm', bytes: 8n, aliveAtBasePeak: true})];

  expect(owners(a, b)).toEqual([
    {owner: 'layers.0 · relu', a: 15, b: 0},
    {owner: 'head · mm', a: 7, b: 8},
  ]);
});

test('a peak of one column survives in the shares of a step', () => {
  const timeline = create(TimelineSchema, {
    measured: {maxBytes: [1n, 2n, 90n, 3n, 1n, 1n, 1n, 1n], columnNs: 5n, peakBytes: 90n},
  });

  const few = shareCurve(timeline, 4)!;
  const many = shareCurve(timeline, 16)!;

  expect([...few.max]).toEqual([2, 90, 1, 1]);
  expect([...many.max].filter((bytes) => bytes === 90)).toHaveLength(2);
  expect(many.max.some(Number.isNaN)).toBe(false);
  expect(shareCurve(create(TimelineSchema, {}), 4)).toBeUndefined();
});
