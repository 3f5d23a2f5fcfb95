// SPDX-License-Identifier: Apache-2.0

/**
 * All that the Run page knows of its run, kept up to date while it is open.
 *
 *   WatchRun ──> run, plan, steps            as it happens
 *        plan ──> Explain ──> what is alive, what changes
 *                    └──────> Sweep ──────> the trade-off curve, point by point
 *        graph of a run that is over and has no plan ──> Sweep
 *                └──> a plan that saves everything ──> Explain
 *        steps, window ──> GetTimeline      at most every two seconds
 *                              └──> the step graph, and each traced step once
 *
 * Whatever an answer replaces stays on the screen until the answer is there.
 */
import {create} from '@bufbuild/protobuf';
import {Asked} from '../api/asked.svelte';
import {planner, query, QUICK} from '../api/client';
import {link} from '../api/link.svelte';
import {watchRun, type WatchState} from '../api/watch';
import {appended, BUCKETS, emptyLog, folded, MOST_BUCKETS, type StepLog} from '../data/steps';
import {EMPTY_TRADEOFF, tradeoff, type Tradeoff} from '../data/tradeoff';
import type {Plan} from '../gen/reprise/v1/plan_pb';
import {
  CapabilitiesSchema,
  type Capabilities,
  type Explanation,
  type TradeoffPoint,
} from '../gen/reprise/v1/planner_pb';
import {RunState, type Run, type RunEvent, type Timeline} from '../gen/reprise/v1/query_pb';
import {curveRequest, type Window} from '../data/timeline';
import {StepSource} from './step_source.svelte';
import {WhatIf} from './what_if.svelte';

const TIMELINE_MS = 2000;

export class RunSession {
  watch: WatchState = $state.raw({kind: 'connecting'});
  run: Run | undefined = $state.raw();
  plan: Plan | undefined = $state.raw();
  log: StepLog = $state.raw(emptyLog());
  curve: Tradeoff = $state.raw(EMPTY_TRADEOFF);
  /** True: the curve is whole. */
  readonly sweep = new Asked<true>();
  readonly timeline = new Asked<Timeline>();
  /** What the axis of ops needs. */
  readonly steps = new StepSource();

