// SPDX-License-Identifier: Apache-2.0

/** What works in a job, and how the window stands that was asked for. */
import {counted, formatCount} from '../format/units';
import {RunState, WindowState, type Run, type WindowStatus} from '../gen/reprise/v1/query_pb';

export interface CapabilityRow {
  readonly name: string;
  /** "", or "rank 3" where it says something else than the first one. */
  readonly rank: string;
  readonly value: string;
  readonly why: string;
}

/** Every capability once; ranks that differ from the first have a row of their own. */
export function capabilityRows(run: Run): CapabilityRow[] {
  const rows: CapabilityRow[] = [];
  const places: number[] = [];
  const said = new Map<string, string>();
  for (const session of run.sessions) {
    for (const {name, value, why} of session.capabilities) {
      const key = `${name}\n${value}\n${why}`;
      const first = said.get(name);
      // Notes are sentences of their own: all of them count.
      if (first === key) continue;
      if (first === undefined) said.set(name, key);
      const differs = first !== undefined && session.rank > 0;
      const rank = differs ? `rank ${session.rank}` : '';
      rows.push({name: words(name), rank, value: valueOf(name, value), why});
      places.push(ORDER.indexOf(name));
    }
  }
  // Those that are known in one order for every run, then the others as they came.
  const place = (i: number): number => (places[i]! < 0 ? ORDER.length : places[i]!);
  return [...rows.keys()].sort((a, b) => place(a) - place(b) || a - b).map((i) => rows[i]!);
}

/** What an agent says of its job, in the words of the page. */
const WORDS: Readonly<Record<string, string>> = {
  torch: 'PyTorch',
  python: 'Python',
  device: 'Device',
  adapter: 'Framework',
  executor: 'Executor of plans',
  budget_at_start: 'Budget at the start',
  apply: 'Takes another budget while it runs',
  meter: 'Meter of memory',
  op_marks: 'Ops are marked by',
  clock: 'Times of ops',
  cupti: 'CUPTI',
  ring: 'Records between two reads',
  window: 'Recording on request',
};
const ORDER = Object.keys(WORDS);

const words = (name: string): string => WORDS[name] ?? name.replaceAll('_', ' ');

function valueOf(name: string, value: string): string {
  if (name === 'ring' && /^\d+$/.test(value)) return `at most ${formatCount(Number(value))}`;
  if (name === 'clock' && value === 'host') return "by the host's clock";
  return value;
}

export type WindowTone = 'wait' | 'good' | 'bad';

export interface WindowText {
  readonly tone: WindowTone;
  readonly text: string;
}

export function windowText(window: WindowStatus): WindowText {
  const why = window.why === '' ? '' : `; ${window.why}`;
  const {recorded, steps, atStep} = window;
  switch (window.state) {
    case WindowState.DONE:
      return {
        tone: 'good',
        text: `Recorded ${counted(recorded, 'step')}, ${window.firstStep} to ${window.lastStep}${why}.`,
      };
    case WindowState.REFUSED:
      return {tone: 'bad', text: `Not recorded: ${window.why}.`};
    case WindowState.OPEN:
      return {tone: 'wait', text: `Recording: ${recorded} of ${steps} steps${why}.`};
    default:
      return {
        tone: 'wait',
        text:
          atStep > 0n
            ? `Waits for step ${atStep} to record ${counted(steps, 'step')}.`
            : `Waits for the next step to record ${counted(steps, 'step')}.`,
      };
  }
}

/** A window may be asked for: the job runs, and none is under way. */
export function canRecord(run: Run): boolean {
  const state = run.window?.state;
  return (
    run.state === RunState.RUNNING && state !== WindowState.ASKED && state !== WindowState.OPEN
  );
}
