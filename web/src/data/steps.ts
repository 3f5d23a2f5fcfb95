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

/** Columns, one value a bucket; the arrays grow in place. */
export interface StepLog {
  readonly first: number[];
  readonly last: number[];
  readonly plain: number[];
  readonly planned: number[];
  /** The largest of a bucket; 0: it has no such step. */
  readonly plainPeak: number[];
  readonly plannedPeak: number[];
  /** The median of a bucket. */
  readonly plainNs: number[];
  readonly plannedNs: number[];
  readonly longestNs: number[];
  readonly overBudget: number[];
  readonly outOfMemory: number[];
  /** Tracing was on: its time stands for nothing. */
  readonly traced: number[];
  readonly checks: number[];
  readonly differing: number[];
}

/** Above so many buckets the server is asked to fold them again. */
export const MOST_BUCKETS = 2000;

export function emptyLog(): StepLog {
  return folded(create(StepBucketsSchema));
}

export function folded(buckets: StepBuckets): StepLog {
  const numbers = (column: readonly (bigint | number)[]): number[] => column.map(Number);
  return {
    first: numbers(buckets.first),
    last: numbers(buckets.last),
    plain: numbers(buckets.plain),
    planned: numbers(buckets.planned),
    plainPeak: numbers(buckets.plainPeakBytes),
    plannedPeak: numbers(buckets.plannedPeakBytes),
    plainNs: numbers(buckets.plainNs),
    plannedNs: numbers(buckets.plannedNs),
    longestNs: numbers(buckets.longestNs),
    overBudget: numbers(buckets.overBudget),
    outOfMemory: numbers(buckets.outOfMemory),
    traced: numbers(buckets.traced),
    checks: numbers(buckets.checks),
    differing: numbers(buckets.checksDiffering),
  };
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
    log.first.push(step);
    log.last.push(step);
    log.plain.push(planned ? 0 : 1);
    log.planned.push(planned ? 1 : 0);
    log.plainPeak.push(planned ? 0 : peak);
    log.plannedPeak.push(planned ? peak : 0);
    log.plainNs.push(planned ? 0 : ns);
    log.plannedNs.push(planned ? ns : 0);
    log.longestNs.push(ns);
    log.overBudget.push(planned && budget > 0 && peak > budget ? 1 : 0);
    log.outOfMemory.push(report.oom ? 1 : 0);
    log.traced.push(report.window ? 1 : 0);
    log.checks.push(0);
    log.differing.push(0);
  }
  for (const report of checks) {
    const step = Number(report.step);
    const at = log.last.findLastIndex((last) => last <= step);
    const bucket = log.last[at] === step ? at : at + 1;
    if (bucket < 0 || bucket >= log.first.length || log.first[bucket]! > step) continue;
    changed = true;
    log.checks[bucket]! += 1;
    if (report.failed || report.differing > 0 || !report.bitwise) log.differing[bucket]! += 1;
  }
  return changed ? {...log} : log;
}

export interface StepTotals {
  readonly steps: number;
  readonly planned: number;
  readonly overBudget: number;
  readonly outOfMemory: number;
  readonly checks: number;
  readonly differing: number;
}

export function totals(log: StepLog): StepTotals {
  const sum = (column: readonly number[]): number => column.reduce((a, b) => a + b, 0);
  const planned = sum(log.planned);
  return {
    steps: sum(log.plain) + planned,
    planned,
    overBudget: sum(log.overBudget),
    outOfMemory: sum(log.outOfMemory),
    checks: sum(log.checks),
    differing: sum(log.differing),
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
