// SPDX-License-Identifier: Apache-2.0

/**
 * What the memory page knows of one run: the curve of the window on the screen,
 * what is alive at the instant, and the allocator's segments. The newest
 * question wins; what an answer replaces stays until it is there.
 */
import {Asked} from '../api/asked.svelte';
import {query} from '../api/client';
import {stepCurve, type StepCurve, type Window} from '../data/timeline';
import {num} from '../format/number';
import type {LiveMemory, Segments, Timeline} from '../gen/reprise/v1/query_pb';

export class LiveSession {
  readonly #runId: string;
  /** With whether the step under a plan was wanted. */
  readonly #timeline = new Asked<{readonly timeline: Timeline; readonly wanted: boolean}>();
  /** What is alive at the instant. */
  readonly memory = new Asked<LiveMemory>();
  readonly segments = new Asked<Segments>();
  /** Of a run with both the step under a plan is shown. */
  wantsPlan = $state(true);
  #segmentsWidth = 0;

  readonly #under: StepCurve | undefined = $derived(
    stepCurve(this.#timeline.found?.timeline.measured),
  );
  readonly #base: StepCurve | undefined = $derived(
    stepCurve(this.#timeline.found?.timeline.measuredBase),
  );
  /** Both are there: the step with a plan, and one without. */
  readonly hasBoth: boolean = $derived(this.#base !== undefined && this.#under !== undefined);
  readonly planned: boolean = $derived(
    this.#base === undefined || (this.#timeline.found!.wanted && this.#under !== undefined),
  );
  readonly curve: StepCurve | undefined = $derived(this.planned ? this.#under : this.#base);
  /** Why there is no curve; empty: there is one, or not yet. */
  readonly why: string = $derived(
    this.#timeline.why ||
      (this.#timeline.found && !this.curve
        ? 'No step of this run was traced, so nothing says who was alive.'
        : ''),
  );

  constructor(runId: string) {
    this.#runId = runId;
  }

  stop(): void {
    for (const asked of [this.#timeline, this.memory, this.segments]) asked.stop();
  }

  async showCurve(window: Window | undefined, width: number): Promise<void> {
    const wanted = this.wantsPlan;
    const request = {
      runId: this.#runId,
      widthPx: Math.max(200, Math.min(2048, Math.round(width))),
      t0Ns: BigInt(Math.round(window?.from ?? 0)),
      t1Ns: BigInt(Math.round(window?.to ?? 0)),
    };
    await this.#timeline.answer(async (options) => {
      return {timeline: await query.getTimeline(request, options), wanted};
    });
  }

  /** Undefined: when the peak is reached. Returns the instant that was found, of a column the highest. */
  async showInstant(
    instant: Window | undefined,
    planned: boolean,
    search: string,
    limit: number,
  ): Promise<number | undefined> {
    const request = {
      runId: this.#runId,
      planned,
      ...(instant ? {atNs: BigInt(Math.round(instant.from))} : {}),
      untilNs: BigInt(Math.round(instant?.to ?? 0)),
      search,
      limit,
    };
    const memory = await this.memory.answer((options) => query.getMemory(request, options));
    return memory && num(memory.atNs);
  }

  async showSegments(width: number): Promise<void> {
    // A scroll bar that comes or goes is no other screen.
    if (Math.abs(width - this.#segmentsWidth) < 40) return;
    this.#segmentsWidth = width;
    const request = {
      runId: this.#runId,
      widthPx: Math.max(200, Math.min(4096, Math.round(width))),
    };
    await this.segments.answer((options) => query.getSegments(request, options));
  }
}
