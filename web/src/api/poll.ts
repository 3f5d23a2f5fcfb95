// SPDX-License-Identifier: Apache-2.0

/**
 * Asks again and again while the page is seen: `ms` after each answer, at once
 * when the page comes back into view. Returns what stops it.
 */
import {link} from './link.svelte';
import {isCancelled, sentenceOf} from './client';

export function poll<T>(
  ms: number,
  ask: (signal: AbortSignal) => Promise<T>,
  take: (answer: T) => void,
): () => void {
  const stop = new AbortController();
  let timer: ReturnType<typeof setTimeout> | undefined;
  let asking = false;

  const round = async (): Promise<void> => {
    clearTimeout(timer);
    if (stop.signal.aborted || asking) return;
    asking = true;
    try {
      const answer = await ask(stop.signal);
      if (stop.signal.aborted) return;
      link.up();
      take(answer);
    } catch (error) {
      if (stop.signal.aborted || isCancelled(error)) return;
      link.down(sentenceOf(error));
    } finally {
      asking = false;
      if (!document.hidden && !stop.signal.aborted) timer = setTimeout(() => void round(), ms);
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
