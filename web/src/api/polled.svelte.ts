// SPDX-License-Identifier: Apache-2.0

import type {AskOptions} from './asked.svelte';
import {link} from './link.svelte';
import {isCancelled, QUICK, sentenceOf} from './client';

/** After each answer. */
const PAUSE_MS = 2000;

/** An answer that is asked for again and again while the page is seen. */
export class Polled<Answer> {
  found: Answer | undefined = $state.raw();
  /** When that was, in ms. */
  at = $state(Date.now());

  /** Also asks at once when the page comes back into view. Returns what stops it. */
  start(call: (options: AskOptions) => Promise<Answer>): () => void {
    const stop = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    let asking = false;

    const round = async (): Promise<void> => {
      clearTimeout(timer);
      if (stop.signal.aborted || asking) return;
      asking = true;
      try {
        const answer = await call({...QUICK, signal: stop.signal});
        if (stop.signal.aborted) return;
        link.up();
        [this.found, this.at] = [answer, Date.now()];
      } catch (error) {
        if (stop.signal.aborted || isCancelled(error)) return;
        link.down(sentenceOf(error));
      } finally {
        asking = false;
        if (!document.hidden && !stop.signal.aborted)
          timer = setTimeout(() => void round(), PAUSE_MS);
      }
    };

    const seen = (): void => {
      if (!document.hidden) void round();
    };
    document.addEventListener('visibilitychange', seen);
    void round();

    return () => {
      stop.abort();
      clearTimeout(timer);
      document.removeEventListener('visibilitychange', seen);
    };
  }
}