  readonly #explained = new Asked<Explanation>();
  readonly #bare = new WhatIf();
  readonly explanation: Explanation | undefined = $derived(this.#explained.found);
  /** Of the step as it is, of a run that has no plan. */
  readonly unplanned: Explanation | undefined = $derived(this.#bare.explanation);
  readonly explanationWhy: string = $derived(this.#explained.why || this.#bare.why);
  readonly curveDone: boolean = $derived(this.sweep.found === true);
  /** What the plan was made for: a what-if for the same is comparable with it. */
  readonly capabilities: Capabilities | undefined = $derived(this.explanation?.capabilities);
  /** It has a step graph and no plan: a person may ask for one. */
  readonly plannable: boolean = $derived(!!this.run?.graphId && this.run.planId === '');

  #runId = '';
  #stopWatch: (() => void) | undefined;
  #sweepKey = '';

  // The timeline: what is wanted, what was last asked for, and when.
  #window: Window | undefined;
  #width = 1000;
  readonly #fold = new Asked<StepLog>();
  #timelineDue = false;
  #timelineAt = 0;
  #timelineTimer: ReturnType<typeof setTimeout> | undefined;
  #stopped = false;

  start(runId: string): () => void {
    this.#runId = runId;
    // A hidden page gives its connection back: a browser has only six.
    const seen = (): void => {
      if (document.hidden) this.#pause();
      else this.#resume();
    };
    document.addEventListener('visibilitychange', seen);
    this.#resume();
    return () => {
      this.#stopped = true;
      document.removeEventListener('visibilitychange', seen);
      this.#pause();
      this.#explained.stop();
      this.#bare.stop();
      this.sweep.stop();
      this.steps.stop();
      clearTimeout(this.#timelineTimer);
    };
  }

  /** Part of the step to show (undefined: all of it), in so many columns. */
  show(window: Window | undefined, width: number): void {
    const asked = JSON.stringify([window, width]);
    if (asked === JSON.stringify([this.#window, this.#width])) return;
    [this.#window, this.#width] = [window, width];
    this.#wantTimeline(60);
  }

  #resume(): void {
    if (this.#stopWatch || this.#stopped) return;
    const runId = this.#runId;
    this.#stopWatch = watchRun({
      watch: (signal) => query.watchRun({runId, buckets: BUCKETS}, {signal}),
      get: (signal) => query.getRun({runId}, {...QUICK, signal}),
      event: (event, first) => this.#take(event, first),
      state: (state) => this.#setWatch(state),
    });
  }

  #pause(): void {
    this.#stopWatch?.();
    this.#stopWatch = undefined;
  }

  #setWatch(state: WatchState): void {
    this.watch = state;
    if (state.kind === 'gone') link.down(state.why);
    else if (state.kind !== 'connecting') link.up();
  }

  #take(event: RunEvent, first: boolean): void {
    const run = event.run ?? this.run;
    const ended = run?.state !== RunState.RUNNING && this.run?.state === RunState.RUNNING;
    this.run = run;
    const before = event.past ? folded(event.past) : first ? emptyLog() : this.log;
    const budget = Number(run?.verdict?.budgetBytes ?? 0n);
    this.log = appended(before, event.steps, event.checks, budget);
    if (this.log.first.length > MOST_BUCKETS) void this.#foldSteps();
    if (event.plan && (first || event.plan.planId !== this.plan?.planId)) {
      this.plan = event.plan;
      void this.#loadExplanation(event.plan);
      this.#wantTimeline(0);
    } else if (run && this.plannable) {
      void this.#loadCurve(run.graphId, create(CapabilitiesSchema));
      this.#loadUnplanned(run.graphId);
      this.#wantTimeline(0);
    } else if (event.steps.length > 0 || ended || first) {
      this.#wantTimeline(Math.max(0, this.#timelineAt + TIMELINE_MS - Date.now()));
    }
  }

  async #loadExplanation(plan: Plan): Promise<void> {
    this.#bare.stop();
    await this.#explained.answer(({signal}) => planner.explain({planId: plan.planId}, {signal}));
    // A newer plan has asked for its own.
    if (this.plan !== plan || this.#stopped) return;
    if (!this.capabilities) {
      this.sweep.why = this.#explained.why;
      return;
    }
    // Curves are of plans without host memory.
    const {link: _, ...capabilities} = this.capabilities;
    void this.#loadCurve(plan.graphId, capabilities);
  }

  /** What is alive in the step as it is, from a plan that has nothing to do. It
   * names no run: the run has no plan afterwards. */
  #loadUnplanned(graphId: string): void {
    // Refused: the next event of the run asks again.
    if (this.#bare.budget === '' || this.#bare.why !== '')
      this.#bare.ask({graphId, budget: '1x'}, 0);
  }

  async #loadCurve(graphId: string, capabilities: Capabilities): Promise<void> {
    // Another budget has the same curve; another graph or executor has not.
    const key = `${graphId} ${capabilities.executor}`;
    if (key === this.#sweepKey) return;
    this.#sweepKey = key;
    const received: TradeoffPoint[] = [];
    this.curve = EMPTY_TRADEOFF;
    this.sweep.forget();
    await this.sweep.answer(async ({signal}) => {
      for await (const point of planner.sweep({graphId, capabilities}, {signal})) {
        // A point that a later search improved comes again.
        const known = received.findIndex((one) => one.budgetBytes === point.budgetBytes);
        if (known >= 0) received[known] = point;
        else received.push(point);
        this.curve = tradeoff(received);
      }
      return true;
    });
    if (key === this.#sweepKey && this.sweep.why !== '') this.#sweepKey = '';
  }

  /** Part of the run at a finer grain; all of it without a range. */
  async stepsIn(range: Window | undefined): Promise<StepLog> {
    const request = range
      ? {fromStep: BigInt(Math.max(0, Math.floor(range.from))), toStep: BigInt(Math.ceil(range.to))}
      : {};
    return folded(await query.getSteps({runId: this.#runId, buckets: BUCKETS, ...request}, QUICK));
  }

  /** A page that was open for long has a bucket a step: the server folds them. */
  async #foldSteps(): Promise<void> {
    if (this.#fold.busy) return;
    // Without an answer the finer ones stay; the next step asks again.
    this.log = (await this.#fold.answer(() => this.stepsIn(undefined))) ?? this.log;
  }

  #wantTimeline(inMs: number): void {
    if (this.timeline.busy) {
      this.#timelineDue = true;
      return;
    }
    clearTimeout(this.#timelineTimer);
    if (!this.#stopped) this.#timelineTimer = setTimeout(() => void this.#loadTimeline(), inMs);
  }

  async #loadTimeline(): Promise<void> {
    const {run} = this;
    if (!run) return;
    this.#timelineDue = false;
    this.#timelineAt = Date.now();
    const request = curveRequest(run.runId, this.#window, this.#width);
    const timeline = await this.timeline.answer(() => query.getTimeline(request, QUICK));
    if (timeline) void this.steps.load(run, timeline);
    if (this.#timelineDue) this.#wantTimeline(100);
  }
}
