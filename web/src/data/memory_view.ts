// SPDX-License-Identifier: Apache-2.0

/**
 * Memory over one step as the chart draws it, on one of two axes:
 *
 *   ops    the place of an op in the step: every curve has the same op at the
 *          same place, and a tooltip speaks of one op alone;
 *   time   ns since the start of a step, each curve in its own: steps of
 *          different lengths lie beside each other, not over each other.
 */
import type {TooltipContent} from '../format/tooltip';
import {formatBytes, formatDuration} from '../format/units';
import {Phase, type Category, type StepGraph} from '../gen/reprise/v1/graph_pb';
import {FreePolicy, type Plan} from '../gen/reprise/v1/plan_pb';
import type {Explanation} from '../gen/reprise/v1/planner_pb';
import type {Timeline} from '../gen/reprise/v1/query_pb';
import {baseBytes, bytesByCategory, heldByPlan, heldByStep, staticMemory} from './base_memory';
import {CATEGORIES} from '../format/categories';
import {num} from '../format/number';
import {baseExecs, highestIn, placed, placedExecs, sampleOf, type PlacedCurve} from './step_axis';
import {
  execAt,
  gridOver,
  onGrid,
  peakIn,
  samplesOnGrid,
  stacked,
  stepCurve,
  type Band,
  type Columns,
  type Grid,
  type Peak,
  type StepCurve,
  type Window,
} from './timeline';
import {placedStep, type TracedStep} from './traced_step';

export const LINES = ['measuredBase', 'predictedBase', 'whatIf', 'predicted', 'measured'] as const;
export type Line = (typeof LINES)[number];
export const LINE_NAMES: Readonly<Record<Line, string>> = {
  measuredBase: 'no plan, measured',
  predictedBase: 'no plan, predicted',
  whatIf: 'what if, predicted',
  predicted: 'predicted',
  measured: 'measured',
};

export interface MarkedPeak extends Peak {
  readonly of: 'measured' | 'predicted' | 'whatIf';
}

/** From here on the step is in this part of it. */
export interface Section {
  readonly at: number;
  readonly name: string;
}

export interface MemoryData extends Readonly<Partial<Record<Line, Columns>>> {
  readonly axis: 'ops' | 'time';
  readonly grid: Grid;
  /** Tops of the stack, the lowest first. */
  readonly bands: readonly Band[];
  readonly budgetBytes: number;
  readonly whatIfBudgetBytes: number;
  /** Marked where they lie, whatever the window. */
  readonly peaks: readonly MarkedPeak[];
  readonly sections: readonly Section[];
  /** What stands at a column. */
  readonly tooltipAt: (column: number) => TooltipContent | undefined;
}

// ---- the axis of ops ----

export interface OpsSource {
  readonly graph: StepGraph;
  readonly plan: Plan | undefined;
  readonly explanation: Explanation | undefined;
  readonly whatIf: Plan | undefined;
  readonly whatIfExplanation: Explanation | undefined;
  readonly measured: TracedStep | undefined;
  readonly measuredBase: TracedStep | undefined;
}

interface CategoryBytes {
  readonly category: Category;
  readonly bytes: Float64Array;
}

export interface OpsCurves {
  readonly length: number;
  readonly curves: Readonly<Partial<Record<Line, PlacedCurve>>>;
  /** Of the prediction that is shown: by run, and where the runs stand. */
  readonly bands: readonly CategoryBytes[];
  readonly bandPlaces: Float64Array;
  /** Why a measured step is not among them; empty: it is, or there is none. */
  readonly why: string;
}

/** All curves of a picture by place; done anew when a source changes, not on a zoom. */
export function opsCurves(source: OpsSource): OpsCurves {
  const {graph, plan, whatIf} = source;
  const nameOf = (op: number): string => graph.ops[op]?.name ?? '';
  const base = baseExecs(graph.ops.length);
  const planned = plan?.feasible ? placedExecs(plan.schedule) : undefined;
  const other = whatIf?.feasible ? placedExecs(whatIf.schedule) : undefined;
  // Without a plan the program itself lets go of what it holds.
  const policy = plan?.freePolicy ?? FreePolicy.PROGRAM;

  const plain = baseBytes(graph, policy);
  const basePeak = num(plan?.basePeakBytes ?? graph.measuredPeakBytes);
  const reserve = Math.max(0, basePeak - highest(plain));
  const unplanned = plain.map((bytes) => bytes + reserve);
  const withReserve = (one: Plan): Float64Array => {
    const bytes = Float64Array.from(one.predicted?.bytes ?? [], Number);
    const more = Math.max(0, num(one.peakBytes) - highest(bytes));
    return bytes.map((value) => value + more);
  };
  const predicted = plan && planned ? withReserve(plan) : undefined;
  const alternative = whatIf && other ? withReserve(whatIf) : undefined;

  const measured =
    source.measured && planned ? placedStep(source.measured, planned, nameOf) : undefined;
  const measuredBase = source.measuredBase
    ? placedStep(source.measuredBase, base, nameOf)
    : undefined;

  const [held, total, places] = other
    ? [source.whatIfExplanation, alternative!, other.places]
    : planned
      ? [source.explanation, predicted!, planned.places]
      : [undefined, unplanned, base.places];
  const byPlan = other ?? planned;
  const parts =
    byPlan && !held
      ? undefined
      : bytesByCategory(
          [
            ...staticMemory(graph),
            ...(held ? heldByPlan(held.storages) : heldByStep(graph, policy)),
          ],
          reserve,
          total,
        );
  return {
    length: graph.ops.length,
    curves: {
      ...(measuredBase?.curve ? {measuredBase: measuredBase.curve} : {}),
      predictedBase: placed(base, unplanned),
      ...(other ? {whatIf: placed(other, alternative!)} : {}),
      ...(planned ? {predicted: placed(planned, predicted!)} : {}),
      ...(measured?.curve ? {measured: measured.curve} : {}),
    },
    bands: CATEGORIES.flatMap(({category}) => {
      const bytes = parts?.get(category);
      return bytes ? [{category, bytes}] : [];
    }),
    bandPlaces: places,
    why: measured?.why || measuredBase?.why || '',
  };
}

