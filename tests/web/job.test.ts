// SPDX-License-Identifier: Apache-2.0
import {create} from '@bufbuild/protobuf';
import {describe, expect, test} from 'vitest';
import {canRecord, capabilityRows, windowText} from '../../web/src/data/job';
import {
  RunSchema,
  RunState,
  WindowState,
  WindowStatusSchema,
} from '../../web/src/gen/reprise/v1/query_pb';

const session = (rank: number, capabilities: [string, string, string?][]) => ({
  rank,
  capabilities: capabilities.map(([name, value, why = '']) => ({name, value, why})),
});

describe('what works in a job', () => {
  test('is said once where all ranks agree, and by rank where they do not', () => {
    const run = create(RunSchema, {
      sessions: [
        session(0, [
          ['torch', '2.13.0'],
          ['cupti', 'kernels and ops'],
        ]),
        session(1, [
          ['torch', '2.13.0'],
          ['cupti', 'no', 'held by nsys'],
        ]),
      ],
    });

    expect(capabilityRows(run)).toEqual([
      {name: 'PyTorch', rank: '', value: '2.13.0', why: ''},
      {name: 'CUPTI', rank: '', value: 'kernels and ops', why: ''},
      {name: 'CUPTI', rank: 'rank 1', value: 'no', why: 'held by nsys'},
    ]);
  });

  test('has one order and the words of the page, whatever order it comes in', () => {
    const run = create(RunSchema, {
      sessions: [
        session(0, [
          ['ring', '262144'],
          ['tune', 'on'],
          ['clock', 'host'],
          ['torch', '2.13.0'],
        ]),
      ],
    });

    expect(capabilityRows(run).map(({name, value}) => [name, value])).toEqual([
      ['PyTorch', '2.13.0'],
      ['Times of ops', "by the host's clock"],
      ['Records between two reads', 'at most 262,144'],
      ['tune', 'on'],
    ]);
  });

  test('its budget at the start is said in words', () => {
    const run = create(RunSchema, {sessions: [session(0, [['budget_at_start', 'none']])]});

    expect(capabilityRows(run)).toMatchObject([{name: 'Budget at the start', value: 'none'}]);
  });

  test('all notes of an import are shown', () => {
    const run = create(RunSchema, {
      sessions: [
        session(0, [
          ['note', '', 'one'],
          ['note', '', 'two'],
        ]),
      ],
    });

    expect(capabilityRows(run).map((row) => row.why)).toEqual(['one', 'two']);
  });
});

describe('a window', () => {
  const window = (state: WindowState, more: object = {}) =>
    windowText(create(WindowStatusSchema, {state, steps: 3, ...more}));

  test('says where it stands and why something is missing', () => {
    expect(window(WindowState.ASKED)[1]).toBe('Waits for the next step to record 3 steps.');
    expect(window(WindowState.ASKED, {atStep: 90n})[1]).toBe(
      'Waits for step 90 to record 3 steps.',
    );
    expect(window(WindowState.OPEN, {recorded: 1})[1]).toBe('Recording: 1 of 3 steps.');
    const done = window(WindowState.DONE, {
      recorded: 3,
      firstStep: 4n,
      lastStep: 6n,
      why: 'CUPTI is held by nsys',
    });
    expect(done[1]).toBe('Recorded 3 steps, 4 to 6; CUPTI is held by nsys.');
    expect(window(WindowState.REFUSED, {why: 'the job ended'})).toEqual([
      'bad',
      'Not recorded: the job ended.',
    ]);
  });

  test('can be asked for while the job runs and none is under way', () => {
    const run = (state: RunState, window?: WindowState) =>
      create(RunSchema, {state, ...(window === undefined ? {} : {window: {state: window}})});

    expect(canRecord(run(RunState.RUNNING))).toBe(true);
    expect(canRecord(run(RunState.RUNNING, WindowState.DONE))).toBe(true);
    expect(canRecord(run(RunState.RUNNING, WindowState.ASKED))).toBe(false);
    expect(canRecord(run(RunState.RUNNING, WindowState.OPEN))).toBe(false);
    expect(canRecord(run(RunState.FINISHED))).toBe(false);
  });
});
