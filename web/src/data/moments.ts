// SPDX-License-Identifier: Apache-2.0

/** The last ops before a job was killed or ran out of memory, and what it held. */
import {counted, formatBytes, num} from '../format/units';
import {MomentReason, type HeldStorage, type Moment} from '../gen/reprise/v1/ingest_pb';
import {Standing, type LastOp, type Run, type ShownMoment} from '../gen/reprise/v1/query_pb';

/**
 * Largest first, as the server sends them: by what people know them, and `from` the op that made
 * them and its module, where they say more.
 */
export function heldRows(storages: readonly HeldStorage[]) {
  return storages.map(({bytes, category, name, madeBy, module}) => {
    const parts = [madeBy, module].filter((part) => part !== '');
    return {
      bytes: num(bytes),
      category,
      name: name === '' ? (parts[0] ?? 'not known') : name,
      from: (name === '' ? parts.slice(1) : parts).join(' · '),
    };
  });
}

function heldBytes({storages, moreBytes}: Moment): number {
  return storages.reduce((sum, one) => sum + num(one.bytes), num(moreBytes));
}

/** "4,096 storages, 1.5 GiB": all of them, those that are not listed too. */
export function heldText(shown: ShownMoment): string {
  const moment = shown.moment;
  if (!moment || moment.storages.length === 0) return '';
  const count = moment.storages.length + Number(moment.moreStorages);
  return `${formatBytes(heldBytes(moment))} in ${counted(count, 'storage')}`;
}

/** "op 31 aten.mm.default"; an op that is known by its record alone has no number. */
export function opText(op: LastOp): string {
  return op.op === undefined ? op.name : `op ${op.op} ${op.name}`;
}

export function wasKilled(shown: ShownMoment): boolean {
  return shown.moment?.reason === MomentReason.KILLED;
}

export function ranOut(shown: ShownMoment): boolean {
  return shown.moment?.reason === MomentReason.OUT_OF_MEMORY;
}

export type MomentMark = NonNullable<ReturnType<typeof markOf>>;

/**
 * How a step ended, to be marked on its curve; undefined where it is of another step graph, or nothing
 * is known to have been alive. Without an op that is not known, or the step was over.
 */
export function markOf(shown: ShownMoment | undefined, graphId: string) {
  const moment = shown?.moment;
  if (!moment || moment.graphId !== graphId) return undefined;
  // Of a job that was killed the newest op may have ended, and the step with it.
  const newest = shown.ops.at(-1);
  const op = newest?.underWay ? newest.op : ranOut(shown) ? moment.op : undefined;
  const bytes = num(moment.liveBytes) || heldBytes(moment);
  const how = wasKilled(shown) ? 'killed' : 'memory ran out';
  const name = op === undefined ? `${how}, with this much alive` : `${how} here`;
  return bytes > 0 ? {op, bytes, name} : undefined;
}

/**
 * How a job ended that did not end well, or that its memory ran out; empty: neither. The server's
 * sentence where it has one, and the newest.
 */
export function endText(run: Run, newest: ShownMoment | undefined): string {
  if (newest) return newest.sentence;
  if (run.standing !== Standing.DIED) return '';
  const failure = run.verdict?.failure ?? '';
  return `The job ended: ${[run.ending, failure].filter(Boolean).join(', ')}.`;
}
