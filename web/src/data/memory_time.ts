// SPDX-License-Identifier: Apache-2.0

/** Memory over one step on the axis of time: each curve in the time of its own step. */
import {formatBytes, formatDuration, num} from '../format/units';
import type {Plan} from '../gen/reprise/v1/plan_pb';
import type {Timeline} from '../gen/reprise/v1/query_pb';
import {
  CURVES_ALONE,
  LINE_NAMES,
  LINES,
  type Line,
  type MarkedPeak,
  type MemoryData,
} from './memory_view';
import type {Preview} from './preview';
import {
  execAt,
  gridOver,
  onGrid,
  peakIn,
  samplesOnGrid,
  stepCurve,
  type Columns,
  type StepCurve,
  type Window,
} from './timeline';

export interface TimeSource {
  readonly timeline: Timeline | undefined;
  readonly plan: Plan | undefined;
  readonly whatIf: Plan | undefined;
  readonly preview: Preview | undefined;
  readonly opName: (op: number) => string;
}

type TimedLine = Exclude<Line, 'whatIf' | 'preview'>;
export type TimeCurves = Readonly<Partial<Record<TimedLine, StepCurve>>>;

export function timeCurves(timeline: Timeline | undefined): TimeCurves {
  const curves: Partial<Record<TimedLine, StepCurve>> = {};
  for (const line of ['measured', 'predicted', 'measuredBase', 'predictedBase'] as const) {
    const curve = stepCurve(timeline?.[line]);
    if (curve) curves[line] = curve;
  }
  return curves;
}

/** The length of the longest step shown. */
export function timeLength(curves: TimeCurves, whatIf: Plan | undefined): number {
  return Math.max(
    0,
    ...Object.values(curves).map((curve) => curve.stepNs),
    whatIf?.feasible ? num(whatIf.timeNs) : 0,
  );
}

export function timeView(
  curves: TimeCurves,
  {timeline, plan, whatIf, preview, opName}: TimeSource,
  window: Window | undefined,
  columns: number,
): MemoryData {
  const view = window ?? {from: 0, to: Math.max(1, timeLength(curves, whatIf))};
  const grid = gridOver(view, columns);
  const {measured, predicted} = curves;
  const alternative = whatIf?.feasible && !preview ? whatIf : undefined;
  const shown: Partial<Record<Line, Columns>> = {};
  for (const [line, curve] of Object.entries(curves)) {
    shown[line as Line] = onGrid(curve.columns, grid);
  }
  const other =
    alternative?.predicted &&
    samplesOnGrid(
      alternative.predicted.startNs.map(Number),
      alternative.predicted.bytes.map(Number),
      num(alternative.timeNs),
      grid,
    );
  if (other) shown.whatIf = other;
  const peaks: MarkedPeak[] = [];
  if (predicted) peaks.push({...predicted.peak, of: 'predicted'});
  if (measured) peaks.push({...measured.peak, of: 'measured'});
  const highestOther = other && peakIn(other, view.from, view.to);
  if (highestOther) peaks.push({...highestOther, of: 'whatIf'});

  const startsNs = Float64Array.from(plan?.predicted?.startNs ?? [], Number);
  const ops = (plan?.schedule ?? []).filter((entry) => entry >= 0n).map(Number);
  return {
    ...CURVES_ALONE,
    ...shown,
    view,
    grid,
    // The what-if has bands of its own, which are not known by time.
    bands: other
      ? []
      : (predicted?.bands ?? []).map((band) => ({
          category: band.category,
          max: onGrid({...predicted!.columns, max: band.max, min: band.max}, grid).max,
        })),
    budgetBytes: num(timeline?.budgetBytes),
    whatIfBudgetBytes: alternative ? num(alternative.budgetBytes) : 0,
    previewBytes: preview?.peakBytes ?? 0,
    peaks,
    tooltipAt: (column) => {
      const at = grid.start + column * grid.column;
      const rows: [string, string][] = [];
      for (const line of [...LINES].reverse()) {
        const bytes = shown[line]?.max[column];
        if (bytes === undefined || Number.isNaN(bytes)) continue;
        const op = line === 'predicted' ? ops[execAt(startsNs, at)] : undefined;
        rows.push([
          LINE_NAMES[line],
          formatBytes(bytes) + (op === undefined ? '' : `, ${opName(op)}`),
        ]);
      }
      if (rows.length > 1) rows.push(['', 'each in its own time: not the same op']);
      return rows.length === 0 ? undefined : {title: `${formatDuration(at)} after the start`, rows};
    },
  };
}
