// SPDX-License-Identifier: Apache-2.0

/** Memory over one step on the axis of ops: all curves on one clock. */
import {CATEGORIES} from '../format/categories';
import type {TooltipContent} from '../format/tooltip';
import {formatBytes, num} from '../format/units';
import type {StepGraph} from '../gen/reprise/v1/graph_pb';
import {FreePolicy, type Plan} from '../gen/reprise/v1/plan_pb';
import type {Explanation} from '../gen/reprise/v1/planner_pb';
import {baseBytes, bytesByCategory, heldByPlan, heldByStep, staticMemory} from './base_memory';
import type {Axis} from './folded_axis';
import {
  LINE_NAMES,
  LINES,
  PHASE_NAMES,
  sectionsOf,
  type Line,
  type MemoryData,
} from './memory_view';
import type {MomentMark} from './moments';
import {previewCurve, type Preview} from './preview';
import {
  baseExecs,
  highestIn,
  peakOf,
  placed,
  placedExecs,
  sampleOf,
  type PlacedCurve,
} from './step_axis';
import {gridOver, samplesOnGrid, stacked, type Columns, type Window} from './timeline';
import {placedStep, type TracedStep} from './traced_step';

export interface OpsSource {
  readonly graph: StepGraph;
  readonly plan: Plan | undefined;
  readonly explanation: Explanation | undefined;
  readonly whatIf: Plan | undefined;
  readonly whatIfExplanation: Explanation | undefined;
  readonly measured: TracedStep | undefined;
  readonly measuredBase: TracedStep | undefined;
}

type PlacedCurves = Readonly<Partial<Record<Line, PlacedCurve>>>;
type OpsCurves = ReturnType<typeof opsCurves>;

/** A plan's bytes by run, what it holds in reserve included. */
function withReserve(plan: Plan): Float64Array {
  const bytes = Float64Array.from(plan.predicted?.bytes ?? [], Number);
  const more = Math.max(0, num(plan.peakBytes) - highest(bytes));
  return bytes.map((value) => value + more);
}

/** All curves of a picture by place; done anew when a source changes, not on a zoom. */
export function opsCurves(source: OpsSource) {
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
  const predicted = plan && planned ? withReserve(plan) : undefined;
  const alternative = whatIf && other ? withReserve(whatIf) : undefined;

  const measured =
    source.measured && planned ? placedStep(source.measured, planned, nameOf) : undefined;
  const measuredBase = source.measuredBase
    ? placedStep(source.measuredBase, base, nameOf)
    : undefined;

  const shown = other ?? planned ?? base;
  const explanation = other ? source.whatIfExplanation : source.explanation;
  const held =
    shown === base ? heldByStep(graph, policy) : explanation && heldByPlan(explanation.storages);
  const total = alternative ?? predicted ?? unplanned;
  const parts = held && bytesByCategory([...staticMemory(graph), ...held], reserve, total);
  return {
    length: graph.ops.length,
    curves: <PlacedCurves>{
      ...(measuredBase?.curve ? {measuredBase: measuredBase.curve} : {}),
      predictedBase: placed(base, unplanned),
      ...(other ? {whatIf: placed(other, alternative!)} : {}),
      ...(planned ? {predicted: placed(planned, predicted!)} : {}),
      ...(measured?.curve ? {measured: measured.curve} : {}),
    },
    // Of the prediction that is shown: by run, and where the runs stand.
    bands: CATEGORIES.flatMap(({category}) => {
      const bytes = parts?.get(category);
      return bytes ? [{category, bytes}] : [];
    }),
    bandPlaces: shown.places,
    /** Why a measured step is not among them; empty: it is, or there is none. */
    why: measured?.why || measuredBase?.why || '',
  };
}

/** What is shown of the curves, and what is marked on them. */
export interface OpsShown {
  readonly axis: Axis;
  /** On the axis; undefined: all of it. */
  readonly window: Window | undefined;
  readonly columns: number;
  /** In place of a what-if that is not planned yet. */
  readonly preview?: Preview | undefined;
  readonly end?: MomentMark | undefined;
}

/** What of them is in the window, in so many columns. */
export function opsView(
  all: OpsCurves,
  {graph, plan, whatIf}: OpsSource,
  shown: OpsShown,
): MemoryData {
  const {axis, preview, end} = shown;
  const view = shown.window ?? {from: 0, to: Math.max(1, axis.length)};
  const grid = gridOver(view, shown.columns);
  const curves = preview ? withPreview(all.curves, preview) : all.curves;
  const cut = (places: Float64Array, bytes: Float64Array): Columns | undefined =>
    samplesOnGrid(places.map(axis.at), bytes, axis.length, grid);
  const lines: Partial<Record<Line, Columns>> = {};
  for (const line of LINES) {
    const columns = curves[line] && cut(curves[line].places, curves[line].bytes);
    if (columns) lines[line] = columns;
  }
  const lead = lines.preview ?? lines.whatIf ?? lines.predicted ?? lines.predictedBase;
  const bands = all.bands.map(({category, bytes}) => ({
    category,
    max: nothingIsZero(cut(all.bandPlaces, bytes)!.max),
  }));
  const peaks = (['predicted', 'measured', 'whatIf'] as const).flatMap((of) => {
    const peak = peakOf(curves[of]);
    return peak ? [{of, at: axis.at(peak.at), bytes: peak.bytes}] : [];
  });
  const placeOf = (column: number): number => axis.place(grid.start + column * grid.column);
  return {
    ...lines,
    axis,
    view,
    grid,
    bands: lead ? stacked(bands, lead.max) : [],
    budgetBytes: num(plan?.budgetBytes),
    whatIfBudgetBytes: whatIf?.feasible && !preview ? num(whatIf.budgetBytes) : 0,
    previewBytes: preview?.peakBytes ?? 0,
    peaks,
    ends: end ? [{...end, at: end.op === undefined ? axis.length : axis.at(end.op)}] : [],
    sections: sectionsOf(graph).map(({at, name}, i, all) => {
      const span = (all[i + 1]?.at ?? graph.ops.length) - at;
      const wide = axis.at(at + span) - axis.at(at);
      return {at: axis.at(at), name, folded: wide < span - 1e-6};
    }),
    tooltipAt: (column) => tooltipOf(graph, curves, placeOf(column), placeOf(column + 1)),
  };
}

/** With what a budget would give about, in place of the plan that was asked for before it. */
function withPreview(curves: PlacedCurves, preview: Preview): PlacedCurves {
  const {whatIf: _, ...others} = curves;
  const above = preview.plan
    ? placed(placedExecs(preview.plan.schedule), withReserve(preview.plan))
    : curves.predictedBase;
  return above ? {...others, preview: previewCurve(above, preview.peakBytes)} : others;
}

/** Of the op of a column at which the first curve that is there is highest. */
function tooltipOf(
  graph: StepGraph,
  curves: PlacedCurves,
  from: number,
  to: number,
): TooltipContent | undefined {
  const order = [
    'measured',
    'preview',
    'whatIf',
    'predicted',
    'measuredBase',
    'predictedBase',
  ] as const;
  for (const first of order) {
    const curve = curves[first];
    const at = curve ? highestIn(curve, from, to) : -1;
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

function highest(values: Float64Array): number {
  return values.reduce((most, value) => Math.max(most, value), 0);
}

function nothingIsZero(values: Float64Array): Float64Array {
  return values.map((value) => (Number.isNaN(value) ? 0 : value));
}