/** What of them is in the window, in so many columns. */
export function opsView(
  {curves, length, bands, bandPlaces}: OpsCurves,
  {graph, plan, whatIf}: OpsSource,
  window: Window | undefined,
  columns: number,
): MemoryData {
  const grid = gridOver(window ?? {from: 0, to: Math.max(1, length)}, columns);
  const cut = (line: Line): Columns | undefined => {
    const curve = curves[line];
    return curve && samplesOnGrid(curve.places, curve.bytes, length, grid);
  };
  const shown = Object.fromEntries(LINES.map((line) => [line, cut(line)]));
  const lead = shown['whatIf'] ?? shown['predicted'] ?? shown['predictedBase'];
  const tops = lead
    ? stacked(
        bands.map(({category, bytes}) => ({
          category,
          max: nothingIsZero(samplesOnGrid(bandPlaces, bytes, length, grid)!.max),
        })),
        lead.max,
      )
    : [];
  const peaks = (['predicted', 'measured', 'whatIf'] as const).flatMap((of) => {
    const curve = curves[of];
    const at = curve ? highestIn(curve, -Infinity, Infinity) : -1;
    return curve && at >= 0 ? [{of, at: curve.places[at]!, bytes: curve.bytes[at]!}] : [];
  });
  return {
    ...shown,
    axis: 'ops',
    grid,
    bands: tops,
    budgetBytes: num(plan?.budgetBytes),
    whatIfBudgetBytes: whatIf?.feasible ? num(whatIf.budgetBytes) : 0,
    peaks,
    sections: sectionsOf(graph),
    tooltipAt: (column) => tooltipOf(graph, curves, grid.start + column * grid.column, grid.column),
  };
}

/** Of the op of a column at which the first curve that is there is highest. */
function tooltipOf(
  graph: StepGraph,
  curves: OpsCurves['curves'],
  from: number,
  span: number,
): TooltipContent | undefined {
  const order = ['measured', 'whatIf', 'predicted', 'measuredBase', 'predictedBase'] as const;
  for (const first of order) {
    const curve = curves[first];
    const at = curve ? highestIn(curve, from, from + span) : -1;
    if (!curve || at < 0) continue;
    const op = curve.ops[at]!;
    const run = curve.runs[at]!;
    const node = graph.ops[op];
    const rows: [string, string][] = [];
    for (const line of [...LINES].reverse()) {
      const other = curves[line];
      const i = other ? sampleOf(other, op, run) : -1;
      if (i >= 0) rows.push([LINE_NAMES[line], formatBytes(other!.bytes[i]!)]);
    }
    if (node?.module) rows.push(['module', node.module]);
    if (node?.source) rows.push(['line', node.source]);
    if (node) rows.push(['phase', PHASE_NAMES[node.phase]]);
    if (run > 0) rows.push(['run again', `before op ${Math.floor(curve.places[at]!) + 1}`]);
    return {title: `op ${op}: ${node?.name ?? 'not known'}`, rows};
  }
  return undefined;
}

export const PHASE_NAMES: Readonly<Record<Phase, string>> = {
  [Phase.UNSPECIFIED]: 'not known',
  [Phase.FORWARD]: 'forward',
  [Phase.BACKWARD]: 'backward',
  [Phase.OPTIMIZER]: 'optimizer',
};

export function sectionsOf(graph: StepGraph): Section[] {
  const sections: Section[] = [];
  let phase: Phase = Phase.UNSPECIFIED;
  graph.ops.forEach((op, at) => {
    if (op.phase === phase) return;
    phase = op.phase;
    sections.push({at, name: PHASE_NAMES[phase]});
  });
  // A step that changes back and forth (a gradient penalty) has no few parts.
  return sections.length > 6 ? [] : sections;
}

// ---- the axis of time ----

export interface TimeSource {
  readonly timeline: Timeline | undefined;
  readonly plan: Plan | undefined;
  readonly whatIf: Plan | undefined;
  readonly opName: (op: number) => string;
}

export type TimeCurves = Readonly<Partial<Record<Exclude<Line, 'whatIf'>, StepCurve>>>;

export function timeCurves(timeline: Timeline | undefined): TimeCurves {
  const curves: Partial<Record<Exclude<Line, 'whatIf'>, StepCurve>> = {};
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
  {timeline, plan, whatIf, opName}: TimeSource,
  window: Window | undefined,
  columns: number,
): MemoryData {
  const view = window ?? {from: 0, to: Math.max(1, timeLength(curves, whatIf))};
  const grid = gridOver(view, columns);
  const {measured, predicted} = curves;
  const alternative = whatIf?.feasible ? whatIf : undefined;
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
    ...shown,
    axis: 'time',
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
    peaks,
    sections: [],
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

function highest(values: Float64Array): number {
  return values.reduce((most, value) => Math.max(most, value), 0);
}

function nothingIsZero(values: Float64Array): Float64Array {
  return values.map((value) => (Number.isNaN(value) ? 0 : value));
}
