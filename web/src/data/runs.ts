// SPDX-License-Identifier: Apache-2.0

/** The list of runs as a person wants it: searched, filtered and sorted by the server. */
import type {MessageInitShape} from '@bufbuild/protobuf';
import {
  RunGrouping,
  RunOrder,
  Standing,
  type ListRunsRequestSchema,
  type ListRunsResponse,
  type Run,
} from '../gen/reprise/v1/query_pb';
import {runTitle, STANDINGS} from '../format/run';

/** Runs of the list at first, a few screens: `public/early.js` asks for as many. */
export const FIRST_RUNS = 50;

export const SORTS = ['started', 'name', 'budget', 'peak', 'steps'] as const;
export type Sort = (typeof SORTS)[number];

/** What the address says of the list; absent: everything, newest first. */
export interface RunsView {
  readonly search?: string;
  /** A standing, or "running". */
  readonly show?: Shown;
  /** Those of whoever looks alone. */
  readonly mine?: boolean;
  readonly sort?: Sort;
  /** Runs of one name, or that ended alike, stand together. */
  readonly group?: Grouping;
  /** Smallest, oldest or first in the alphabet at the top. */
  readonly ascending?: boolean;
}

export const GROUPINGS = ['name', 'ending'] as const;
export type Grouping = (typeof GROUPINGS)[number];

/** Runs in their order, by group; a group stands where its first run does. No title: not grouped. */
export function grouped(
  runs: readonly Run[],
  by: Grouping | undefined,
): readonly {readonly title: string; readonly runs: readonly Run[]}[] {
  if (by === undefined) return [{title: '', runs}];
  const groups = new Map<string, Run[]>();
  for (const run of runs) {
    const title = by === 'name' ? runTitle(run) : run.ending;
    const known = groups.get(title);
    if (known) known.push(run);
    else groups.set(title, [run]);
  }
  return [...groups].map(([title, members]) => ({title, runs: members}));
}

/** Words of the address for what the server calls a standing. */
const SHOWN = {
  running: Standing.UNSPECIFIED,
  waiting: Standing.WAITING,
  unplanned: Standing.UNPLANNED,
  measuring: Standing.MEASURING,
  validated: Standing.VALIDATED,
  failed: Standing.NOT_HELD,
  impossible: Standing.IMPOSSIBLE,
  unproven: Standing.UNPROVEN,
  died: Standing.DIED,
  imported: Standing.IMPORTED,
} as const;
export type Shown = keyof typeof SHOWN;
export const KINDS = Object.keys(SHOWN) as readonly Shown[];

/** An order, where there is no table whose head says it. */
export const ORDER_TEXT: Readonly<Record<Sort, Readonly<Record<'down' | 'up', string>>>> = {
  started: {down: 'newest first', up: 'oldest first'},
  name: {down: 'name, Z to A', up: 'name, A to Z'},
  budget: {down: 'largest budget first', up: 'smallest budget first'},
  peak: {down: 'largest peak first', up: 'smallest peak first'},
  steps: {down: 'most steps first', up: 'fewest steps first'},
};

export function shownText(shown: Shown): string {
  return shown === 'running' ? 'running' : STANDINGS[SHOWN[shown]][0];
}

/** Kinds of runs that are there, the most frequent first, each with its count. */
export function kindsOf(answer: ListRunsResponse): readonly (readonly [Shown, number])[] {
  const counts = answer.standings.flatMap(({standing, runs}): [Shown, number][] => {
    const shown = KINDS.find((one) => one !== 'running' && SHOWN[one] === standing);
    return shown && runs > 0 ? [[shown, runs]] : [];
  });
  if (answer.running > 0) counts.push(['running', answer.running]);
  return counts.sort(([a, m], [b, n]) => n - m || (a < b ? -1 : 1));
}

/** What to ask the server for, so that it searches, sorts and cuts the list. */
export function listRequest(
  view: RunsView,
  limit: number,
): MessageInitShape<typeof ListRunsRequestSchema> {
  return {
    limit,
    search: (view.search ?? '').slice(0, 200),
    running: view.show === 'running',
    mine: view.mine ?? false,
    standing: view.show ? SHOWN[view.show] : Standing.UNSPECIFIED,
    order: {
      started: RunOrder.UNSPECIFIED,
      name: RunOrder.NAME,
      budget: RunOrder.BUDGET,
      peak: RunOrder.PEAK,
      steps: RunOrder.STEPS,
    }[view.sort ?? 'started'],
    ascending: view.ascending ?? false,
    grouping: {
      none: RunGrouping.UNSPECIFIED,
      name: RunGrouping.NAME,
      ending: RunGrouping.ENDING,
    }[view.group ?? 'none'],
  };
}

/** The measured peak: of planned steps, else of those without a plan; 0: not known. */
export function peakOf(run: Run): bigint {
  const verdict = run.verdict;
  if (!verdict) return 0n;
  return verdict.measuredPeakBytes || verdict.basePeakBytes || verdict.unplannedPeakBytes;
}
