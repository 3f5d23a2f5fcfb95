// SPDX-License-Identifier: Apache-2.0

/**
 * One question to the server whose answer is drawn: the newest answer, or why
 * there is none. What an answer replaces stays until the answer is there.
 *
 *   const asked = new Asked<Kernels>();
 *   $effect(() => asked.ask((options) => query.getKernels({...}, options)));
 */
import {isCancelled, sentenceOf} from './client';

/** A recording of millions of events is indexed by its first question. */
const PATIENCE_MS = 60_000;

export interface AskOptions {
  readonly signal: AbortSignal;
  readonly timeoutMs: number;
}

export class Asked<Answer> {
  found: Answer | undefined = $state.raw();
  /** In the server's words; empty: there is an answer, or not yet one. */
  why = $state('');

  /** Asks; the result gives the question up. */
  ask(call: (options: AskOptions) => Promise<Answer>): () => void {
    const abort = new AbortController();
    call({signal: abort.signal, timeoutMs: PATIENCE_MS})
      .then((answer) => {
        this.found = answer;
        this.why = '';
      })
      .catch((error: unknown) => {
        if (!abort.signal.aborted && !isCancelled(error)) this.why = sentenceOf(error);
      });
    return () => abort.abort();
  }
}
