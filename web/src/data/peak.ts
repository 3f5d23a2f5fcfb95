// SPDX-License-Identifier: Apache-2.0

/** What is alive at the peak, as the rows of a table. */
import type {StorageExplanation} from '../gen/reprise/v1/planner_pb';
import {Decision} from '../gen/reprise/v1/plan_pb';
import {num} from '../format/number';

export type PeakRow = Readonly<
  Omit<StorageExplanation, '$typeName' | '$unknown' | 'bytes' | 'recomputeNs'>
> & {readonly bytes: number; readonly recomputeNs: number};

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

export type SortKey = 'bytes' | 'age' | 'cost' | 'name';

/** With the plan, or at the peak of the step without one. */
export function aliveAtPeak(storages: readonly StorageExplanation[], base: boolean): PeakRow[] {
  return storages
    .filter((storage) => (base ? storage.aliveAtBasePeak : storage.aliveAtPeak))
    .map(({bytes, recomputeNs, ...storage}) => ({
      ...storage,
      bytes: num(bytes),
      recomputeNs: num(recomputeNs),
    }));
}

/** Largest, oldest or costliest first; names from A. Ties by storage id. */
export function sorted(rows: readonly PeakRow[], key: SortKey, reverse: boolean): PeakRow[] {
  const order = (a: PeakRow, b: PeakRow): number => {
    switch (key) {
      case 'bytes':
        return b.bytes - a.bytes;
      case 'age':
        return a.madeBy - b.madeBy;
      case 'cost':
        return b.recomputeNs - a.recomputeNs;
      case 'name':
        return a.name.localeCompare(b.name, 'en', {numeric: true});
    }
  };
  const sign = reverse ? -1 : 1;
  return [...rows].sort((a, b) => sign * order(a, b) || a.storage - b.storage);
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

export function decisionText(decision: Decision): string {
  switch (decision) {
    case Decision.RECOMPUTE:
      return 'recomputed';
    case Decision.SAVE:
      return 'saved';
    default:
      return '';
  }
}
