// SPDX-License-Identifier: Apache-2.0

/**
 * A job as the server sees one: it submits a graph, is given a plan, and
 * streams what it measures, over gRPC as a collector does.
 */
import {create, toBinary} from '@bufbuild/protobuf';
import {createClient, type Interceptor} from '@connectrpc/connect';
import {createGrpcTransport} from '@connectrpc/connect-node';
import {Phase, StepGraphSchema, type StepGraph} from '../../web/src/gen/reprise/v1/graph_pb';
import {
  ChunkSchema,
  ColumnsSchema,
  Ingest,
  MomentReason,
  RecordKind,
  UpSchema,
  type Columns,
  type Down,
  type OpenWindow,
  type Up,
} from '../../web/src/gen/reprise/v1/ingest_pb';
import {FreePolicy, type Plan} from '../../web/src/gen/reprise/v1/plan_pb';
import {Planner} from '../../web/src/gen/reprise/v1/planner_pb';
import {Query} from '../../web/src/gen/reprise/v1/query_pb';
import type {Daemon} from './daemon';

/** What an ALLOC record says, as in reprise_agent.h. */
const ALLOC = 0n;
const FREE = 1n;
const BASELINE = 7n;

/** As the server presets the tape executor. */
export const TAPE = {
  executor: 'tape',
  recomputeInBackwardOnly: true,
  duplicateOutputs: true,
  freePolicy: FreePolicy.PROGRAM,
} as const;

/** Puts the token on every call. */
export function withToken({token}: Pick<Daemon, 'token'>): Interceptor {
  return (next) => (request) => {
    request.header.set('authorization', `Bearer ${token}`);
    return next(request);
  };
}

export function clients(daemon: Pick<Daemon, 'url' | 'token'>) {
  const transport = createGrpcTransport({
    baseUrl: daemon.url,
    interceptors: [withToken(daemon)],
  });
  return {
    planner: createClient(Planner, transport),
    query: createClient(Query, transport),
    ingest: createClient(Ingest, transport),
  };
}

export interface Step {
  readonly planId: string;
  readonly peakBytes: number;
  readonly stepNs: number;
  /** Bytes alive over the step, when it is traced. */
  readonly points?: readonly (readonly [atNs: number, bytes: number])[];
  /** Which op ran, with the bytes alive during it; instead of `points`. */
  readonly ops?: readonly (readonly [name: string, bytes: number])[];
  /** Gradients compared, and how many differed. */
  readonly check?: readonly [checked: number, differing: number];
}

export class Job {
  readonly runId: string;
  /** The server has ended the stream. */
  readonly over: Promise<void>;
  /** Windows that the server asked for. */
  readonly windows: OpenWindow[] = [];
  readonly #clients: ReturnType<typeof clients>;
  readonly #outbox: Up[] = [];
  #wake: (() => void) | undefined;
  #closed = false;
  #seq = 0n;
  #acked = 0n;
  #waiting: {readonly seq: bigint; readonly resolve: () => void}[] = [];
  #failed: Error | undefined;
  #step = 0;
  #clockNs = 1_000_000_000;

  constructor(daemon: Pick<Daemon, 'url' | 'token'>, runId: string, name: string) {
    this.#clients = clients(daemon);
    this.runId = runId;
    const hello = {
      protoVersion: 1,
      minVersion: 1,
      sessionId: `${runId}.0`,
      runId,
      producerEpoch: 1n,
      info: {host: 'e2e', pid: process.pid, world: 1, labels: {name}},
    };
    this.#outbox.push(create(UpSchema, {m: {case: 'hello', value: hello}}));
    this.over = this.#receive(this.#clients.ingest.stream(this.#send()));
  }

  /** Submits the graph and has it planned. */
  async plan(graph: StepGraph, budget: string): Promise<Plan> {
    const {planner} = this.#clients;
    const part = {data: toBinary(StepGraphSchema, graph), runId: this.runId};
    const {graphId} = await planner.putGraph(
      (async function* () {
        await Promise.resolve();
        yield part;
      })(),
    );
    const request = {graphId, budget, capabilities: TAPE, runId: this.runId};
    for await (const {event} of planner.plan(request)) {
      if (event.case === 'plan') return event.value;
    }
    throw new Error('the stream ended without a plan');
  }

