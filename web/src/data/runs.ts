// SPDX-License-Identifier: Apache-2.0

/** The list of runs as a person wants it: searched, filtered, sorted. */
import {RunState, type Run} from '../gen/reprise/v1/query_pb';
import {endingText, runTitle, standingOf, STANDING_TEXT, type Standing} from '../format/run';

export const SORTS = ['started', 'name', 'budget', 'peak', 'steps'] as const;
export type Sort = (typeof SORTS)[number];

/** What the address says of the list; absent: everything, newest first. */
export interface RunsView {
  readonly search?: string;
  /** A standing, or "running". */
  readonly show?: Shown;
  readonly sort?: Sort;
  /** Runs of one name, or that ended alike, stand together. */
  readonly group?: Grouping;
  /** Smallest, oldest or first in the alphabet at the top. */
  readonly ascending?: boolean;
}

export const GROUPINGS = ['name', 'ending'] as const;
export type Grouping = (typeof GROUPINGS)[number];

export function isGrouping(text: string): text is Grouping {
  return (GROUPINGS as readonly string[]).includes(text);
}

export interface RunGroup {
  /** Empty: the runs are not grouped. */
  readonly title: string;
  readonly runs: readonly Run[];
}

/** Runs in their order, by group; a group stands where its first run does. */
export function grouped(runs: readonly Run[], by: Grouping | undefined): RunGroup[] {
  if (by === undefined) return [{title: '', runs}];
  const groups = new Map<string, Run[]>();
  for (const run of runs) {
    const title = by === 'name' ? runTitle(run) : endingText(run);
    const known = groups.get(title);
    if (known) known.push(run);
    else groups.set(title, [run]);
  }
  return [...groups].map(([title, members]) => ({title, runs: members}));
}

export type Shown = Standing | 'running';

export function isSort(text: string): text is Sort {
  return (SORTS as readonly string[]).includes(text);
}

export function isShown(text: string): text is Shown {
  return text === 'running' || Object.hasOwn(STANDING_TEXT, text);
}

export function shownText(shown: Shown): string {
  return shown === 'running' ? 'running' : STANDING_TEXT[shown];
}

/** Kinds of runs that are there, the most frequent first, each with its count. */
export function kindsOf(runs: readonly Run[]): readonly (readonly [Shown, number])[] {
  const counts = new Map<Shown, number>();
  const count = (kind: Shown): void => void counts.set(kind, (counts.get(kind) ?? 0) + 1);
  for (const run of runs) {
    if (run.state === RunState.RUNNING) count('running');
    count(standingOf(run));
  }
  return [...counts].sort(([a, m], [b, n]) => n - m || (a < b ? -1 : 1));
}

/** The runs of a view. O(n log n); equal ones keep the server's order, newest first. */
export function viewOf(runs: readonly Run[], view: RunsView): Run[] {
  const words = (view.search ?? '').toLowerCase().split(/\s+/).filter(Boolean);
  const found = runs.filter((run) => {
    if (view.show === 'running' && run.state !== RunState.RUNNING) return false;
    if (view.show && view.show !== 'running' && standingOf(run) !== view.show) return false;
    const text = [runTitle(run), run.runId, run.host, endingText(run), run.verdict?.sentence]
      .join('\n')
      .toLowerCase();
    return words.every((word) => text.includes(word));
  });
  const sort = view.sort ?? 'started';
  const sign = view.ascending ? 1 : -1;
  return found.sort((a, b) => {
    const [x, y] = [keyOf(a, sort), keyOf(b, sort)];
    return x === y ? 0 : x < y ? -sign : sign;
  });
}

function keyOf(run: Run, sort: Sort): bigint | string {
  switch (sort) {
    case 'name':
      return runTitle(run).toLowerCase();
    case 'budget':
      return run.verdict?.budgetBytes ?? 0n;
    case 'peak':
      return peakOf(run);
    case 'steps':
      return run.steps;
    case 'started':
      return run.startedNs;
  }
}

/** The measured peak: of planned steps, else of those without a plan; 0: not known. */
export function peakOf(run: Run): bigint {
  const verdict = run.verdict;
  if (!verdict) return 0n;
  return verdict.measuredPeakBytes || verdict.basePeakBytes || verdict.unplannedPeakBytes;
}
