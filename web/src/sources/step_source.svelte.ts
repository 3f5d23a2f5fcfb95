// SPDX-License-Identifier: Apache-2.0

/**
 * The step graph of a run and its newest traced steps, with the plan and
 * without: what puts every curve on the axis of ops. Each is read once.
 */
import {fromBinary} from '@bufbuild/protobuf';
import {Asked} from '../api/asked.svelte';
import {planner, query} from '../api/client';
import {tracedStep, type TracedStep} from '../data/traced_step';
import {StepGraphSchema, type StepGraph} from '../gen/reprise/v1/graph_pb';
import type {Run, StepPart, Timeline} from '../gen/reprise/v1/query_pb';

/** A step of more records is not read: the page would hold a raw trace. */
const MOST_RECORDS = 400_000;

export class StepSource {
  graph: StepGraph | undefined = $state.raw();
  planned: TracedStep | undefined = $state.raw();
  base: TracedStep | undefined = $state.raw();

  readonly #asked = new Asked<void>();
  #graphId = '';

  /** Why a traced step is not here although it exists; else empty. */
  get why(): string {
    return this.#asked.why;
  }

  async load({graphId, runId}: Run, {measured, measuredBase}: Timeline): Promise<void> {
    if (graphId === '' || this.#asked.busy) return;
    await this.#asked.answer(async ({signal}) => {
      let graph: StepGraph | undefined;
      try {
        if (this.#graphId !== graphId) graph = await readGraph(graphId, signal);
        if (measured && this.planned?.step !== Number(measured.step)) {
          this.planned = await readStep(runId, true, signal);
        }
        if (measuredBase && this.base?.step !== Number(measuredBase.step)) {
          this.base = await readStep(runId, false, signal);
        }
      } finally {
        // Last: an axis of ops that a traced step then turns out not to fit would flip.
        if (graph) [this.graph, this.#graphId] = [graph, graphId];
      }
    });
  }

  stop(): void {
    this.#asked.stop();
  }
}

async function readStep(runId: string, planned: boolean, signal: AbortSignal): Promise<TracedStep> {
  const parts: StepPart[] = [];
  let records = 0;
  for await (const part of query.readStep({runId, planned}, {signal})) {
    parts.push(part);
    records += part.records?.kind.length ?? 0;
    if (records > MOST_RECORDS)
      throw new Error('The traced step has more records than a page reads.');
  }
  return tracedStep(parts);
}

/** Joined from the parts of its stream. */
async function readGraph(graphId: string, signal: AbortSignal): Promise<StepGraph> {
  const parts: BlobPart[] = [];
  for await (const part of planner.getGraph({graphId}, {signal})) parts.push(part.data as BlobPart);
  return fromBinary(StepGraphSchema, new Uint8Array(await new Blob(parts).arrayBuffer()));
}
