// SPDX-License-Identifier: Apache-2.0

/**
 * A plan for another budget, beside the one that runs. Nobody applies it: the
 * request names no run. Asking again drops the question before.
 */
import {isCancelled, planner, sentenceOf} from '../api/client';
import type {Plan} from '../gen/reprise/v1/plan_pb';
import type {Capabilities, Explanation, PlanProgress} from '../gen/reprise/v1/planner_pb';

export class WhatIf {
  /** The budget asked for, as typed; "" for no question. */
  budget = $state('');
  plan: Plan | undefined = $state.raw();
  explanation: Explanation | undefined = $state.raw();
  progress: PlanProgress | undefined = $state.raw();
  planning = $state(false);
  /** The server's refusal of the question. */
  why = $state('');

  #abort: AbortController | undefined;
  #timer: ReturnType<typeof setTimeout> | undefined;

  /** `inMs`: a slider that is still moving asks when it has come to rest. */
  ask(budget: string, graphId: string, capabilities: Capabilities, inMs: number): void {
    this.#abort?.abort();
    clearTimeout(this.#timer);
    this.budget = budget;
    this.why = '';
    this.planning = true;
    const abort = new AbortController();
    this.#abort = abort;
    this.#timer = setTimeout(
      () => void this.#run(budget, graphId, capabilities, abort.signal),
      inMs,
    );
  }

  clear(): void {
    this.#abort?.abort();
    clearTimeout(this.#timer);
    this.budget = '';
    this.plan = undefined;
    this.explanation = undefined;
    this.progress = undefined;
    this.planning = false;
    this.why = '';
  }

  async #run(
    budget: string,
    graphId: string,
    capabilities: Capabilities,
    signal: AbortSignal,
  ): Promise<void> {
    this.progress = undefined;
    try {
      for await (const {event} of planner.plan({graphId, budget, capabilities}, {signal})) {
        if (event.case === 'progress') this.progress = event.value;
        if (event.case === 'plan') {
          this.plan = event.value;
          this.explanation = undefined;
        }
      }
      this.planning = false;
      if (this.plan?.feasible) {
        this.explanation = await planner.explain({planId: this.plan.planId}, {signal});
      }
    } catch (error) {
      if (signal.aborted || isCancelled(error)) return;
      this.planning = false;
      this.plan = undefined;
      this.explanation = undefined;
      this.why = sentenceOf(error);
    }
  }
}
