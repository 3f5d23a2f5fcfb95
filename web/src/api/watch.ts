// SPDX-License-Identifier: Apache-2.0

/**
 * Keeps a page at the state of a run, through restarts of the server:
 *
 *   connecting --first event--> live --stream ends, run over--> ended
 *        ^                        |                               |
 *        +--- after a pause --- gone <----- a call fails ---------+
 *
 * While live, a run that is silent is asked for now and then: a connection
 * that died without a word (a closed tunnel) is noticed. The first event after
 * every connection carries the whole run, which the consumer is told.
 */
import {RunState, type Run, type RunEvent} from '../gen/reprise/v1/query_pb';
import {isRefusal, sentenceOf} from './client';

export type WatchState =
  | {readonly kind: 'connecting'}
  | {readonly kind: 'live'}
  | {readonly kind: 'ended'}
  | {readonly kind: 'gone'; readonly why: string}
  | {readonly kind: 'missing'; readonly why: string};

/** The two calls that are made for a run, and who is told what comes of them. */
export interface Watched {
  watch(signal: AbortSignal): AsyncIterable<RunEvent>;
  get(signal: AbortSignal): Promise<Run>;
  event(event: RunEvent, first: boolean): void;
  state(state: WatchState): void;
}

/** `quietMs`: asks for a run this often when nothing else is heard of it. */
const TIMES = {retryMs: [250, 500, 1000, 2000], quietMs: 5000};

/** Starts watching; returns what stops it. */
export function watchRun(watched: Watched, {retryMs, quietMs} = TIMES): () => void {
  const abort = new AbortController();
  const stop = abort.signal;
  let failures = 0;

  async function loop(): Promise<void> {
    watched.state({kind: 'connecting'});
    while (!stop.aborted) {
      try {
        const run = await follow();
        if (stop.aborted) return;
        // A stream that ends while the run goes on: the server is going down.
        if (run && run.state !== RunState.RUNNING) {
          watched.state({kind: 'ended'});
          await unchanged(run);
        } else {
          await pause(retryMs[0] ?? 0, stop);
        }
      } catch (error) {
        if (stop.aborted) return;
        const why = sentenceOf(error);
        if (isRefusal(error)) {
          watched.state({kind: 'missing', why});
          return;
        }
        watched.state({kind: 'gone', why});
        await pause(retryMs[Math.min(failures, retryMs.length - 1)] ?? 0, stop);
        failures++;
      }
    }
  }

  /** Hands on one stream to its end; returns the last run heard of. */
  async function follow(): Promise<Run | undefined> {
    const ended = new AbortController();
    const signal = AbortSignal.any([stop, ended.signal]);
    let lastHeard = Date.now();
    let dead: unknown;
    let run: Run | undefined;
    let first = true;
    const guard = setInterval(() => {
      if (Date.now() - lastHeard < quietMs) return;
      lastHeard = Date.now();
      watched.get(signal).then(
        // The first event comes at once: a stream without one is none.
        () => first && ended.abort(),
        (error: unknown) => {
          dead = error;
          ended.abort();
        },
      );
    }, quietMs);

    try {
      for await (const event of watched.watch(signal)) {
        if (stop.aborted) break;
        lastHeard = Date.now();
        run = event.run ?? run;
        if (first) {
          failures = 0;
          watched.state({kind: 'live'});
        }
        watched.event(event, first);
        first = false;
      }
    } catch (error) {
      if (dead !== undefined) throw dead;
      if (!ended.signal.aborted) throw error;
    } finally {
      clearInterval(guard);
      ended.abort();
    }
    return run;
  }

  /** Returns when the stored run is no longer what it was; throws with the server. */
  async function unchanged(run: Run): Promise<void> {
    for (;;) {
      await pause(quietMs, stop);
      if (stop.aborted) return;
      const now = await watched.get(stop);
      if (
        now.state !== run.state ||
        now.steps !== run.steps ||
        now.planId !== run.planId ||
        now.verdict?.sentence !== run.verdict?.sentence
      ) {
        return;
      }
    }
  }

  void loop();
  return () => abort.abort();
}

function pause(ms: number, stop: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (stop.aborted) return resolve();
    const done = (): void => {
      clearTimeout(timer);
      stop.removeEventListener('abort', done);
      resolve();
    };
    const timer = setTimeout(done, ms);
    stop.addEventListener('abort', done);
  });
}
