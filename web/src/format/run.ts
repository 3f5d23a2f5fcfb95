// SPDX-License-Identifier: Apache-2.0

/** A run in words. */
import {RunState, type Run, type Verdict} from '../gen/reprise/v1/query_pb';

export function stateText(state: RunState): string {
  switch (state) {
    case RunState.RUNNING:
      return 'running';
    case RunState.FINISHED:
      return 'finished';
    case RunState.KILLED:
      return 'killed';
    case RunState.FAILED:
      return 'failed';
    default:
      return 'unknown';
  }
}

/** How a run ended, as far as the server says: "failed: ValueError: ...". */
export function endingText(run: Run): string {
  const {verdict, state} = run;
  const failure = verdict?.failure ?? '';
  if (
    state === RunState.FAILED &&
    /out of memory|OutOfMemory|can't allocate memory/i.test(failure)
  ) {
    return 'out of memory';
  }
  if (state === RunState.FINISHED && verdict && !verdict.feasible && run.planId !== '') {
    return verdict.unplannedSteps > 0 ? 'refused, trained on' : 'refused';
  }
  return stateText(state);
}

export function runTitle(run: Run): string {
  // The server names a run by its id when the job does not.
  if (run.name !== '' && run.name !== run.runId) return run.name;
  return run.host === '' ? run.runId : `${run.host}:${run.pid}`;
}

/** How far the proof of a run has come. */
export type Standing =
  /** Its job was killed, or an error of its own ended it. */
  | 'died'
  /** No plan yet. */
  | 'waiting'
  /** The run is over, and there was none. */
  | 'unplanned'
  /** Planned, and not yet proven. */
  | 'measuring'
  | 'validated'
  /** Measured, and the plan did not hold. */
  | 'failed'
  /** No plan fits. */
  | 'impossible'
  /** The run is over and its plan was never proven. */
  | 'unproven';

export function standingOf(run: Run | undefined): Standing {
  if (!run) return 'waiting';
  if (run.state === RunState.KILLED || run.state === RunState.FAILED) return 'died';
  const verdict = run.verdict;
  if (!verdict || run.planId === '')
    return run.state === RunState.FINISHED ? 'unplanned' : 'waiting';
  if (!verdict.feasible) return 'impossible';
  if (verdict.validated) return 'validated';
  if (broken(verdict)) return 'failed';
  return run.state === RunState.RUNNING ? 'measuring' : 'unproven';
}

function broken(verdict: Verdict): boolean {
  return (
    verdict.gradientsDiffering > 0 ||
    verdict.checksDiffering > 0 ||
    verdict.mismatches > 0 ||
    verdict.withdrawn !== '' ||
    verdict.refused !== '' ||
    verdict.overBudgetSteps > 0 ||
    (verdict.plannedSteps > 0 && verdict.measuredPeakBytes > verdict.budgetBytes)
  );
}

export const STANDING_TEXT: Readonly<Record<Standing, string>> = {
  died: 'died',
  waiting: 'no plan yet',
  unplanned: 'no plan',
  measuring: 'measuring',
  validated: 'validated',
  failed: 'not held',
  impossible: 'no plan fits',
  unproven: 'not validated',
};

/** What to say while the server has no sentence yet. */
export function waitingText(run: Run): string {
  if (run.state !== RunState.RUNNING && run.graphId !== '')
    return 'No plan yet: choose a budget below to see what it would cost.';
  if (run.state !== RunState.RUNNING)
    return 'This run ended without a plan; what was measured stands below.';
  if (run.graphId === '') return 'Measuring plain steps; the first plan follows the captured step.';
  return 'Planning.';
}

/**
 * The server's sentence in two parts, what was predicted and what was
 * measured. Together they are the sentence, letter for letter.
 */
export function sentenceParts(sentence: string): readonly [string, string] {
  const at = sentence.indexOf('.  Measured ');
  return at < 0 ? [sentence, ''] : [sentence.slice(0, at + 1), sentence.slice(at + 1)];
}