  /** One step done; resolves when the server has committed it. */
  async step(step: Step): Promise<void> {
    const number = BigInt(++this.#step);
    const beginNs = this.#clockNs;
    const endNs = beginNs + step.stepNs;
    this.#clockNs = endNs + 1000;
    const columns = create(ColumnsSchema, {
      steps: [
        {
          step: number,
          planId: step.planId,
          planned: step.planId !== '',
          stepNs: BigInt(step.stepNs),
          peakBytes: BigInt(step.peakBytes),
          endNs: BigInt(endNs),
          window: (step.points ?? step.ops) !== undefined,
        },
      ],
      checks: step.check
        ? [
            {
              step: number,
              planId: step.planId,
              checked: step.check[0],
              differing: step.check[1],
              bitwise: step.check[1] === 0,
              firstName: step.check[1] === 0 ? '' : 'layers.9.weight',
            },
          ]
        : [],
    });
    if (step.points) trace(columns, number, beginNs, step.points);
    if (step.ops) this.#traceOps(columns, number, beginNs, endNs, step.ops);
    await this.#push(columns, beginNs, endNs);
  }

  /** A traced step with marks of its ops, evenly over its time. */
  #traceOps(
    columns: Columns,
    step: bigint,
    beginNs: number,
    endNs: number,
    ops: readonly (readonly [string, number])[],
  ): void {
    const names = [...new Set(ops.map(([name]) => name))];
    const value = {names: names.map((text, i) => ({id: i + 1, text}))};
    this.#queue(create(UpSchema, {m: {case: 'defs', value}}));
    let live = 40 * 2 ** 20;
    const record = (kind: RecordKind, at: number, bytes: number, extra: bigint, name = 0): void => {
      columns.kind.push(kind);
      columns.startNs.push(BigInt(Math.round(at)));
      columns.bytes.push(BigInt(bytes));
      columns.extra.push(extra);
      columns.name.push(name);
    };
    record(RecordKind.STEP, beginNs, 0, step);
    record(RecordKind.ALLOC, beginNs, live, BASELINE);
    ops.forEach(([name, bytes], i) => {
      const at = beginNs + ((i + 0.5) * (endNs - beginNs)) / ops.length;
      // What an op no longer needs is gone before the next one begins.
      if (bytes < live) record(RecordKind.ALLOC, at - 10, bytes - live, FREE);
      record(RecordKind.OP_BEGIN, at, 0, 0n, names.indexOf(name) + 1);
      if (bytes > live) record(RecordKind.ALLOC, at + 10, bytes - live, ALLOC);
      live = bytes;
    });
  }

  /** What works in the job, as its agent would say it. */
  works(capabilities: readonly {name: string; value: string; why?: string}[]): void {
    this.#queue(create(UpSchema, {m: {case: 'caps', value: {capabilities: [...capabilities]}}}));
  }

  /** The job ends as it should. */
  bye(): void {
    this.#queue(create(UpSchema, {m: {case: 'bye', value: {}}}));
    this.#closed = true;
    this.#wake?.();
  }

