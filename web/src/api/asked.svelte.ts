// SPDX-License-Identifier: Apache-2.0

/**
 * One question to the server whose answer is drawn: the newest answer, or why
 * there is none. The newest question wins; what its answer replaces stays until
 * the answer is there.
 *
 *   const asked = new Asked<Run>();
 *   $effect(() => asked.ask((options) => query.getRun({...}, options)));
 */
import {isCancelled, isRefusal, sentenceOf} from './client';

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
  /** That is a "no": asking again changes nothing. */
  refused = $state(false);
  /** An answer is being waited for. */
  busy = $state(false);

  #abort: AbortController | undefined;

  /** Asks; the result gives the question up. */
  ask(call: (options: AskOptions) => Promise<Answer>): () => void {
    void this.answer(call);
    return () => this.stop();
  }

  /** Asks; undefined: there was no answer, or a newer question. */
  async answer(call: (options: AskOptions) => Promise<Answer>): Promise<Answer | undefined> {
    this.stop();
    const abort = (this.#abort = new AbortController());
    const {signal} = abort;
    this.busy = true;
    try {
      const found = await call({signal, timeoutMs: PATIENCE_MS});
      if (signal.aborted) return undefined;
      [this.found, this.why] = [found, ''];
      return found;
    } catch (error) {
      if (!signal.aborted && !isCancelled(error)) {
        [this.why, this.refused] = [sentenceOf(error), isRefusal(error)];
      }
      return undefined;
    } finally {
      if (this.#abort === abort) this.busy = false;
    }
  }

  /** What was answered, or why not, is of a question that nobody asks any more. */
  forget(): void {
    [this.found, this.why] = [undefined, ''];
  }

  stop(): void {
    this.#abort?.abort();
  }
}
