// SPDX-License-Identifier: Apache-2.0

/** What works in a job, and how the window stands that was asked for. */
import {counted, formatCount} from '../format/units';
import {RunState, WindowState, type Run, type WindowStatus} from '../gen/reprise/v1/query_pb';

/** Every capability once; ranks that differ from the first have a row of their own. */
export function capabilityRows(run: Run) {
  const said = new Map<string, string>();
  const rows = run.sessions.flatMap(({rank, capabilities}) =>
    capabilities.flatMap(({name, value, why}) => {
      const key = `${name}\n${value}\n${why}`;
      const first = said.get(name);
      // Notes are sentences of their own: all of them count.
      if (first === key) return [];
      if (first === undefined) said.set(name, key);
      // Of a rank that says something else than the first one.
      const other = first !== undefined && rank > 0 ? `rank ${rank}` : '';
      return [{name, rank: other, value: valueOf(name, value), why}];
    }),
  );
  // Those that are known in one order for every run, then the others as they came.
  const place = (name: string): number => ORDER.indexOf(name) + 1 || ORDER.length + 1;
  return rows
    .sort((a, b) => place(a.name) - place(b.name))
    .map((row) => ({...row, name: WORDS[row.name] ?? row.name.replaceAll('_', ' ')}));
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

function valueOf(name: string, value: string): string {
  if (name === 'ring' && /^\d+$/.test(value)) return `at most ${formatCount(Number(value))}`;
  if (name === 'clock' && value === 'host') return "by the host's clock";
  return value;
}

/** In which tone, and what. */
export function windowText(window: WindowStatus): readonly ['wait' | 'good' | 'bad', string] {
  const why = window.why === '' ? '' : `; ${window.why}`;
  const {recorded, steps, atStep, firstStep, lastStep} = window;
  switch (window.state) {
    case WindowState.DONE:
      return ['good', `Recorded ${counted(recorded, 'step')}, ${firstStep} to ${lastStep}${why}.`];
    case WindowState.REFUSED:
      return ['bad', `Not recorded: ${window.why}.`];
    case WindowState.OPEN:
      return ['wait', `Recording: ${recorded} of ${steps} steps${why}.`];
    default: {
      const step = atStep > 0n ? `step ${atStep}` : 'the next step';
      return ['wait', `Waits for ${step} to record ${counted(steps, 'step')}.`];
    }
  }
}

/** A window may be asked for: the job runs, and none is under way. */
export function canRecord(run: Run): boolean {
  const state = run.window?.state;
  return (
    run.state === RunState.RUNNING && state !== WindowState.ASKED && state !== WindowState.OPEN
  );
}
