// SPDX-License-Identifier: Apache-2.0
import {expect, test} from 'vitest';
import {againCommand, comparePath, routeOf, runPath} from '../../web/src/url/route';
import {readState, writeState} from '../../web/src/url/state';

test('paths name pages', () => {
  expect(routeOf('/')).toEqual({page: 'runs'});
  expect(routeOf('/runs/a3f9')).toEqual({
    page: 'run',
    runId: 'a3f9',
    view: 'overview',
  });
  expect(routeOf('/status/')).toEqual({page: 'status'});
  expect(routeOf('/graphs/1/plan')).toEqual({
    page: 'missing',
    path: '/graphs/1/plan',
  });
});

test('a comparison is a page and two runs', () => {
  const [path, search] = comparePath('a/1', 'b').split('?');

  expect(routeOf(path!)).toEqual({page: 'compare'});
  expect(readState(search!)).toEqual({a: 'a/1', b: 'b'});
  expect(writeState({a: 'a/1', b: 'b'})).toBe(`?${search}`);
});

test('a run id with odd characters survives the address', () => {
  const runId = 'night/run 7 %';
  expect(routeOf(runPath(runId))).toEqual({
    page: 'run',
    runId,
    view: 'overview',
  });
  expect(routeOf(runPath(runId, 'plan'))).toEqual({
    page: 'run',
    runId,
    view: 'plan',
  });
  expect(routeOf('/runs/a/nonsense')).toMatchObject({page: 'missing'});
  expect(routeOf('/runs/%zz')).toMatchObject({page: 'missing'});
});

test('the state of a page is short and readable', () => {
  const state = {
    budget: '24GiB',
    window: {from: 1_200_000_000, to: 1_400_000_000},
  };

  const text = writeState(state);

  expect(text).toBe('?budget=24GiB&t=1.2s..1.4s');
  expect(readState(text)).toEqual(state);
  expect(writeState({})).toBe('');
});

test('the part of a step on the screen stands in places of ops, or in time', () => {
  const state = {ops: {from: 120, to: 340.5}};

  expect(writeState(state)).toBe('?ops=120..340.5');
  expect(readState('?ops=120..340.5')).toEqual(state);
  expect(readState(writeState({byTime: true}))).toEqual({byTime: true});
  // One axis at a time.
  expect(readState('?t=1ms..2ms&ops=1..2&by=time')).toEqual({
    window: {from: 1_000_000, to: 2_000_000},
  });
  expect(readState('?ops=5..x')).toEqual({});
});

test('a wide optimizer stands in the address, a folded one does not', () => {
  expect(readState('?optimizer=wide')).toEqual({wide: true});
  expect(writeState({wide: true, budget: '1GiB'})).toBe('?budget=1GiB&optimizer=wide');
  expect(readState('?optimizer=narrow')).toEqual({});
});

test('the list of runs has its search, filter and order in the address', () => {
  const state = {
    search: 'res net',
    show: 'died',
    mine: true,
    sort: 'peak',
    ascending: true,
  } as const;

  expect(writeState(state)).toBe('?q=res%20net&show=died&mine=1&sort=peak');
  expect(readState(writeState(state))).toEqual(state);
  expect(readState(writeState({sort: 'steps'}))).toEqual({sort: 'steps'});
  expect(readState('?show=nonsense&sort=--x&q=')).toEqual({});
});

test('a narrow window keeps a thousandth of its width', () => {
  const window = {from: 203_456_789, to: 203_466_789};

  const read = readState(writeState({window})).window!;

  expect(Math.abs(read.from - window.from)).toBeLessThanOrEqual(5);
  expect(Math.abs(read.to - window.to)).toBeLessThanOrEqual(5);
});

test('what cannot be read is left out', () => {
  expect(readState('?t=5ms..2ms')).toEqual({});
  expect(readState('?t=now..later')).toEqual({});
  expect(readState('?t=1ms')).toEqual({});
  expect(readState('?budget=')).toEqual({});
  expect(readState('?t=99999999999999s..99999999999999999s')).toEqual({});
});

test('a budget as typed reaches the server unchanged', () => {
  expect(readState(writeState({budget: '90% & more'})).budget).toBe('90% & more');
});

test('a page whose server has ended is opened again by a command', () => {
  expect(againCommand(routeOf('/runs/a3f9/plan'))).toBe('reprise show a3f9');
  expect(againCommand(routeOf('/status'))).toBe('reprise show latest');
});
