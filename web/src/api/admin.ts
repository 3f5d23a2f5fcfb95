// SPDX-License-Identifier: Apache-2.0

/** What the owner of the server does with its store; loaded when it is first needed. */
import {createClient} from '@connectrpc/connect';
import {Admin} from '../gen/reprise/v1/admin_pb';
import {transport} from './client';

export interface Removed {
  /** Names of the runs that are gone, oldest first. */
  readonly names: readonly string[];
  readonly bytesBefore: number;
  readonly bytesAfter: number;
}

/** Removes runs. Fails, and removes nothing, where one of them is under way. */
export async function removeRuns(runIds: readonly string[]): Promise<Removed> {
  const {runs, storeBytesBefore, storeBytesAfter} = await createClient(Admin, transport).removeRuns(
    {runId: [...runIds]},
    // Removing many gigabytes takes a while.
    {timeoutMs: 600_000},
  );
  return {
    names: runs.map(({name, runId}) => name || runId),
    bytesBefore: Number(storeBytesBefore),
    bytesAfter: Number(storeBytesAfter),
  };
}
