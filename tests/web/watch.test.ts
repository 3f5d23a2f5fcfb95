// SPDX-License-Identifier: Apache-2.0
import {create} from '@bufbuild/protobuf';
import {Code, ConnectError} from '@connectrpc/connect';
import {expect, test, vi} from 'vitest';
import {watchRun} from '../../web/src/api/watch';
import {
  RunEventSchema,
  RunSchema,
  RunState,
  type Run,
  type RunEvent,
} from '../../web/src/gen/reprise/v1/query_pb';

// The times of these tests are short so that they are fast; none depends on one.
const TIMES = {retryMs: [1], quietMs: 2};
const REFUSED = new ConnectError('no such run', Code.NotFound);

const run = (steps: number, state: RunState): Run =>
  create(RunSchema, {runId: 'r', steps: BigInt(steps), state});

type Attempt = (signal: AbortSignal) => AsyncGenerator<RunEvent>;

async function* events(...runs: Run[]): AsyncGenerator<RunEvent> {
  await Promise.resolve();
  for (const one of runs) yield create(RunEventSchema, {run: one});
}

async function* failing(error: Error): AsyncGenerator<RunEvent> {
  yield* events();
  throw error;
}

function watched(attempts: Attempt[], stored: () => Promise<Run>) {
  const states: string[] = [];
  const seen: [number, boolean][] = [];
  let next = 0;
  const stop = watchRun(
    {
      watch: (signal) =>
        (attempts[next++] ?? (() => failing(new Error('no more attempts'))))(signal),
      get: stored,
      event: (event, first) => seen.push([Number(event.run?.steps), first]),
      state: (state) => states.push(state.kind),
    },
    TIMES,
  );
  return {states, seen, stop};
}

test('a stream that breaks is taken up again from its whole state', async () => {
  const {states, seen, stop} = watched(
    [
      async function* () {
        yield* events(run(1, RunState.RUNNING), run(2, RunState.RUNNING));
        throw new Error('connection lost');
      },
      () => failing(new Error('connection refused')),
      () => events(run(7, RunState.RUNNING), run(8, RunState.FINISHED)),
    ],
    () => Promise.resolve(run(8, RunState.FINISHED)),
  );

  await vi.waitFor(() => expect(states).toContain('ended'));
  stop();

  expect(seen).toEqual([
    [1, true],
    [2, false],
    [7, true],
    [8, false],
  ]);
  expect(states).toEqual(['connecting', 'live', 'gone', 'gone', 'live', 'ended']);
});

test('a run that is not there is not asked for again', async () => {
  const {states, stop} = watched([() => failing(REFUSED)], () => Promise.reject(REFUSED));

  await vi.waitFor(() => expect(states).toContain('missing'));
  stop();

  expect(states).toEqual(['connecting', 'missing']);
});

test('a server that goes away after the run ended is noticed', async () => {
  const {states, stop} = watched([() => events(run(3, RunState.FINISHED))], () =>
    Promise.reject(new Error('connection refused')),
  );

  await vi.waitFor(() => expect(states).toContain('gone'));
  stop();

  expect(states.slice(0, 4)).toEqual(['connecting', 'live', 'ended', 'gone']);
});

test('a connection that dies without a word is noticed', async () => {
  const {states, stop} = watched(
    [
      async function* (signal) {
        yield* events(run(1, RunState.RUNNING));
        // Nothing comes any more, until the client lets go.
        await new Promise((_, reject) => {
          signal.addEventListener('abort', () => reject(new Error('cancelled')));
        });
      },
    ],
    () => Promise.reject(new Error('timed out')),
  );

  await vi.waitFor(() => expect(states).toContain('gone'));
  stop();

  expect(states.slice(0, 3)).toEqual(['connecting', 'live', 'gone']);
});

test('a stream that never says anything is asked for again', async () => {
  const silent: Attempt = async function* (signal) {
    await new Promise((_, reject) => {
      signal.addEventListener('abort', () => reject(new Error('cancelled')));
    });
    yield* events();
  };
  const {seen, states, stop} = watched([silent, () => events(run(4, RunState.FINISHED))], () =>
    Promise.resolve(run(4, RunState.FINISHED)),
  );

  await vi.waitFor(() => expect(states).toContain('ended'));
  stop();

  expect(seen).toEqual([[4, true]]);
  expect(states).not.toContain('gone');
});
