// SPDX-License-Identifier: Apache-2.0

/** The moments at which a run ran out of memory or was killed, asked for once they can be there. */
import {isCancelled, query, QUICK, sentenceOf} from '../api/client';
import {ranOut} from '../data/moments';
import type {ShownMoment} from '../gen/reprise/v1/query_pb';

export class MomentSource {
  /** Newest first, as the server sends them. */
  moments: readonly ShownMoment[] = $state.raw([]);
  /** Why they could not be had, in the server's words. */
  why = $state('');
  /** The server has answered. */
  known = $state(false);

  /** Those in which memory ran out: what its page shows. */
  readonly shortages: readonly ShownMoment[] = $derived(this.moments.filter(ranOut));

  /** Asks for them; the result stops that. */
  load(runId: string): () => void {
    const abort = new AbortController();
    query
      .getMoments({runId}, {...QUICK, signal: abort.signal})
      .then(({moments}) => {
        this.moments = moments;
        this.why = '';
        this.known = true;
      })
      .catch((error: unknown) => {
        if (!abort.signal.aborted && !isCancelled(error)) this.why = sentenceOf(error);
      });
    return () => abort.abort();
  }
}
