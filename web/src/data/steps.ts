// SPDX-License-Identifier: Apache-2.0

/**
 * The steps of a run as columns, appended to while it trains. Steps come in
 * order; one that was seen before (after a reconnection) is not added again.
 */
import type {StepReport, VerifyReport} from '../gen/reprise/v1/ingest_pb';

/** A new object whenever something was appended; the arrays grow in place. */
export interface StepLog {
  readonly step: number[];
  readonly peakBytes: number[];
  readonly stepNs: number[];
  readonly planned: boolean[];
  /** Tracing was on: its time stands for nothing. */
  readonly window: boolean[];
  readonly oom: boolean[];
  readonly checks: Check[];
}

export interface Check {
  readonly step: number;
  readonly checked: number;
  readonly differing: number;
  readonly equal: boolean;
  readonly firstName: string;
  /** Compared were tensors that the plan made again; else gradients. */
  readonly values: boolean;
}

export function emptyLog(): StepLog {
  return {step: [], peakBytes: [], stepNs: [], planned: [], window: [], oom: [], checks: []};
}

export function appended(
  log: StepLog,
  steps: readonly StepReport[],
  checks: readonly VerifyReport[],
): StepLog {
  const before = log.step.length + log.checks.length;
  for (const report of steps) {
    const step = Number(report.step);
    if (step <= (log.step[log.step.length - 1] ?? -1)) continue;
    log.step.push(step);
    log.peakBytes.push(Number(report.peakBytes));
    log.stepNs.push(Number(report.stepNs));
    log.planned.push(report.planned);
    log.window.push(report.window);
    log.oom.push(report.oom);
  }
  for (const report of checks) {
    const step = Number(report.step);
    if (step <= (log.checks[log.checks.length - 1]?.step ?? -1)) continue;
    log.checks.push({
      step,
      checked: report.checked,
      differing: report.differing,
      equal: report.bitwise && report.differing === 0 && !report.failed,
      firstName: report.firstName,
      values: report.values,
    });
  }
  return log.step.length + log.checks.length === before ? log : {...log};
}

export function checkText(check: Check): string {
  const what = check.values ? 'recomputed tensors' : 'gradients';
  if (check.equal) return `${check.checked} ${what} equal bit for bit`;
  const first = check.firstName === '' ? '' : `, first ${check.firstName}`;
  return `${check.differing} of ${check.checked} ${what} differ${first}`;
}
