// SPDX-License-Identifier: Apache-2.0

/** The records of a traced step, as ops and the bytes alive during each. */
import {RecordKind} from '../gen/reprise/v1/ingest_pb';
import type {StepPart} from '../gen/reprise/v1/query_pb';
import {num} from '../format/units';
import {aligned, type Execs, type PlacedCurve} from './step_axis';

/** What an ALLOC record says, as in reprise_agent.h. */
const ALLOC = 0n;
const FREE = 1n;
const BASELINE = 7n;

export interface TracedStep {
  readonly step: number;
  /** Names of the ops, in the order in which they began. */
  readonly names: readonly string[];
  /** Most bytes alive from the beginning of an op to that of the next. */
  readonly bytes: Float64Array;
  /** Most before the first op. */
  readonly before: number;
}

/** From the parts of one step, in the order of the stream. */
export function tracedStep(parts: readonly StepPart[]): TracedStep {
  const texts = new Map<number, string>();
  const names: string[] = [];
  const bytes: number[] = [];
  let [step, live, before] = [0, 0, 0];
  for (const part of parts) {
    if (part.step > 0n || part.endNs > 0n) {
      step = Number(part.step);
      live = before = num(part.baselineBytes);
    }
    for (const {id, text} of part.names) texts.set(id, text);
    part.records?.kind.forEach((kind, i) => {
      const {name, extra, bytes: sizes} = part.records!;
      if (kind === RecordKind.OP_BEGIN) {
        names.push(texts.get(name[i] ?? 0) ?? '');
        bytes.push(live);
      } else if (kind === RecordKind.ALLOC) {
        const what = extra[i] ?? 0n;
        if (what === BASELINE) live = num(sizes[i]);
        else if (what === ALLOC || what === FREE) live += num(sizes[i]);
        const last = bytes.length - 1;
        if (last < 0) before = Math.max(before, live);
        else bytes[last] = Math.max(bytes[last]!, live);
      }
    });
  }
  return {step, names, bytes: Float64Array.from(bytes), before};
}

/**
 * A traced step on the places of the runs it should consist of, aligned by the
 * names of the ops. What ran between two of them (bookkeeping that the step
 * graph leaves out) counts with the one before. A run that was not seen has no
 * sample. `why` there is no curve; else empty.
 */
export function placedStep(
  step: TracedStep,
  execs: Execs,
  nameOf: (op: number) => string,
): {readonly curve: PlacedCurve | undefined; readonly why: string} {
  if (step.names.length === 0) {
    return {curve: undefined, why: 'The traced step has no marks of its ops.'};
  }
  const names = Array.from(execs.ops, nameOf);
  const match = aligned(names, step.names);
  const seen = match?.reduce((sum, at) => sum + (at >= 0 ? 1 : 0), 0) ?? 0;
  // The graph's own, as `reprise.step_begin`, are not executed: no trace has them.
  const executed = names.filter((name) => !name.startsWith('reprise.')).length;
  if (!match || seen < 0.8 * executed) {
    const found = match ? ` Only ${seen} of its ${executed} ops were found.` : '';
    return {curve: undefined, why: `The traced step is not that of the step graph.${found}`};
  }
  const kept = [...execs.ops.keys()].filter((i) => match[i]! >= 0);
  const bytes = kept.map((i, k) => {
    const next = k + 1 < kept.length ? match[kept[k + 1]!]! : step.bytes.length;
    let most = k === 0 ? step.before : 0;
    for (let j = k === 0 ? 0 : match[i]!; j < next; j++) most = Math.max(most, step.bytes[j]!);
    return most;
  });
  return {
    curve: {
      places: Float64Array.from(kept, (i) => execs.places[i]!),
      ops: Int32Array.from(kept, (i) => execs.ops[i]!),
      runs: Int32Array.from(kept, (i) => execs.runs[i]!),
      bytes: Float64Array.from(bytes),
    },
    why: '',
  };
}
