// SPDX-License-Identifier: Apache-2.0

/** Two runs beside each other: their figures, and what is alive at either peak. */
import {runTitle, stateText} from '../format/run';
import {counted, formatBytes, formatCount, formatDuration, formatPercent} from '../format/units';
import type {StorageExplanation} from '../gen/reprise/v1/planner_pb';
import type {Curve, Run, Timeline} from '../gen/reprise/v1/query_pb';
import {num} from './number';

export interface FigureRow {
  readonly name: string;
  readonly a: string;
  readonly b: string;
  /** Of b against a, where both are numbers. */
  readonly difference: string;
  readonly differs: boolean;
}

/** The figures of two runs, in the order in which a person asks for them. */
export function figures(a: Run, b: Run): FigureRow[] {
  const bytes = (name: string, of: (run: Run) => bigint | undefined): FigureRow =>
    numbers(name, num(of(a)), num(of(b)), formatBytes);
  const time = (name: string, of: (run: Run) => bigint | undefined): FigureRow =>
    numbers(name, num(of(a)), num(of(b)), formatDuration);
  const text = (name: string, of: (run: Run) => string): FigureRow => ({
    name,
    a: of(a),
    b: of(b),
    difference: '',
    differs: of(a) !== of(b),
  });
  const rows = [
    text('Name', runTitle),
    text('State', (run) => stateText(run.state)),
    bytes('Budget', (run) => run.verdict?.budgetBytes),
    bytes('Peak, measured', (run) => run.verdict?.measuredPeakBytes),
    bytes('Peak, predicted', (run) => run.verdict?.predictedPeakBytes),
    bytes('Peak without a plan', (run) => run.verdict?.basePeakBytes),
    time('Step, measured', (run) => run.verdict?.measuredStepNs),
    time('Step, predicted', (run) => run.verdict?.predictedStepNs),
    time('Step without a plan', (run) => run.verdict?.baseStepNs),
    text('Steps', (run) => formatCount(Number(run.steps))),
    text('Planned steps above the budget', (run) => String(run.verdict?.overBudgetSteps ?? 0)),
    text('Checks', (run) => checksText(run)),
  ];
  return rows.filter((row) => row.a !== '' || row.b !== '');
}

function numbers(name: string, a: number, b: number, format: (value: number) => string): FigureRow {
  const both = a > 0 && b > 0;
  return {
    name,
    a: a > 0 ? format(a) : '',
    b: b > 0 ? format(b) : '',
    difference: both && a !== b ? formatPercent(b / a - 1, true) : '',
    differs: a !== b,
  };
}

function checksText(run: Run): string {
  const verdict = run.verdict;
  if (!verdict || verdict.checks === 0) return 'none';
  if (verdict.checksDiffering === 0) return `${counted(verdict.checks, 'check')}, all equal`;
  return `${verdict.checksDiffering} of ${verdict.checks} differ`;
}

export interface OwnerRow {
  readonly owner: string;
  readonly a: number;
  readonly b: number;
}

/**
 * Bytes alive at either peak by owner: module and op. The largest difference
 * first, then the largest owner. O(n log n).
 */
export function owners(
  a: readonly StorageExplanation[],
  b: readonly StorageExplanation[],
): OwnerRow[] {
  const sums = new Map<string, {a: number; b: number}>();
  const add = (storages: readonly StorageExplanation[], side: 'a' | 'b'): void => {
    for (const storage of storages) {
      if (!aliveAtItsPeak(storage, storages)) continue;
      const owner = ownerOf(storage);
      const sum = sums.get(owner) ?? {a: 0, b: 0};
      sum[side] += num(storage.bytes);
      sums.set(owner, sum);
    }
  };
  add(a, 'a');
  add(b, 'b');
  return [...sums]
    .map(([owner, sum]) => ({owner, ...sum}))
    .sort(
      (x, y) =>
        Math.abs(y.b - y.a) - Math.abs(x.b - x.a) ||
        y.a + y.b - (x.a + x.b) ||
        (x.owner < y.owner ? -1 : 1),
    );
}

/** With the plan where there is one, else without. */
function aliveAtItsPeak(one: StorageExplanation, all: readonly StorageExplanation[]): boolean {
  return hasPlan(all) ? one.aliveAtPeak : one.aliveAtBasePeak;
}

const planned = new WeakMap<readonly StorageExplanation[], boolean>();
function hasPlan(all: readonly StorageExplanation[]): boolean {
  const known = planned.get(all) ?? all.some((storage) => storage.aliveAtPeak);
  planned.set(all, known);
  return known;
}

/** A name that says nothing of the run: "layers.3.mlp · aten.mm.default". */
export function ownerOf(storage: StorageExplanation): string {
  const parts = [storage.module, storage.name.replace(/^op \d+ /, '')].filter(Boolean);
  return parts.join(' · ') || 'without a name';
}

export interface ShareCurve {
  readonly label: string;
  /** Largest value in each of `count` equal shares of the step; NaN: not known. */
  readonly max: Float64Array;
  readonly peak: number;
}

/**
 * One step, cut into equal shares of its own length: steps of different
 * lengths lie over each other by place.
 */
export function shareCurve(timeline: Timeline | undefined, count: number): ShareCurve | undefined {
  const [curve, label] = pick(timeline);
  if (!curve || curve.maxBytes.length === 0) return undefined;
  const max = new Float64Array(count).fill(NaN);
  const columns = curve.maxBytes.length;
  for (let i = 0; i < columns; i++) {
    const first = Math.floor((i * count) / columns);
    const last = Math.max(first + 1, Math.floor(((i + 1) * count) / columns));
    const bytes = Number(curve.maxBytes[i]);
    for (let j = first; j < last; j++) if (!(max[j]! >= bytes)) max[j] = bytes;
  }
  return {label, max, peak: num(curve.peakBytes)};
}

function pick(timeline: Timeline | undefined): [Curve | undefined, string] {
  if (timeline?.measured) return [timeline.measured, 'measured'];
  if (timeline?.measuredBase && !timeline.predicted) return [timeline.measuredBase, 'measured'];
  if (timeline?.predicted) return [timeline.predicted, 'predicted'];
  return [timeline?.predictedBase, 'predicted, without a plan'];
}
