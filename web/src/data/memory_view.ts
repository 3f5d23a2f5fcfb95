// SPDX-License-Identifier: Apache-2.0

/**
 * Memory over one step as the chart draws it, on one of two axes:
 *
 *   ops    the place of an op in the step: every curve has the same op at the
 *          same place, and a tooltip speaks of one op alone (memory_ops.ts);
 *   time   ns since the start of a step, each curve in its own: steps of
 *          different lengths lie beside each other, not over each other
 *          (memory_time.ts).
 */
import type {TooltipContent} from '../format/tooltip';
import {Phase, type StepGraph} from '../gen/reprise/v1/graph_pb';
import type {Axis} from './folded_axis';
import type {Band, Columns, Grid, Peak, Window} from './timeline';

/** Curves in the order in which they are drawn, the last on top, and what they are called. */
export const LINE_NAMES = {
  measuredBase: 'no plan, measured',
  predictedBase: 'no plan, predicted',
  whatIf: 'what if, predicted',
  preview: 'what if, interpolated',
  predicted: 'predicted',
  measured: 'measured',
} as const;
export type Line = keyof typeof LINE_NAMES;
export const LINES = Object.keys(LINE_NAMES) as readonly Line[];

export interface MarkedPeak extends Peak {
  readonly of: 'measured' | 'predicted' | 'whatIf';
}

/** From here on the step is in this part of it. */
export interface Section {
  readonly at: number;
  readonly name: string;
  /** Drawn narrower than its ops are many. */
  readonly folded?: boolean;
}

/** Where a job ended, or its memory did. */
export interface EndMark extends Peak {
  readonly name: string;
}

export interface MemoryData extends Readonly<Partial<Record<Line, Columns>>> {
  /** Of ops; undefined: the axis is time. */
  readonly axis: Axis | undefined;
  /** What of the axis is on the screen. */
  readonly view: Window;
  readonly grid: Grid;
  /** Tops of the stack, the lowest first. */
  readonly bands: readonly Band[];
  readonly budgetBytes: number;
  readonly whatIfBudgetBytes: number;
  /** The peak of a budget that is not planned yet; 0: none is. */
  readonly previewBytes: number;
  /** Marked where they lie, whatever the window. */
  readonly peaks: readonly MarkedPeak[];
  readonly ends: readonly EndMark[];
  readonly sections: readonly Section[];
  /** Of the whole step: the scale is the same whatever part of it is on the screen. Absent: it is not. */
  readonly peakBytes?: number;
  /** The instant that the page speaks of. */
  readonly at?: number | undefined;
  /** What stands at a column. */
  readonly tooltipAt: (column: number) => TooltipContent | undefined;
}

/** Curves by time, and nothing beside them. */
export const CURVES_ALONE = {
  axis: undefined,
  bands: [],
  budgetBytes: 0,
  whatIfBudgetBytes: 0,
  previewBytes: 0,
  peaks: [],
  // Of an op it is known where it stands in the step, not when it ran.
  ends: [],
  sections: [],
} as const;

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
