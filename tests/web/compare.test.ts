// SPDX-License-Identifier: Apache-2.0
import {create} from '@bufbuild/protobuf';
import {expect, test} from 'vitest';
import {figures, leftOut, partRows, shareCurve, signed} from '../../web/src/data/compare';
import {formatBytes} from '../../web/src/format/units';
import {Category} from '../../web/src/gen/reprise/v1/graph_pb';
import {
  ComparisonSchema,
  RunSchema,
  RunState,
  TimelineSchema,
} from '../../web/src/gen/reprise/v1/query_pb';

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

test('a run that never had a plan has the peak of its steps beside that of one with a plan', () => {
  const planned = create(RunSchema, {verdict: {basePeakBytes: 3000n, unplannedPeakBytes: 3100n}});
  const plain = create(RunSchema, {verdict: {unplannedPeakBytes: 1500n}});

  const row = figures(planned, plain).find(({name}) => name === 'Peak without a plan');

  expect(row).toMatchObject({a: '2.9 KiB', b: '1.5 KiB', difference: '-50.0 %'});
});

test('the rows of the two peaks are the ones of the server, in its order', () => {
  const comparison = create(ComparisonSchema, {
    modules: [
      {name: 'layers.0', category: Category.ACTIVATION, aBytes: 15n, bBytes: 0n, aCount: 2n},
      {name: '', category: Category.UNKNOWN, aBytes: 8n, bBytes: 8n, aCount: 1n, bCount: 1n},
    ],
    categories: [{category: Category.ACTIVATION, aBytes: 15n}],
    moreModules: 3,
  });

  const rows = partRows(comparison, 'module');

  expect(rows.map(({name, a, b, differs}) => [name, a, b, differs])).toEqual([
    ['layers.0', '15 B', '', true],
    ['not known', '8 B', '8 B', false],
  ]);
  expect(partRows(comparison, 'category')[0]!.name).toBe('activations');
  expect(leftOut(comparison, 'module')).toBe(3);
  expect(leftOut(comparison, 'category')).toBe(0);
  expect(rows.map(({difference}) => difference)).toEqual(['−15 B', '0 B']);
  expect([0, 2048, -1].map((bytes) => signed(bytes, formatBytes))).toEqual([
    '',
    '+2.0 KiB',
    '−1 B',
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
  // Dashed is predicted, of either run.
  expect(few.predicted).toBe(false);
  const {measured} = timeline;
  expect(shareCurve(create(TimelineSchema, {predicted: measured!}), 4)!.predicted).toBe(true);
});
