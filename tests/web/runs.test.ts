// SPDX-License-Identifier: Apache-2.0
import {create, type MessageInitShape} from '@bufbuild/protobuf';
import {expect, test} from 'vitest';
import {grouped, kindsOf, listRequest, shownText} from '../../web/src/data/runs';
import {
  ListRunsResponseSchema,
  RunGrouping,
  RunOrder,
  RunSchema,
  Standing,
} from '../../web/src/gen/reprise/v1/query_pb';

const run = (init: MessageInitShape<typeof RunSchema>) => create(RunSchema, init);

test('the server is asked for what the address says of the list', () => {
  expect(listRequest({}, 100)).toMatchObject({
    limit: 100,
    search: '',
    running: false,
    standing: Standing.UNSPECIFIED,
    order: RunOrder.UNSPECIFIED,
    grouping: RunGrouping.UNSPECIFIED,
  });
  expect(
    listRequest(
      {
        search: 'gpt',
        show: 'failed',
        sort: 'peak',
        ascending: true,
        group: 'ending',
      },
      7,
    ),
  ).toMatchObject({
    limit: 7,
    search: 'gpt',
    standing: Standing.NOT_HELD,
    order: RunOrder.PEAK,
    ascending: true,
    grouping: RunGrouping.ENDING,
  });
  expect(listRequest({show: 'running'}, 1)).toMatchObject({
    running: true,
    mine: false,
  });
  expect(listRequest({mine: true}, 1)).toMatchObject({
    running: false,
    mine: true,
  });
});

test('a filter says how many runs there are of each kind', () => {
  const answer = create(ListRunsResponseSchema, {
    running: 2,
    standings: [
      {standing: Standing.VALIDATED, runs: 1},
      {standing: Standing.DIED, runs: 3},
      {standing: Standing.IMPORTED, runs: 0},
    ],
  });

  expect(kindsOf(answer)).toEqual([
    ['died', 3],
    ['running', 2],
    ['validated', 1],
  ]);
  expect(shownText('failed')).toBe('not held');
});

test('runs that stand together are a group, in the order of the server', () => {
  const runs = [
    run({runId: 'a', name: 'gpt', ending: 'finished'}),
    run({runId: 'b', name: 'gpt', ending: 'failed with exit code 3'}),
    run({runId: 'c', host: 'node7', pid: 4, ending: 'finished'}),
  ];

  const sizes = (by: 'name' | 'ending') =>
    grouped(runs, by).map(({title, runs: {length}}) => [title, length]);
  expect(sizes('name')).toEqual([
    ['gpt', 2],
    ['node7:4', 1],
  ]);
  expect(sizes('ending')).toEqual([
    ['finished', 2],
    ['failed with exit code 3', 1],
  ]);
  expect(grouped(runs, undefined)).toEqual([{title: '', runs}]);
});
