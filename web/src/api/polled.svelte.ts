// SPDX-License-Identifier: Apache-2.0

import {Asked, type AskOptions} from './asked.svelte';
import {link} from './link.svelte';
import {QUICK} from './client';

/** After each answer. */
const PAUSE_MS = 2000;

/** A question that is asked again and again while the page is seen. */
export class Polled<Answer> extends Asked<Answer> {
  /** When the answer came, in ms. */
  at = $state(Date.now());

  /** Also asks at once when the page comes back into view. Returns what stops it. */
  start(call: (options: AskOptions) => Promise<Answer>): () => void {
    let stopped = false;
    let timer: ReturnType<typeof setTimeout> | undefined;

    const round = async (): Promise<void> => {
      clearTimeout(timer);
      const answer = await this.answer((options) => call({...options, ...QUICK}));
      if (stopped) return;
      if (answer !== undefined) {
        link.up();
        this.at = Date.now();
      } else if (this.why !== '') link.down(this.why);
      if (!document.hidden) timer = setTimeout(() => void round(), PAUSE_MS);
    };

    const seen = (): void => {
      if (!document.hidden && !this.busy) void round();
    };
    document.addEventListener('visibilitychange', seen);
    void round();

    return () => {
      stopped = true;
      this.stop();
      clearTimeout(timer);
      document.removeEventListener('visibilitychange', seen);
    };
  }
}
