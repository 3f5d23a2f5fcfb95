// SPDX-License-Identifier: Apache-2.0

/** The moments at which a run ran out of memory or was killed, asked for once they can be there. */
import {Asked} from '../api/asked.svelte';
import {query, QUICK} from '../api/client';
import {ranOut} from '../data/moments';
import type {GetMomentsResponse, ShownMoment} from '../gen/reprise/v1/query_pb';

export class MomentSource {
  readonly #asked = new Asked<GetMomentsResponse>();

  /** Newest first, as the server sends them. */
  readonly moments: readonly ShownMoment[] = $derived(this.#asked.found?.moments ?? []);
  /** Those in which memory ran out. */
  readonly shortages: readonly ShownMoment[] = $derived(this.moments.filter(ranOut));
  /** In none it did: the job was killed. */
  readonly killed: boolean = $derived(this.moments.length > 0 && this.shortages.length === 0);

  /** Why they could not be had, in the server's words. */
  get why(): string {
    return this.#asked.why;
  }

  /** The server has answered. */
  get known(): boolean {
    return this.#asked.found !== undefined;
  }

  /** Asks for them; the result stops that. */
  load(runId: string): () => void {
    return this.#asked.ask((options) => query.getMoments({runId}, {...options, ...QUICK}));
  }
}
