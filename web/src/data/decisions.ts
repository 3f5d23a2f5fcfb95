// SPDX-License-Identifier: Apache-2.0

/** Every storage of a step: what a plan does with it, why, and what the other decision costs. */
import {formatBytes, formatDuration, num} from '../format/units';
import {Decision} from '../gen/reprise/v1/plan_pb';
import type {StorageExplanation, WhatIf} from '../gen/reprise/v1/planner_pb';

/** `peak` and `base`: alive at the peak with the plan, and without one. */
export type DecisionKind = 'all' | 'saved' | 'host' | 'recomputed' | 'peak' | 'base';
export type DecisionSort = 'bytes' | 'name' | 'cost' | 'other' | 'place';

const IS_OF: Readonly<Record<DecisionKind, (one: StorageExplanation) => boolean>> = {
  all: () => true,
  saved: (one) => one.decision === Decision.SAVE,
  host: (one) => one.decision === Decision.OFFLOAD,
  recomputed: (one) => one.decision === Decision.RECOMPUTE,
  peak: (one) => one.aliveAtPeak,
  base: (one) => one.aliveAtBasePeak,
};

type DecisionRow = ReturnType<typeof rowOf>;

/** In the first order of a column: the largest, the costliest, the oldest, from A. */
const ORDERS: Readonly<Record<DecisionSort, (a: DecisionRow, b: DecisionRow) => number>> = {
  bytes: (a, b) => b.bytes - a.bytes,
  name: (a, b) => a.name.localeCompare(b.name, 'en', {numeric: true}),
  cost: (a, b) => b.recomputeNs - a.recomputeNs,
  place: (a, b) => a.madeBy - b.madeBy,
  // What is not known comes last.
  other: (a, b) => (a.otherNs ?? Infinity) - (b.otherNs ?? Infinity) || 0,
};

/** Ties by storage. */
export function decisionRows(
  storages: readonly StorageExplanation[],
  search: string,
  kind: DecisionKind,
  sort: DecisionSort,
  reverse = false,
): DecisionRow[] {
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  const sign = reverse ? -1 : 1;
  return storages
    .filter(IS_OF[kind])
    .filter((one) => {
      const text = `${one.name}\n${one.module}\n${reasonText(one.why)}`.toLowerCase();
      return words.every((word) => text.includes(word));
    })
    .map(rowOf)
    .sort((a, b) => sign * ORDERS[sort](a, b) || a.storage - b.storage);
}

function rowOf({bytes, recomputeNs, whatIf, name, why, ...one}: StorageExplanation) {
  return {
    ...one,
    name: name || `storage ${one.storage}`,
    bytes: num(bytes),
    recomputed: one.decision === Decision.RECOMPUTE,
    /** "saved: costly to make again". */
    decision: [decisionText(one.decision), reasonText(why)].filter(Boolean).join(': '),
    /** 0: not known, or it cannot be. */
    recomputeNs: why === 'not_repeatable' ? 0 : num(recomputeNs),
    /** "recomputed: 2.1 ms more, 864.0 KiB less at the peak"; empty: not known. */
    other: otherText(whatIf),
    /** Time that the other decision adds; undefined: not known. */
    otherNs: whatIf && num(whatIf.addedNs),
  };
}

/**
 * An op is known by the largest storage that it makes: names by op. Storages come
 * largest first, and the last entry of a key stays.
 */
export function largestOf(storages: readonly StorageExplanation[]): ReadonlyMap<number, string> {
  return new Map(
    storages
      .filter((storage) => storage.name !== '')
      .map((storage) => [storage.madeBy, storage.name] as const)
      .reverse(),
  );
}

const REASONS: Readonly<Record<string, string>> = {
  cheap: 'cheap to make again',
  costly: 'costly to make again',
  room: 'the budget leaves room for it',
  no_gain: 'dropping it would not lower the peak',
  not_repeatable: 'its op may run only once',
  small: 'too small to matter',
  pinned: 'the executor must keep it',
  capability: 'this executor cannot run its op again',
  shared: 'made again once for several readers',
  needed: 'costly, but nothing cheaper makes room',
  hidden: 'its copies end before anything waits for them',
  awaited: 'ops wait for its copies',
};

export function reasonText(why: string): string {
  return REASONS[why] ?? why;
}

function decisionText(decision: Decision): string {
  if (decision === Decision.RECOMPUTE) return 'recomputed';
  if (decision === Decision.OFFLOAD) return 'on the host';
  return decision === Decision.SAVE ? 'saved' : '';
}

function otherText(whatIf: WhatIf | undefined): string {
  if (!whatIf) return '';
  const parts = [
    difference(num(whatIf.addedNs), formatDuration, 'per step'),
    difference(num(whatIf.addedBytes), formatBytes, 'at the peak'),
  ].filter(Boolean);
  return `${decisionText(whatIf.decision)}: ${parts.join(', ') || 'no difference'}`;
}

function difference(value: number, format: (value: number) => string, where: string): string {
  if (value === 0) return '';
  return `${format(Math.abs(value))} ${value > 0 ? 'more' : 'less'} ${where}`;
}
