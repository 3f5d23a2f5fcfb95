// SPDX-License-Identifier: Apache-2.0

/** Why a plan is as it is, by groups of equal blocks. */
import {formatDuration} from '../format/units';
import type {StorageGroup} from '../gen/reprise/v1/planner_pb';
import {Decision} from '../gen/reprise/v1/plan_pb';
import {num} from './number';

export interface ReasonRow {
  readonly name: string;
  readonly count: number;
  readonly bytes: number;
  readonly recomputed: boolean;
  readonly why: string;
  readonly recomputeNs: number;
}

/** "one more GiB saves 2.3 ms"; empty where the budget costs nothing. */
export function priceText(nsPerByte: number): string {
  const perGiB = nsPerByte * 2 ** 30;
  return perGiB >= 0.5 ? `one more GiB saves ${formatDuration(Math.round(perGiB))}` : '';
}

/** Whose clock the times of the ops are of; empty where nobody asked for kernels. */
export function timingText(timing: string): string {
  if (timing === 'kernels') return 'An op takes as long as its kernels.';
  const [source, why] = timing.split(/: (.*)/s);
  return source === 'host' && why ? `Ops are timed by the host: ${why}.` : '';
}

/**
 * What is recomputed first, then what is saved, each most bytes first; `most`
 * of each.
 */
export function reasonRows(groups: readonly StorageGroup[], most: number): ReasonRow[] {
  const rows = groups.map((group) => ({
    name: group.name,
    count: group.count,
    bytes: num(group.bytes),
    recomputed: group.decision === Decision.RECOMPUTE,
    why: group.why,
    recomputeNs: num(group.recomputeNs),
  }));
  const largest = (recomputed: boolean): ReasonRow[] =>
    rows
      .filter((row) => row.recomputed === recomputed)
      .sort((a, b) => b.bytes - a.bytes)
      .slice(0, most);
  return [...largest(true), ...largest(false)];
}
