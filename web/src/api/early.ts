// SPDX-License-Identifier: Apache-2.0

/**
 * The first request of a page, sent by `public/early.js` while this program was still on its
 * way. Whoever sends the same one takes its answer; it serves once.
 */
export interface Early {
  readonly url: string;
  readonly body: Uint8Array;
  readonly answer: Promise<Response>;
  readonly stop: AbortController;
}

/** What sends requests: from the early one's answer if that is for the first of them. */
export function fetchWith(early: Early | undefined, send: typeof fetch): typeof fetch {
  let waiting = early;
  return (input, init) => {
    const first = waiting;
    waiting = undefined;
    if (first === undefined) return send(input, init);
    if (first.url !== input || !same(first.body, init?.body)) {
      first.stop.abort();
      return send(input, init);
    }
    const stop = (): void => first.stop.abort(init?.signal?.reason);
    if (init?.signal?.aborted) stop();
    else init?.signal?.addEventListener('abort', stop, {once: true});
    return first.answer;
  };
}

function same(a: Uint8Array, b: unknown): boolean {
  return b instanceof Uint8Array && a.length === b.length && a.every((byte, i) => byte === b[i]);
}
