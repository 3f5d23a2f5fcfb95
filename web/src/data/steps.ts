// SPDX-License-Identifier: Apache-2.0

/**
 * The steps of a run in buckets, as the server folds them, and one bucket each
 * for the steps that come while the page is open. Steps come in order; one that
 * was seen before (after a reconnection) is not added again.
 */
import {create} from '@bufbuild/protobuf';
import type {StepReport, VerifyReport} from '../gen/reprise/v1/ingest_pb';
import {StepBucketsSchema, type StepBuckets} from '../gen/reprise/v1/query_pb';
import {counted, formatCount} from '../format/units';

/** The columns of StepBuckets as numbers, one value a bucket; the arrays grow in place. */
export type StepLog = {
  readonly [
    key in keyof StepBuckets as StepBuckets[key] extends readonly (bigint | number)[] ? key : never
  ]: number[];
};
const COLUMNS = StepBucketsSchema.fields
  .filter(({fieldKind}) => fieldKind === 'list')
  .map(({localName}) => localName as keyof StepLog);

/** Buckets to ask for, the most that a chart shows: `public/early.js` asks for as many. */
export const BUCKETS = 700;
/** Above so many buckets the server is asked to fold them again. */
export const MOST_BUCKETS = 2000;

export function emptyLog(): StepLog {
  return folded(create(StepBucketsSchema));
}

export function folded(buckets: StepBuckets): StepLog {
  const columns = COLUMNS.map((name) => [
    name,
    Array.from<bigint | number, number>(buckets[name], Number),
  ]);
  return Object.fromEntries(columns) as StepLog;
}

/** A new object whenever something was added. `budget`: of the plan in force; 0: none. */
export function appended(
  log: StepLog,
  steps: readonly StepReport[],
  checks: readonly VerifyReport[],
  budget = 0,
): StepLog {
  let changed = false;
  for (const report of steps) {
    const step = Number(report.step);
    if (step <= (log.last[log.last.length - 1] ?? -1)) continue;
    changed = true;
    const peak = Number(report.peakBytes);
    const ns = Number(report.stepNs);
    const {planned} = report;
    const bucket: Readonly<Record<keyof StepLog, number>> = {
      ...{first: step, last: step, checks: 0, checksDiffering: 0},
      plain: planned ? 0 : 1,
      planned: planned ? 1 : 0,
      plainPeakBytes: planned ? 0 : peak,
      plannedPeakBytes: planned ? peak : 0,
      plainNs: planned ? 0 : ns,
      plannedNs: planned ? ns : 0,
      longestNs: ns,
      overBudget: planned && budget > 0 && peak > budget ? 1 : 0,
      outOfMemory: report.oom ? 1 : 0,
      traced: report.window ? 1 : 0,
    };
    for (const name of COLUMNS) log[name].push(bucket[name]);
  }
  for (const report of checks) {
    const step = Number(report.step);
    const at = log.last.findLastIndex((last) => last <= step);
    const bucket = log.last[at] === step ? at : at + 1;
    if (bucket < 0 || bucket >= log.first.length || log.first[bucket]! > step) continue;
    changed = true;
    log.checks[bucket]! += 1;
    if (report.failed || report.differing > 0 || !report.bitwise) log.checksDiffering[bucket]! += 1;
  }
  return changed ? {...log} : log;
}

export function totals(log: StepLog) {
  const sum = (column: readonly number[]): number => column.reduce((a, b) => a + b, 0);
  const planned = sum(log.planned);
  return {
    steps: sum(log.plain) + planned,
    planned,
    overBudget: sum(log.overBudget),
    outOfMemory: sum(log.outOfMemory),
    checks: sum(log.checks),
    differing: sum(log.checksDiffering),
  };
}

/** A bucket's name: "step 7", "steps 100 to 199". */
export function bucketName(log: StepLog, at: number): string {
  const [first, last] = [log.first[at]!, log.last[at]!];
  return first === last
    ? `step ${formatCount(first)}`
    : `steps ${formatCount(first)} to ${formatCount(last)}`;
}

export function checksText(checks: number, differing: number): string {
  if (differing === 0)
    return `${counted(checks, 'check')}, ${checks === 1 ? 'equal' : 'all equal'}`;
  return `${formatCount(differing)} of ${counted(checks, 'check')} found a difference`;
}
