// SPDX-License-Identifier: Apache-2.0

/** Two runs beside each other: their figures, and the server's rows of either peak. */
import {categoryStyle, type CategoryStyle} from '../format/categories';
import {runTitle} from '../format/run';
import {
  counted,
  formatBytes,
  formatCount,
  formatDuration,
  formatPercent,
  num,
} from '../format/units';
import type {Comparison, Curve, Run, Timeline} from '../gen/reprise/v1/query_pb';
import {gridOver, onGrid, stepCurve} from './timeline';

/** A row of a table that has a column for each run. */
export interface ComparedRow {
  readonly key: string;
  readonly name: string;
  /** What else is known of it. */
  readonly note?: string;
  readonly category?: CategoryStyle;
  readonly a: string;
  readonly b: string;
  /** Of b against a, where both are numbers. */
  readonly difference: string;
  readonly differs: boolean;
}

/** The figures of two runs, in the order in which a person asks for them. */
export function figures(a: Run, b: Run): ComparedRow[] {
  const numbers =
    (format: (value: number) => string) =>
    (name: string, of: (run: Run) => bigint | undefined): ComparedRow => {
      const [x, y] = [num(of(a)), num(of(b))];
      const difference = x > 0 && y > 0 && x !== y ? formatPercent(y / x - 1, true) : '';
      const [textA = '', textB = ''] = [x, y].map((value) => (value > 0 ? format(value) : ''));
      return {key: name, name, a: textA, b: textB, difference, differs: x !== y};
    };
  const [bytes, time] = [numbers(formatBytes), numbers(formatDuration)];
  const text = (name: string, of: (run: Run) => string): ComparedRow => ({
    key: name,
    name,
    a: of(a),
    b: of(b),
    difference: '',
    differs: of(a) !== of(b),
  });
  const rows = [
    text('Name', runTitle),
    text('State', (run) => run.ending),
    bytes('Budget', (run) => run.verdict?.budgetBytes),
    bytes('Peak, measured', (run) => run.verdict?.measuredPeakBytes),
    bytes('Peak, predicted', (run) => run.verdict?.predictedPeakBytes),
    // Of a run that never had a plan, the largest of its steps.
    bytes(
      'Peak without a plan',
      (run) => run.verdict?.basePeakBytes || run.verdict?.unplannedPeakBytes,
    ),
    time('Step, measured', (run) => run.verdict?.measuredStepNs),
    time('Step, predicted', (run) => run.verdict?.predictedStepNs),
    time('Step without a plan', (run) => run.verdict?.baseStepNs),
    text('Steps', (run) => formatCount(run.steps)),
    text('Planned steps above the budget', (run) => String(run.verdict?.overBudgetSteps ?? 0)),
    text('Checks', (run) => checksText(run)),
  ];
  return rows.filter((row) => row.a !== '' || row.b !== '');
}

function checksText(run: Run): string {
  const verdict = run.verdict;
  if (!verdict || verdict.checks === 0) return 'none';
  if (verdict.checksDiffering === 0) return `${counted(verdict.checks, 'check')}, all equal`;
  return `${verdict.checksDiffering} of ${verdict.checks} differ`;
}

/** The lists that the server makes of the two peaks. */
export type PartsBy = 'category' | 'module' | 'source';

/** The rows of one list, in the server's order: the largest difference first. */
export function partRows(comparison: Comparison, by: PartsBy): ComparedRow[] {
  const parts = {
    category: comparison.categories,
    module: comparison.modules,
    source: comparison.sources,
  }[by];
  return parts.map(({category, name, aBytes, bBytes, aCount, bCount}) => {
    const style = categoryStyle(category);
    return {
      key: `${category} ${name}`,
      name: by === 'category' ? style.name : name || 'not known',
      note: by === 'category' ? '' : style.name,
      category: style,
      a: aBytes > 0n ? formatBytes(aBytes) : '',
      b: bBytes > 0n ? formatBytes(bBytes) : '',
      difference: signed(num(bBytes - aBytes), formatBytes) || '0 B',
      differs: aBytes !== bBytes || aCount !== bCount,
    };
  });
}

/** What runs again in either run, and how often. */
export function againRows({recomputed}: Comparison): ComparedRow[] {
  return recomputed.map(({name, module, source, aAgain, bAgain, aNs, bNs}) => ({
    key: `${module} ${source} ${name}`,
    name,
    note: [module, source].filter(Boolean).join(' · '),
    a: aAgain > 0 ? `${aAgain} ×` : '',
    b: bAgain > 0 ? `${bAgain} ×` : '',
    difference: signed(num(bNs - aNs), formatDuration),
    differs: aAgain !== bAgain,
  }));
}

/** How many rows of a list the server left out. */
export function leftOut(comparison: Comparison, by: PartsBy): number {
  return by === 'module' ? comparison.moreModules : by === 'source' ? comparison.moreSources : 0;
}

/** A difference with its sign, "+1.0 KiB"; empty: none. */
export function signed(value: number, format: (value: number) => string): string {
  return value === 0 ? '' : `${value < 0 ? '−' : '+'}${format(Math.abs(value))}`;
}

export type ShareCurve = NonNullable<ReturnType<typeof shareCurve>>;

/**
 * One step, cut into equal shares of its own length: steps of different
 * lengths lie over each other by place. `max` is the largest value in each; NaN: not known.
 */
export function shareCurve(timeline: Timeline | undefined, count: number) {
  const [curve, label] = pick(timeline);
  const step = stepCurve(curve);
  if (!step) return undefined;
  const {start, column, max} = step.columns;
  const shares = gridOver({from: start, to: start + column * max.length}, count);
  const {max: largest} = onGrid(step.columns, shares);
  return {label, predicted: label !== MEASURED, max: largest, peak: step.peak.bytes};
}

const MEASURED = 'measured';

function pick(timeline: Timeline | undefined): [Curve | undefined, string] {
  if (timeline?.measured) return [timeline.measured, MEASURED];
  if (timeline?.measuredBase && !timeline.predicted) return [timeline.measuredBase, MEASURED];
  if (timeline?.predicted) return [timeline.predicted, 'predicted'];
  return [timeline?.predictedBase, 'predicted, without a plan'];
}
