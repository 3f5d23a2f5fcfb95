// SPDX-License-Identifier: Apache-2.0

/**
 * What the memory page knows of one run: the curve of the window on the screen,
 * and what is alive at the instant. The newest question wins; what an answer
 * replaces stays until it is there.
 */
import {Asked, type AskOptions} from '../api/asked.svelte';
import {query} from '../api/client';
import {curveRequest, stepCurve, type StepCurve, type Window} from '../data/timeline';
import {num} from '../format/units';
import type {LiveMemory, Timeline} from '../gen/reprise/v1/query_pb';
import {place} from '../url/location.svelte';

export class LiveSession {
  readonly runId: string;
  /** With whether the step under a plan was wanted. */
  readonly #timeline = new Asked<{readonly timeline: Timeline; readonly wanted: boolean}>();
  /** What is alive at the instant. */
  readonly memory = new Asked<LiveMemory>();
  /** Of a run with both the step under a plan is shown. */
  wantsPlan = $state(true);
  /** So much of what is alive is listed. */
  limit = $state(100);

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

  /** The part of the step on the screen. */
  readonly window: Window | undefined = $derived(place.state.window);
  readonly #at: number | undefined = $derived(place.state.at);
  readonly #search: string = $derived(place.state.search ?? '');
  // Which of two steps is shown is known with the curve; a zoom changes nothing of it.
  readonly #known: boolean = $derived(this.curve !== undefined || this.why !== '');

  /** Made inside of a component; `width` of its page, in pixels: 0 while it is not known. */
  constructor(runId: string, width: () => number) {
    this.runId = runId;
    $effect(() => (width() > 0 ? this.#askCurve(width() - 100) : undefined));
    $effect(() => {
      if (!this.#known) return undefined;
      const at = this.#at;
      return this.memory.ask(this.#instant(at === undefined ? undefined : {from: at, to: at + 1}));
    });
  }

  /** Goes to the instant of a column at which most is alive. */
  async pick(column: Window): Promise<void> {
    const memory = await this.memory.answer(this.#instant(column));
    if (memory && num(memory.atNs) !== this.#at) place.update({at: num(memory.atNs)});
  }

  #askCurve(width: number): () => void {
    const wanted = this.wantsPlan;
    const request = curveRequest(this.runId, this.window, width);
    return this.#timeline.ask(async (options) => {
      return {timeline: await query.getTimeline(request, options), wanted};
    });
  }

  /** The question what is alive; undefined: when the peak is reached. */
  #instant(window: Window | undefined): (options: AskOptions) => Promise<LiveMemory> {
    const request = {
      runId: this.runId,
      planned: this.planned,
      ...(window ? {atNs: BigInt(Math.round(window.from))} : {}),
      untilNs: BigInt(Math.round(window?.to ?? 0)),
      search: this.#search,
      limit: this.limit,
    };
    return (options) => query.getMemory(request, options);
  }
}
