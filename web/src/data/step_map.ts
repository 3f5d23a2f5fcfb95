// SPDX-License-Identifier: Apache-2.0

/**
 * A step as a map: what runs, in the order in which it runs, folded by module,
 * and what the forward keeps for the backward as arcs between the folds.
 *
 *        .------------------.          arcs: kept from here to there
 *       /   .--------.       \
 *   [ a ][ b ]  |  [ b' ][ b again ][ a' ]
 */
import {Phase, type StepGraph} from '../gen/reprise/v1/graph_pb';
import {counted, formatDuration, num} from '../format/units';
import type {Held} from './base_memory';
import {PHASE_NAMES} from './memory_view';
import type {Execs} from './step_axis';
import {lastUpTo} from './timeline';

/** Runs [from, to) of the schedule, all of one module and phase. */
export interface Segment {
  readonly from: number;
  readonly to: number;
  /** The module, as deep as it is opened; "" where ops name none. */
  readonly module: string;
  readonly phase: Phase;
  /** A plan runs it again. */
  readonly again: boolean;
  readonly timeNs: number;
  /** It has modules inside that can be opened. */
  readonly deeper: boolean;
}

/** Bytes kept from one segment to another. */
export interface Arc {
  readonly from: number;
  readonly to: number;
  readonly bytes: number;
  readonly count: number;
}

/** The name of a module as deep as it is opened, and whether there is more. */
function foldOf(module: string, opened: ReadonlySet<string>): readonly [string, boolean] {
  if (module === '') return ['', false];
  let end = module.indexOf('.');
  while (end >= 0 && opened.has(module.slice(0, end))) end = module.indexOf('.', end + 1);
  return end < 0 ? [module, false] : [module.slice(0, end), true];
}

/** O(runs). An op without a module belongs to what runs before it. */
export function segmentsOf(graph: StepGraph, execs: Execs, opened: ReadonlySet<string>): Segment[] {
  const segments: Segment[] = [];
  let open: {-readonly [key in keyof Segment]: Segment[key]} | undefined;
  execs.ops.forEach((at, i) => {
    const op = graph.ops[at];
    if (!op) return;
    const again = execs.runs[i]! > 0;
    const timeNs = again && op.againNs > 0n ? num(op.againNs) : num(op.timeNs);
    const [module, deeper] = foldOf(op.module, opened);
    const same =
      open !== undefined &&
      open.again === again &&
      (again || open.phase === op.phase) &&
      (module === '' || open.module === module || open.module === '');
    if (!same || !open) {
      open = {from: i, to: i + 1, module, phase: op.phase, again, timeNs, deeper};
      segments.push(open);
      return;
    }
    open.to = i + 1;
    open.timeNs += timeNs;
    if (open.module === '') open.module = module;
    open.deeper ||= deeper;
  });
  return segments;
}

/**
 * Modules to open at first: siblings together, the largest family first, as long
 * as at most `most` segments come of it.
 */
export function openedAtFirst(graph: StepGraph, execs: Execs, most: number): Set<string> {
  let opened = new Set<string>();
  const refused = new Set<string>();
  for (;;) {
    const families = new Map<string, {size: number; members: Set<string>}>();
    for (const {module, from, to, deeper} of segmentsOf(graph, execs, opened)) {
      const parent = module.slice(0, Math.max(0, module.lastIndexOf('.')));
      if (!deeper || refused.has(parent)) continue;
      const family = families.get(parent) ?? {size: 0, members: new Set()};
      family.size += to - from;
      family.members.add(module);
      families.set(parent, family);
    }
    const largest = [...families].sort(([a, x], [b, y]) => y.size - x.size || (a < b ? -1 : 1))[0];
    if (!largest) return opened;
    const [parent, {members}] = largest;
    const more = new Set([...opened, ...members]);
    if (segmentsOf(graph, execs, more).length > most) refused.add(parent);
    else opened = more;
  }
}

/** The segment of a run. O(log segments). */
export function segmentAt(segments: readonly Segment[], run: number): number {
  return lastUpTo(segments.length, (i) => segments[i]!.from, run);
}

/**
 * What is kept from the forward to the backward, one arc for each pair of
 * segments, most bytes first. What is made and dropped within a phase is none.
 */
export function arcsOf(
  segments: readonly Segment[],
  lives: readonly Omit<Held, 'category'>[],
): Arc[] {
  const arcs = new Map<string, Arc>();
  for (const {bytes, born, last} of lives) {
    const from = segmentAt(segments, born);
    const to = segmentAt(segments, last);
    const [a, b] = [segments[from], segments[to]];
    if (!a || !b || from === to || a.again || a.phase !== Phase.FORWARD) continue;
    if (b.phase === Phase.FORWARD && !b.again) continue;
    const key = `${from} ${to}`;
    const known = arcs.get(key);
    arcs.set(key, {
      from,
      to,
      bytes: bytes + (known?.bytes ?? 0),
      count: 1 + (known?.count ?? 0),
    });
  }
  return [...arcs.values()].sort((a, b) => b.bytes - a.bytes || a.from - b.from);
}

/** A segment on the screen, or a row of segments too narrow to be seen alone. */
export interface Box {
  readonly x: number;
  readonly width: number;
  /** The first and the last segment of it. */
  readonly first: number;
  readonly last: number;
}

/** What of the segments is on `width` pixels, with `x` of a run on them: at most width / 2 boxes. */
export function boxesOf(
  segments: readonly Segment[],
  x: (run: number) => number,
  width: number,
): Box[] {
  const boxes: Box[] = [];
  segments.forEach((segment, i) => {
    const left = Math.max(0, x(segment.from));
    const right = Math.min(width, x(segment.to));
    if (right <= 0 || left >= width) return;
    const before = boxes[boxes.length - 1];
    if (before && (right - left < 2 || before.width < 2) && right - before.x < 4) {
      boxes[boxes.length - 1] = {...before, width: right - before.x, last: i};
    } else {
      boxes.push({x: left, width: right - left, first: i, last: i});
    }
  });
  return boxes;
}

/** The end of the module's path; a number alone says nothing: "blocks.0". */
export function labelOf(segment: Segment): string {
  if (segment.module === '') return PHASE_NAMES[segment.phase];
  const parts = segment.module.split('.');
  return parts.slice(/^\d+$/.test(parts.at(-1)!) ? -2 : -1).join('.');
}

export function describe({module, phase, again, from, to, timeNs}: Segment): string {
  const name = `${module || 'no module'}, ${PHASE_NAMES[phase]}${again ? ', run again' : ''}`;
  return `${name}: ${counted(to - from, 'op')}, ${formatDuration(timeNs)}`;
}