  /** The process is killed in its next step, at this op of the planned backward. */
  async killed(plan: Plan, op: number): Promise<void> {
    const {graphId, planId} = plan;
    const columns = create(ColumnsSchema, {
      moments: [
        {
          reason: MomentReason.KILLED,
          step: BigInt(this.#step + 1),
          atNs: BigInt(this.#clockNs),
          phase: Phase.BACKWARD,
          graphId,
          planId,
          op,
        },
      ],
    });
    await this.#push(columns, this.#clockNs, this.#clockNs);
    this.#queue(create(UpSchema, {m: {case: 'bye', value: {killed: true}}}));
    this.#closed = true;
    this.#wake?.();
  }

  /** An allocation fails in the next step; the job goes on. */
  async outOfMemory(
    plan: Plan,
    bytes: {
      readonly asked: number;
      readonly alive: number;
      readonly free: number;
      readonly total: number;
    },
  ): Promise<void> {
    const columns = create(ColumnsSchema, {
      moments: [
        {
          reason: MomentReason.OUT_OF_MEMORY,
          step: BigInt(this.#step + 1),
          atNs: BigInt(this.#clockNs),
          phase: Phase.BACKWARD,
          graphId: plan.graphId,
          planId: plan.planId,
          askedBytes: BigInt(bytes.asked),
          liveBytes: BigInt(bytes.alive),
          freeBytes: BigInt(bytes.free),
          totalBytes: BigInt(bytes.total),
          storages: [{bytes: BigInt(bytes.alive), name: 'layers.9.weight', category: 1}],
        },
      ],
    });
    await this.#push(columns, this.#clockNs, this.#clockNs);
  }

  /** The connection goes away without a word. */
  abandon(): void {
    this.#closed = true;
    this.#wake?.();
  }

  #push(columns: Columns, t0: number, t1: number): Promise<void> {
    const body = toBinary(ColumnsSchema, columns);
    const seq = ++this.#seq;
    const chunk = create(ChunkSchema, {
      seq,
      t0Ns: BigInt(t0),
      t1Ns: BigInt(t1),
      count: columns.kind.length,
      body,
      crc32c: crc32c(body),
    });
    this.#queue(create(UpSchema, {m: {case: 'chunk', value: chunk}}));
    return new Promise((resolve, reject) => {
      if (this.#failed) reject(this.#failed);
      else this.#waiting.push({seq, resolve});
    });
  }

  #queue(up: Up): void {
    this.#outbox.push(up);
    this.#wake?.();
  }

  async *#send(): AsyncGenerator<Up> {
    for (;;) {
      for (let up = this.#outbox.shift(); up; up = this.#outbox.shift()) yield up;
      if (this.#closed) return;
      await new Promise<void>((resolve) => (this.#wake = resolve));
    }
  }

  async #receive(stream: AsyncIterable<Down>): Promise<void> {
    try {
      for await (const {m} of stream) {
        if (m.case === 'window') this.windows.push(m.value);
        if (m.case !== 'ack') continue;
        this.#acked = m.value.committed;
        const done = this.#waiting.filter(({seq}) => seq <= this.#acked);
        this.#waiting = this.#waiting.filter(({seq}) => seq > this.#acked);
        for (const {resolve} of done) resolve();
      }
    } catch (error) {
      this.#failed = error instanceof Error ? error : new Error(String(error));
    }
  }
}

/** A step's memory as allocator events: where it was, then every change. */
function trace(
  columns: Columns,
  step: bigint,
  beginNs: number,
  points: readonly (readonly [number, number])[],
): void {
  const record = (kind: RecordKind, atNs: number, bytes: number, extra: bigint): void => {
    columns.kind.push(kind);
    columns.startNs.push(BigInt(beginNs + atNs));
    columns.bytes.push(BigInt(bytes));
    columns.extra.push(extra);
  };
  record(RecordKind.STEP, 0, 0, step);
  let live = points[0]?.[1] ?? 0;
  record(RecordKind.ALLOC, 0, live, BASELINE);
  for (const [atNs, bytes] of points.slice(1)) {
    if (bytes !== live) record(RecordKind.ALLOC, atNs, bytes - live, bytes > live ? ALLOC : FREE);
    live = bytes;
  }
}

const CRC_TABLE = Uint32Array.from({length: 256}, (_, byte) => {
  let crc = byte;
  for (let bit = 0; bit < 8; bit++) crc = crc & 1 ? (crc >>> 1) ^ 0x82f63b78 : crc >>> 1;
  return crc;
});

function crc32c(data: Uint8Array): number {
  let crc = 0xffffffff;
  for (const byte of data) crc = (crc >>> 8) ^ CRC_TABLE[(crc ^ byte) & 0xff]!;
  return (crc ^ 0xffffffff) >>> 0;
}
