// SPDX-License-Identifier: Apache-2.0

/** Every storage of a step: what a plan does with it, why, and what the other decision costs. */
import {formatBytes, formatDuration} from '../format/units';
import type {Category} from '../gen/reprise/v1/graph_pb';
import {Decision} from '../gen/reprise/v1/plan_pb';
import type {StorageExplanation, WhatIf} from '../gen/reprise/v1/planner_pb';
import {num} from '../format/number';

export interface DecisionRow {
  readonly storage: number;
  readonly name: string;
  readonly module: string;
  readonly bytes: number;
  readonly category: Category;
  readonly recomputed: boolean;
  /** "saved: costly to make again". */
  readonly decision: string;
  readonly madeBy: number;
  readonly lastReadBy: number;
  /** 0: not known, or it cannot be. */
  readonly recomputeNs: number;
  readonly timesRecomputed: number;
  /** "recomputed: 2.1 ms more, 864.0 KiB less at the peak"; empty: not known. */
  readonly other: string;
  /** Time that the other decision adds; undefined: not known. */
  readonly otherNs: number | undefined;
}

/** `peak` and `base`: alive at the peak with the plan, and without one. */
export type DecisionKind = 'all' | 'saved' | 'recomputed' | 'peak' | 'base';
export type DecisionSort = 'bytes' | 'name' | 'cost' | 'other' | 'place';

const IS_OF: Readonly<Record<DecisionKind, (one: StorageExplanation) => boolean>> = {
  all: () => true,
  saved: (one) => one.decision === Decision.SAVE,
  recomputed: (one) => one.decision === Decision.RECOMPUTE,
  peak: (one) => one.aliveAtPeak,
  base: (one) => one.aliveAtBasePeak,
};

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
    .map(({bytes, recomputeNs, whatIf, name, why, ...one}) => ({
      ...one,
      name: name || `storage ${one.storage}`,
      bytes: num(bytes),
      recomputed: one.decision === Decision.RECOMPUTE,
      decision: [decisionText(one.decision), reasonText(why)].filter(Boolean).join(': '),
      recomputeNs: why === 'not_repeatable' ? 0 : num(recomputeNs),
      other: otherText(whatIf),
      otherNs: whatIf && num(whatIf.addedNs),
    }))
    .sort((a, b) => sign * ORDERS[sort](a, b) || a.storage - b.storage);
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
};

export function reasonText(why: string): string {
  return REASONS[why] ?? why;
}

function decisionText(decision: Decision): string {
  if (decision === Decision.RECOMPUTE) return 'recomputed';
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
