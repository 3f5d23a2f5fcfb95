// SPDX-License-Identifier: Apache-2.0
import {create, type MessageInitShape} from '@bufbuild/protobuf';
import {expect, test} from 'vitest';
import {kindsOf, viewOf} from '../../web/src/data/runs';
import {RunSchema, RunState} from '../../web/src/gen/reprise/v1/query_pb';

const run = (init: MessageInitShape<typeof RunSchema>) => create(RunSchema, init);
const runs = [
  run({
    runId: 'c',
    name: 'GPT large',
    planId: 'p',
    startedNs: 30n,
    steps: 5n,
    state: RunState.RUNNING,
    verdict: {feasible: true, budgetBytes: 80n, measuredPeakBytes: 70n},
  }),
  run({
    runId: 'b',
    name: 'resnet',
    planId: 'p',
    startedNs: 20n,
    steps: 900n,
    state: RunState.FINISHED,
    verdict: {feasible: true, validated: true, budgetBytes: 9n, measuredPeakBytes: 8n},
  }),
  run({
    runId: 'a',
    host: 'node7',
    pid: 4,
    startedNs: 10n,
    steps: 7n,
    state: RunState.KILLED,
    verdict: {unplannedPeakBytes: 99n},
  }),
];
const ids = (found: readonly {runId: string}[]) => found.map((one) => one.runId).join('');

test('runs come newest first until another order is chosen', () => {
  expect(ids(viewOf(runs, {}))).toBe('cba');
  expect(ids(viewOf(runs, {ascending: true}))).toBe('abc');
  expect(ids(viewOf(runs, {sort: 'steps'}))).toBe('bac');
  expect(ids(viewOf(runs, {sort: 'peak'}))).toBe('acb');
  expect(ids(viewOf(runs, {sort: 'budget', ascending: true}))).toBe('abc');
  expect(ids(viewOf(runs, {sort: 'name', ascending: true}))).toBe('cab');
});

test('a search finds every word in name, id, host or verdict', () => {
  expect(ids(viewOf(runs, {search: 'large gpt'}))).toBe('c');
  expect(ids(viewOf(runs, {search: 'NODE7'}))).toBe('a');
  expect(ids(viewOf(runs, {search: 'gpt resnet'}))).toBe('');
});

test('a filter shows one kind of run, and says how many there are of each', () => {
  expect(ids(viewOf(runs, {show: 'died'}))).toBe('a');
  expect(ids(viewOf(runs, {show: 'running'}))).toBe('c');
  expect(ids(viewOf(runs, {show: 'validated', search: 'gpt'}))).toBe('');
  expect(kindsOf(runs)).toEqual([
    ['died', 1],
    ['measuring', 1],
    ['running', 1],
    ['validated', 1],
  ]);
});
