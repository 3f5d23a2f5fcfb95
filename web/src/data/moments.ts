// SPDX-License-Identifier: Apache-2.0

/** The last ops before a job was killed or ran out of memory, and what it held. */
import {formatBytes, formatCount} from '../format/units';
import type {Category} from '../gen/reprise/v1/graph_pb';
import {MomentReason, type HeldStorage} from '../gen/reprise/v1/ingest_pb';
import type {LastOp, ShownMoment} from '../gen/reprise/v1/query_pb';
import {num} from '../format/number';

export interface HeldRow {
  readonly bytes: number;
  readonly category: Category;
  /** What people know it by. */
  readonly name: string;
  /** The op that made it and its module, where they say more. */
  readonly from: string;
}

/** Largest first, as the server sends them. */
export function heldRows(storages: readonly HeldStorage[]): HeldRow[] {
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

/** "4,096 storages, 1.5 GiB": all of them, those that are not listed too. */
export function heldText(shown: ShownMoment): string {
  const moment = shown.moment;
  if (!moment || moment.storages.length === 0) return '';
  const count = moment.storages.length + Number(moment.moreStorages);
  const bytes = moment.storages.reduce((sum, one) => sum + num(one.bytes), num(moment.moreBytes));
  return `${formatBytes(bytes)} in ${formatCount(count)} ${count === 1 ? 'storage' : 'storages'}`;
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
