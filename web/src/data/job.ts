// SPDX-License-Identifier: Apache-2.0

/** What works in a job, and how the window stands that was asked for. */
import {counted} from '../format/units';
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
  const said = new Map<string, string>();
  for (const session of run.sessions) {
    for (const {name, value, why} of session.capabilities) {
      const key = `${name}\n${value}\n${why}`;
      const first = said.get(name);
      // Notes are sentences of their own: all of them count.
      if (first === key) continue;
      if (first === undefined) said.set(name, key);
      const differs = first !== undefined && session.rank > 0;
      rows.push({name: words(name), rank: differs ? `rank ${session.rank}` : '', value, why});
    }
  }
  return rows;
}

const words = (name: string): string => name.replaceAll('_', ' ').replace('cupti', 'CUPTI');

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
