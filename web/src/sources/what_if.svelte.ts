// SPDX-License-Identifier: Apache-2.0

/**
 * A plan for a budget, beside the one that runs. It is applied only where the
 * request names a run. Asking again drops the question before.
 */
import type {MessageInitShape} from '@bufbuild/protobuf';
import {Asked} from '../api/asked.svelte';
import {planner} from '../api/client';
import type {Plan} from '../gen/reprise/v1/plan_pb';
import type {Explanation, PlanProgress, PlanRequestSchema} from '../gen/reprise/v1/planner_pb';

type Question = MessageInitShape<typeof PlanRequestSchema> & {readonly budget: string};

const MOST_KNOWN = 24;

export class WhatIf {
  /** The budget asked for, as typed; "" for no question. */
  budget = $state('');
  plan: Plan | undefined = $state.raw();
  explanation: Explanation | undefined = $state.raw();
  progress: PlanProgress | undefined = $state.raw();
  planning = $state(false);
  /** All that were planned here, the newest last: what a moving slider shows meanwhile. */
  known: readonly Plan[] = $state.raw([]);

  readonly #asked = new Asked<void>();
  #timer: ReturnType<typeof setTimeout> | undefined;

  /** The server's refusal of the question. */
  get why(): string {
    return this.#asked.why;
  }

  /** `inMs`: a slider that is still moving asks when it has come to rest. */
  ask(question: Question, inMs: number): void {
    this.stop();
    this.budget = question.budget;
    this.planning = true;
    this.#timer = setTimeout(() => void this.#run(question), inMs);
  }

  clear(): void {
    this.stop();
    this.budget = '';
    this.plan = undefined;
    this.explanation = undefined;
    this.planning = false;
  }

  /** Gives the question up; what was answered stays. */
  stop(): void {
    this.#asked.stop();
    this.#asked.forget();
    clearTimeout(this.#timer);
    this.progress = undefined;
  }

  async #run(question: Question): Promise<void> {
    await this.#asked.answer(async ({signal}) => {
      for await (const {event} of planner.plan(question, {signal})) {
        if (event.case === 'progress') this.progress = event.value;
        if (event.case !== 'plan') continue;
        this.plan = event.value;
        this.explanation = undefined;
        if (event.value.feasible) this.known = [...this.known, event.value].slice(-MOST_KNOWN);
      }
      this.planning = false;
      if (this.plan?.feasible) {
        this.explanation = await planner.explain({planId: this.plan.planId}, {signal});
      }
    });
    if (this.why === '') return;
    this.planning = false;
    this.plan = undefined;
    this.explanation = undefined;
  }
}
