// SPDX-License-Identifier: Apache-2.0
import {create} from '@bufbuild/protobuf';
import {expect, test} from 'vitest';
import {
  execAt,
  gridOver,
  onGrid,
  panned,
  peakIn,
  samplesOnGrid,
  stacked,
  stepCurve,
  zoomed,
  type Columns,
} from '../../web/src/data/timeline';
import {Category} from '../../web/src/gen/reprise/v1/graph_pb';
import {CurveSchema} from '../../web/src/gen/reprise/v1/query_pb';

function columns(max: number[], column = 10): Columns {
  return {
    start: 0,
    column,
    max: Float64Array.from(max),
    min: Float64Array.from(max),
  };
}

test('a one-column peak survives a grid a hundred times coarser', () => {
  const flat = new Array<number>(1000).fill(5);
  flat[637] = 9;

  const drawn = onGrid(columns(flat), gridOver({from: 0, to: 10_000}, 10));

  // Column 637 of 10 ns lies at 6370 ns, in the seventh of ten columns.
  expect([...drawn.max]).toEqual([5, 5, 5, 5, 5, 5, 9, 5, 5, 5]);
  expect([...drawn.min]).toEqual(new Array(10).fill(5));
});

test('a grid that is finer repeats the column it lies in', () => {
  const drawn = onGrid(columns([1, 2]), gridOver({from: 0, to: 20}, 4));

  expect([...drawn.max]).toEqual([1, 1, 2, 2]);
});

test('where nothing is known nothing is drawn', () => {
  const drawn = onGrid(columns([1, 2]), gridOver({from: 0, to: 40}, 4));

  expect([...drawn.max]).toEqual([1, 2, NaN, NaN]);
});

test('an op that takes no time still shows its memory', () => {
  const drawn = samplesOnGrid([0, 50, 50], [10, 99, 20], 100, gridOver({from: 0, to: 100}, 4))!;

  expect([...drawn.max]).toEqual([10, 10, 99, 20]);
  expect([...drawn.min]).toEqual([10, 10, 20, 20]);
});

test('a prediction before the window does not reach into it', () => {
  const drawn = samplesOnGrid([0, 50], [99, 20], 100, gridOver({from: 50, to: 100}, 2))!;

  expect([...drawn.max]).toEqual([20, 20]);
});

test('bands are stacked from the bottom', () => {
  const bands = [
    {category: Category.PARAMETER, max: Float64Array.of(4, 4)},
    {category: Category.ACTIVATION, max: Float64Array.of(1, 6)},
  ];

  // The second column folds two moments: its parts add up to 10, its total to 5.
  const tops = stacked(bands, Float64Array.of(5, 5));

  expect([...tops[0]!.max]).toEqual([4, 2]);
  expect([...tops[1]!.max]).toEqual([5, 5]);
});

test('an empty curve is no curve', () => {
  expect(stepCurve(undefined)).toBeUndefined();
  expect(stepCurve(create(CurveSchema, {stepNs: 100n}))).toBeUndefined();
});

test('a curve without smallest values is a line', () => {
  const curve = stepCurve(
    create(CurveSchema, {
      columnNs: 10n,
      maxBytes: [1n, 2n],
      peakBytes: 2n,
      peakAtNs: 10n,
    }),
  )!;

  expect([...curve.columns.min]).toEqual([1, 2]);
  expect(curve.peak).toEqual({at: 10, bytes: 2});
});

test('the peak of a part of the step is found in it', () => {
  const step = columns([1, 9, 2, 5, 3]);

  expect(peakIn(step, 0, 50)).toEqual({at: 10, bytes: 9});
  expect(peakIn(step, 20, 50)).toEqual({at: 30, bytes: 5});
});

test('a selection that misses the step has no peak', () => {
  expect(peakIn(columns([1, 2]), 500, 600)).toBeUndefined();
});

test('the op that runs at a time is the last that has begun', () => {
  expect(execAt([0, 10, 10, 30], -1)).toBe(-1);
  expect(execAt([0, 10, 10, 30], 10)).toBe(2);
  expect(execAt([0, 10, 10, 30], 29)).toBe(2);
  expect(execAt([0, 10, 10, 30], 99)).toBe(3);
});

test('zooming keeps the time under the pointer in its place', () => {
  expect(zoomed({from: 0, to: 1000}, 0.5, 250, 1000)).toEqual({
    from: 125,
    to: 625,
  });
});

test('zooming and moving stay inside the step', () => {
  expect(zoomed({from: 800, to: 1000}, 4, 900, 1000)).toEqual({
    from: 200,
    to: 1000,
  });
  expect(zoomed({from: 0, to: 1000}, 2, 500, 1000)).toEqual({
    from: 0,
    to: 1000,
  });
  expect(panned({from: 800, to: 1000}, 0.5, 1000)).toEqual({
    from: 800,
    to: 1000,
  });
  expect(panned({from: 400, to: 600}, -0.5, 1000)).toEqual({
    from: 300,
    to: 500,
  });
});

test('zooming in ends at a hundred nanoseconds', () => {
  const window = zoomed({from: 500, to: 620}, 0.5, 560, 10_000);

  expect(window.to - window.from).toBe(100);
});
