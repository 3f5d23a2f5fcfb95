// SPDX-License-Identifier: Apache-2.0

/** A step graph and a traced step, joined from the parts of their streams. */
import {fromBinary} from '@bufbuild/protobuf';
import {StepReader, type TracedStep} from '../data/traced_step';
import {StepGraphSchema, type StepGraph} from '../gen/reprise/v1/graph_pb';
import {planner, query} from './client';

export async function readGraph(graphId: string, signal: AbortSignal): Promise<StepGraph> {
  const parts: Uint8Array[] = [];
  for await (const part of planner.getGraph({graphId}, {signal})) parts.push(part.data);
  const data = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    data.set(part, at);
    at += part.length;
  }
  return fromBinary(StepGraphSchema, data);
}

/** The newest traced step of a run; undefined where it has too many records. */
export async function readTracedStep(
  runId: string,
  planned: boolean,
  signal: AbortSignal,
): Promise<TracedStep | undefined> {
  const reader = new StepReader();
  for await (const part of query.readStep({runId, planned}, {signal})) {
    if (!reader.take(part)) return undefined;
  }
  return reader.step;
}
