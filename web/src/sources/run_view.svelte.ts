// SPDX-License-Identifier: Apache-2.0

/**
 * What the pages of one run share: its session, the what-if that stands in the
 * address, and what they draw of both. Made inside of a component, once a run.
 */
import {untrack} from 'svelte';
import {Asked} from '../api/asked.svelte';
import {query, QUICK} from '../api/client';
import {num} from '../format/units';
import {largestOf} from '../data/decisions';
import {domainOf, type Domain, type Tradeoff} from '../data/tradeoff';
import type {OpsSource} from '../data/memory_ops';
import {markOf, ranOut, type MomentMark} from '../data/moments';
import {previewOf, type Preview} from '../data/preview';
import type {Infeasible, Plan} from '../gen/reprise/v1/plan_pb';
import type {Explanation} from '../gen/reprise/v1/planner_pb';
import {place} from '../url/location.svelte';
import {totals} from '../data/steps';
import {RunState, type GetMomentsResponse, type ShownMoment} from '../gen/reprise/v1/query_pb';
import {RunSession} from './run_session.svelte';
import {WhatIf} from './what_if.svelte';

export class RunView {
  readonly session = new RunSession();
  readonly whatIf = new WhatIf();
  readonly momentsAsked = new Asked<GetMomentsResponse>();
  /** When it ran out of memory or was killed, newest first. */
  readonly moments: readonly ShownMoment[] = $derived(this.momentsAsked.found?.moments ?? []);
  /** Those in which memory ran out. */
  readonly shortages: readonly ShownMoment[] = $derived(this.moments.filter(ranOut));

  /** Where a slider is that moves, in bytes. */
  #movingTo: number | undefined = $state();
  #firstBudget = '';
  #planId = '';

  constructor(runId: string) {
    $effect(() => this.session.start(runId));
    $effect(() => this.#follow(place.state.budget ?? ''));
    $effect(() => {
      if (this.#momentsKey === '') return undefined;
      return this.momentsAsked.ask((options) => query.getMoments({runId}, {...options, ...QUICK}));
    });
  }

  // Changes when there may be another moment. A run that ended may have ended by an
  // exception that no step reported.
  readonly #momentsKey: string = $derived.by(() => {
    const {run, log} = this.session;
    const {outOfMemory} = totals(log);
    if (!run || (run.state === RunState.RUNNING && outOfMemory === 0)) return '';
    return `${run.state} ${outOfMemory}`;
  });

  // ---- the curve ----

  readonly limit: Infeasible | undefined = $derived.by(() => {
    const own = this.session.plan?.infeasible;
    return this.session.curve.limit ?? (own?.smallestBudgetBytes ? own : undefined);
  });
  readonly curve: Tradeoff = $derived({...this.session.curve, limit: this.limit});
  readonly domain: Domain | undefined = $derived(
    domainOf(this.curve, num(this.session.plan?.basePeakBytes), this.session.curveDone, [
      num(this.session.plan?.budgetBytes),
      num(this.whatIf.plan?.budgetBytes),
    ]),
  );

  // ---- the what-if ----

  readonly other: Plan | undefined = $derived(
    this.whatIf.budget === '' ? undefined : this.whatIf.plan,
  );
  /** Of the budget that a slider goes over, until its plan is here. */
  readonly preview: Preview | undefined = $derived(
    this.#movingTo !== undefined && this.whatIf.planning
      ? previewOf(
          this.#movingTo,
          this.curve.points,
          [this.session.plan, ...this.whatIf.known].filter((plan) => plan !== undefined),
        )
      : undefined,
  );
  /** The what-if, else the plan of the run: what the pages speak of. */
  readonly explained: Explanation | undefined = $derived(
    this.other?.feasible && this.whatIf.explanation
      ? this.whatIf.explanation
      : this.session.explanation,
  );
  /** `explained`, or the step as it is without a plan. */
  readonly told: Explanation | undefined = $derived(this.explained ?? this.session.unplanned);
  /** False: there is only one peak, and nothing is decided. */
  readonly planned: boolean = $derived(this.explained?.plan?.feasible ?? false);
  readonly explainedIsOther: boolean = $derived(
    this.explained !== undefined && this.explained === this.whatIf.explanation,
  );

  // ---- what is drawn ----

  readonly ops: OpsSource | undefined = $derived(
    this.session.steps.graph && {
      graph: this.session.steps.graph,
      plan: this.session.plan,
      explanation: this.session.explanation,
      whatIf: this.other,
      whatIfExplanation: this.other ? this.whatIf.explanation : undefined,
      measured: this.session.steps.planned,
      measuredBase: this.session.steps.base,
    },
  );

  /** Where the newest of the moments is on the axis of ops. */
  readonly end: MomentMark | undefined = $derived(
    markOf(this.moments[0], this.session.run?.graphId ?? ''),
  );

  readonly #opNames: ReadonlyMap<number, string> = $derived(
    largestOf((this.session.explanation ?? this.session.unplanned)?.storages ?? []),
  );

  opName(op: number): string {
    const name = this.session.steps.graph?.ops[op]?.name ?? this.#opNames.get(op);
    return name === undefined ? `op ${op}` : `op ${op}: ${name}`;
  }

  /** The line of the program that an op is from; "" where that is not known. */
  sourceOf(op: number): string {
    return this.session.steps.graph?.ops[op]?.source ?? '';
  }

  /** Asks for another budget; "" ends the what-if. `movingTo`: its bytes, and more are to come. */
  choose(text: string, movingTo?: number): void {
    const {plan, capabilities} = this.session;
    this.#movingTo = movingTo;
    if (plan === undefined) this.#firstBudget = text;
    // Asked again in the same words: a person expects a new answer.
    if (text !== '' && text === this.whatIf.budget && plan && capabilities) {
      this.whatIf.ask({budget: text, graphId: plan.graphId, capabilities}, 0);
    }
    place.update({budget: text === '' ? undefined : text}, movingTo !== undefined);
  }

  #follow(wanted: string): void {
    const {plan, capabilities} = this.session;
    // What the plan was made for comes with its explanation.
    if (plan === undefined || capabilities === undefined) return;
    const another = this.#planId !== '' && this.#planId !== plan.planId;
    this.#planId = plan.planId;
    // The job has taken the what-if: it is the plan of the run now.
    if (another && wanted !== '' && plan.budget === wanted) {
      untrack(() => place.update({budget: undefined}));
      return;
    }
    // Chosen before there was a plan: the plan has it.
    if (wanted !== '' && this.#firstBudget === wanted) {
      this.#firstBudget = '';
      untrack(() => place.update({budget: undefined}));
      return;
    }
    untrack(() => {
      if (wanted === '') this.whatIf.clear();
      else if (wanted !== this.whatIf.budget) {
        const question = {graphId: plan.graphId, capabilities, budget: wanted};
        this.whatIf.ask(question, this.#movingTo ? 180 : 0);
      }
    });
  }
}
