// SPDX-License-Identifier: Apache-2.0

/**
 * The real Connect client against reprised: its conformance test. Unary,
 * error, stream; JSON and binary.
 */
import {Code, ConnectError, createClient} from '@connectrpc/connect';
import {createConnectTransport} from '@connectrpc/connect-web';
import {afterAll, beforeAll, describe, expect, test} from 'vitest';
import type {TradeoffPoint} from '../../web/src/gen/reprise/v1/planner_pb';
import {Planner} from '../../web/src/gen/reprise/v1/planner_pb';
import {Query} from '../../web/src/gen/reprise/v1/query_pb';
import {startDaemon, type Daemon} from './daemon';
import {layeredGraph} from './graph';
import {Job, TAPE, withToken} from './job';

let daemon: Daemon;
let graphId = '';

beforeAll(async () => {
  daemon = await startDaemon();
  const job = new Job(daemon, 'known', 'known');
  ({graphId} = await job.plan(layeredGraph('known'), '0.7x'));
  job.bye();
});

afterAll(() => daemon?.remove());

describe.each([
  ['JSON', false],
  ['binary', true],
])('%s', (_, useBinaryFormat) => {
  const client = () => {
    const transport = createConnectTransport({
      baseUrl: daemon.url,
      useBinaryFormat,
      interceptors: [withToken(daemon)],
    });
    return {
      query: createClient(Query, transport),
      planner: createClient(Planner, transport),
    };
  };

  test('a call is answered', async () => {
    const {runs} = await client().query.listRuns({});

    expect(runs.map((run) => run.runId)).toEqual(['known']);
  });

  test('an error keeps its code and its sentence', async () => {
    const error = await client().query.getRun({runId: 'unknown'}).catch(ConnectError.from);

    expect(error).toMatchObject({code: Code.NotFound});
    expect((error as ConnectError).rawMessage).toContain('unknown');
  });

  test('a stream brings every message, then ends', async () => {
    const points: TradeoffPoint[] = [];
    const request = {graphId, capabilities: TAPE, points: 7};
    for await (const point of client().planner.sweep(request)) points.push(point);

    expect(points).toHaveLength(7);
    const budgets = points.map((point) => Number(point.budgetBytes));
    expect(budgets).toEqual([...budgets].sort((a, b) => b - a));
  });

  test('a stream that fails says why', async () => {
    const drained = (async () => {
      for await (const _ of client().planner.sweep({
        graphId: '00000000000000aa',
      }));
    })();

    await expect(drained).rejects.toMatchObject({code: Code.NotFound});
  });

  test('a client that leaves a stream early disturbs nobody', async () => {
    for await (const _ of client().planner.sweep({
      graphId,
      capabilities: TAPE,
    }))
      break;

    expect((await client().query.listRuns({})).runs).toHaveLength(1);
  });
});
