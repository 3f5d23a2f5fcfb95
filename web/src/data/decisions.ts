// SPDX-License-Identifier: Apache-2.0

/** Every storage of a plan: what is done with it, why, and what the other decision costs. */
import {formatBytes, formatDuration} from '../format/units';
import type {Category} from '../gen/reprise/v1/graph_pb';
import {Decision} from '../gen/reprise/v1/plan_pb';
import type {StorageExplanation, WhatIf} from '../gen/reprise/v1/planner_pb';
import {num} from '../format/number';
import {decisionText, reasonText} from './peak';

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
  readonly recomputeNs: number;
  /** "recomputed: 2.1 ms more, 864.0 KiB less at the peak"; empty: not known. */
  readonly other: string;
  /** Time that the other decision adds; undefined: not known. */
  readonly otherNs: number | undefined;
}

export type DecisionKind = 'all' | 'saved' | 'recomputed' | 'peak';
export type DecisionSort = 'bytes' | 'cost' | 'other' | 'place';

export function decisionRows(
  storages: readonly StorageExplanation[],
  search: string,
  kind: DecisionKind,
  sort: DecisionSort,
): DecisionRow[] {
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  return storages
    .filter((one) => {
      if (kind === 'peak' && !one.aliveAtPeak) return false;
      if (kind === 'saved' && one.decision !== Decision.SAVE) return false;
      if (kind === 'recomputed' && one.decision !== Decision.RECOMPUTE) return false;
      const text = `${one.name}\n${one.module}\n${reasonText(one.why)}`.toLowerCase();
      return words.every((word) => text.includes(word));
    })
    .map((one) => ({
      storage: one.storage,
      name: one.name || `storage ${one.storage}`,
      module: one.module,
      bytes: num(one.bytes),
      category: one.category,
      recomputed: one.decision === Decision.RECOMPUTE,
      decision: [decisionText(one.decision), reasonText(one.why)].filter(Boolean).join(': '),
      madeBy: one.madeBy,
      lastReadBy: one.lastReadBy,
      recomputeNs: num(one.recomputeNs),
      other: otherText(one.whatIf),
      otherNs: one.whatIf ? num(one.whatIf.addedNs) : undefined,
    }))
    .sort((a, b) => compare(a, b, sort) || a.storage - b.storage);
}

function compare(a: DecisionRow, b: DecisionRow, sort: DecisionSort): number {
  switch (sort) {
    case 'bytes':
      return b.bytes - a.bytes;
    case 'cost':
      return b.recomputeNs - a.recomputeNs;
    case 'place':
      return a.madeBy - b.madeBy;
    case 'other':
      // What is not known comes last.
      return (a.otherNs ?? Infinity) - (b.otherNs ?? Infinity) || 0;
  }
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
