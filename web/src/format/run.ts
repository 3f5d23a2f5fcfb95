// SPDX-License-Identifier: Apache-2.0

/** A run in words. */
import {RunState, Standing, type Run} from '../gen/reprise/v1/query_pb';
import {formatBytes, formatPercent, num} from './units';

/** A colour's name for the state of a run. */
export function toneOf(run: Run): 'running' | 'dead' | 'over' {
  if (run.state === RunState.RUNNING) return 'running';
  return run.state === RunState.KILLED || run.state === RunState.FAILED ? 'dead' : 'over';
}

export function runTitle(run: Run): string {
  // The server names a run by its id when the job does not.
  if (run.name !== '' && run.name !== run.runId) return run.name;
  return run.host === '' ? run.runId : `${run.host}:${run.pid}`;
}

/**
 * The server's word on how far the proof of a run has come: a word of ours, a sign, so that colour
 * never speaks alone, and its tone.
 */
export const STANDINGS: Readonly<Record<Standing, readonly [string, string, string]>> = {
  [Standing.UNSPECIFIED]: ['not known', '…', 'soft'],
  [Standing.WAITING]: ['no plan yet', '…', 'soft'],
  [Standing.UNPLANNED]: ['no plan', '–', 'soft'],
  [Standing.MEASURING]: ['measuring', '…', 'wait'],
  [Standing.VALIDATED]: ['budget and bits validated', '✓', 'good'],
  [Standing.NOT_HELD]: ['not held', '✗', 'bad'],
  [Standing.IMPOSSIBLE]: ['no plan fits', '✗', 'bad'],
  [Standing.UNPROVEN]: ['not validated', '–', 'soft'],
  [Standing.DIED]: ['died', '✗', 'bad'],
  [Standing.IMPORTED]: ['imported', '↓', 'soft'],
};

/**
 * The verdict in a few words: "-36.4 % memory, +5.6 % time", measured where it is, and as
 * predicted where the times are not comparable; of a run without such figures the sentence.
 */
export function verdictText(run: Run): string {
  const verdict = run.verdict;
  const sentence = verdict?.sentence ?? '';
  if (!verdict?.feasible || run.planId === '' || verdict.basePeakBytes === 0n) return sentence;
  const change = (now: bigint, base: bigint): string =>
    formatPercent(num(now) / num(base) - 1, true);
  const {measuredPeakBytes, predictedPeakBytes, basePeakBytes} = verdict;
  const {measuredStepNs, predictedStepNs, baseStepNs, otherLoad} = verdict;
  const memory = change(measuredPeakBytes || predictedPeakBytes, basePeakBytes);
  const step = (otherLoad === '' && measuredStepNs) || predictedStepNs;
  const time = step > 0n && baseStepNs > 0n ? `, ${change(step, baseStepNs)} time` : '';
  return `${memory} memory${time}`;
}

/** What to say while the server has no sentence yet. */
export function waitingText(run: Run): string {
  if (run.imported !== '') return importedText(run);
  const without = run.sessions.some(({capabilities}) =>
    capabilities.some(({name, value}) => name === 'budget_at_start' && value === 'none'),
  );
  if (run.graphId !== '' && (run.state !== RunState.RUNNING || without))
    return 'No plan yet: choose a budget below to see what it would cost.';
  if (without) return 'Measuring plain steps; one of them is captured for this page.';
  if (run.state !== RunState.RUNNING) return 'It ended without a plan. What was measured is below.';
  if (run.graphId === '') return 'Measuring plain steps; the first plan follows the captured step.';
  return 'Planning.';
}

/** What a file is that became a run, and what can be done with it. */
export function importedText(run: Run): string {
  const peak = num(run.verdict?.unplannedPeakBytes);
  const file = run.imported === '' ? 'file' : run.imported;
  const most = peak > 0 ? ` Most of what it recorded was alive at ${formatBytes(peak)}.` : '';
  const next =
    run.graphId === ''
      ? ' Below: who was alive when, and where. It has no operators, so that no budget can be planned from it; `reprise run` records them.'
      : ' Choose a budget below to see what it would cost.';
  const article = /^[aeiou]/.test(file) ? 'An' : 'A';
  return `${article} ${file}, imported: nothing ran here.${most}${next}`;
}

/**
 * The server's sentence in two parts, what was predicted and what was
 * measured. Together they are the sentence, letter for letter.
 */
export function sentenceParts(sentence: string): readonly [string, string] {
  const at = sentence.indexOf('.  Measured ');
  return at < 0 ? [sentence, ''] : [sentence.slice(0, at + 1), sentence.slice(at + 1)];
}
