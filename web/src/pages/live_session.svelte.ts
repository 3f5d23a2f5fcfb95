// SPDX-License-Identifier: Apache-2.0

/**
 * What the memory page knows of one run: the curve of the window on the screen,
 * what is alive at the instant, and the allocator's segments. The newest
 * question wins; what an answer replaces stays until it is there.
 */
import {isCancelled, query, sentenceOf} from '../api/client';
import {num} from '../data/number';
import {stepCurve, type StepCurve} from '../data/timeline';
import type {LiveMemory, Segments} from '../gen/reprise/v1/query_pb';
import type {Window} from '../url/state';

/** An instant, or the highest one of a column. */
export interface Instant {
  readonly from: number;
  readonly to: number;
}

// A file of millions of events is read at the first question.
const SLOW = {timeoutMs: 60_000} as const;

export class LiveSession {
  curve: StepCurve | undefined = $state.raw();
  /** Both are there: the step with a plan, and one without. */
  hasBoth = $state(false);
  planned = $state(false);
  memory: LiveMemory | undefined = $state.raw();
  segments: Segments | undefined = $state.raw();
  why = $state('');
  memoryWhy = $state('');
  segmentsWhy = $state('');

  readonly #runId: string;
  #curveAbort: AbortController | undefined;
  #memoryAbort: AbortController | undefined;
  #segmentsAbort: AbortController | undefined;
  #segmentsWidth = 0;

  constructor(runId: string) {
    this.#runId = runId;
  }

  stop(): void {
    this.#curveAbort?.abort();
    this.#memoryAbort?.abort();
    this.#segmentsAbort?.abort();
  }

  async showCurve(window: Window | undefined, width: number, planned: boolean): Promise<void> {
    this.#curveAbort?.abort();
    const {signal} = (this.#curveAbort = new AbortController());
    try {
      const timeline = await query.getTimeline(
        {
          runId: this.#runId,
          widthPx: Math.max(200, Math.min(2048, Math.round(width))),
          t0Ns: BigInt(Math.round(window?.from ?? 0)),
          t1Ns: BigInt(Math.round(window?.to ?? 0)),
        },
        {...SLOW, signal},
      );
      const [base, under] = [stepCurve(timeline.measuredBase), stepCurve(timeline.measured)];
      this.hasBoth = base !== undefined && under !== undefined;
      this.planned = (planned && under !== undefined) || base === undefined;
      this.curve = this.planned ? under : base;
      this.why = this.curve ? '' : 'No step of this run was traced, so nothing says who was alive.';
    } catch (error) {
      if (!signal.aborted && !isCancelled(error)) this.why = sentenceOf(error);
    }
  }

  /** Undefined: when the peak is reached. Returns the instant that was found. */
  async showInstant(
    instant: Instant | undefined,
    planned: boolean,
    search: string,
    limit: number,
  ): Promise<number | undefined> {
    this.#memoryAbort?.abort();
    const {signal} = (this.#memoryAbort = new AbortController());
    try {
      const memory = await query.getMemory(
        {
          runId: this.#runId,
          planned,
          ...(instant ? {atNs: BigInt(Math.round(instant.from))} : {}),
          untilNs: BigInt(Math.round(instant?.to ?? 0)),
          search,
          limit,
        },
        {...SLOW, signal},
      );
      this.memory = memory;
      this.memoryWhy = '';
      return num(memory.atNs);
    } catch (error) {
      if (!signal.aborted && !isCancelled(error)) this.memoryWhy = sentenceOf(error);
      return undefined;
    }
  }

  async showSegments(width: number): Promise<void> {
    // A scroll bar that comes or goes is no other screen.
    if (Math.abs(width - this.#segmentsWidth) < 40) return;
    this.#segmentsWidth = width;
    this.#segmentsAbort?.abort();
    const {signal} = (this.#segmentsAbort = new AbortController());
    try {
      const widthPx = Math.max(200, Math.min(4096, Math.round(width)));
      const found = await query.getSegments({runId: this.#runId, widthPx}, {...SLOW, signal});
      this.segments = found.segmentCount > 0n ? found : undefined;
      this.segmentsWhy = '';
    } catch (error) {
      if (!signal.aborted && !isCancelled(error)) this.segmentsWhy = sentenceOf(error);
    }
  }
}
