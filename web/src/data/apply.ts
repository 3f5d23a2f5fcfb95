// SPDX-License-Identifier: Apache-2.0

/** Whether a running job takes another budget, and what to do where it does not. */
import {RunState, type Run} from '../gen/reprise/v1/query_pb';

/** `why` it cannot; empty: it can, or the run is over. */
export function appliesTo(run: Run): {readonly can: boolean; readonly why: string} {
  if (run.state !== RunState.RUNNING) return {can: false, why: ''};
  let why = '';
  for (const {capabilities} of run.sessions) {
    for (const one of capabilities) {
      if (one.name !== 'apply') continue;
      if (one.value === 'yes') return {can: true, why: ''};
      why = one.why;
    }
  }
  return {can: false, why: why === '' ? 'it does not say that it can' : why};
}

/**
 * How the program of a run is started with a budget. A run is named after its file unless somebody
 * named it, and names come from jobs: one that is no plain file name is not made a part of a command
 * that somebody may type. `hostBytes`: how much host memory plans may use.
 */
export function runCommand(budget: string, run?: Run, hostBytes = 0n): string {
  const known = /^[A-Za-z0-9_][\w.-]*\.py$/.test(run?.name ?? '') ? run?.name : undefined;
  const name = known ?? 'train.py';
  const host = hostBytes > 0n ? ` --host-budget ${hostBytes}` : '';
  return `reprise run --budget ${budget}${host} -- python ${name}`;
}
