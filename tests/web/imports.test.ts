// SPDX-License-Identifier: Apache-2.0
import {expect, test} from 'vitest';
import {
  barShare,
  MOST_BYTES,
  progressText,
  readAnswer,
  readEnd,
  whyNot,
  withoutName,
} from '../../web/src/data/imports';

const RUN = {runId: 'r1', name: 'trace.json', format: 'profiler trace', ops: 7};

test('an answer is read while it grows', () => {
  expect(readAnswer('')).toEqual({phase: 'reading', share: 0});
  expect(readAnswer('{"progress":0.2}\n{"progress":0.6}\n')).toEqual({
    phase: 'reading',
    share: 0.6,
  });
  expect(readAnswer('{"progress":0.2}\n{"prog')).toEqual({phase: 'reading', share: 0.2});
  expect(readAnswer(`{"progress":0.9}\n${JSON.stringify({run: RUN})}\n`)).toEqual({
    phase: 'done',
    run: RUN,
  });
});

test('an error is the sentence of the server', () => {
  const why = 'trace.json: byte 17: is not valid JSON';
  const line = JSON.stringify({error: {code: 'invalid_argument', message: why}});

  expect(readEnd('trace.json', 200, `{"progress":0.1}\n${line}\n`)).toEqual({phase: 'failed', why});
  expect(readEnd('trace.json', 429, JSON.stringify({code: 'x', message: why}))).toEqual({
    phase: 'failed',
    why,
  });
  expect(readEnd('trace.json', 403, 'requests from pages of other sites are refused\n')).toEqual({
    phase: 'failed',
    why: 'requests from pages of other sites are refused',
  });
});

test('an answer that breaks off is a failure that says what to do', () => {
  for (const text of ['', '{"progress":0.5}\n', '{"run":{"runId"']) {
    expect(readEnd('a.pickle', 200, text)).toEqual({
      phase: 'failed',
      why: 'a.pickle: the connection to the server broke off; drop it again',
    });
  }
});

test('an error under its file does not repeat the name', () => {
  expect(withoutName('a.json', 'a.json: is empty')).toBe('is empty');
  expect(withoutName('a.json', 'no server')).toBe('no server');
});

test('what the server would refuse is not sent', () => {
  expect(whyNot({name: 'a', size: 1})).toBeUndefined();
  expect(whyNot({name: 'a', size: MOST_BYTES})).toBeUndefined();
  expect(whyNot({name: 'a', size: 0})).toBe('a: is empty, or a folder');
  expect(whyNot({name: 'a', size: MOST_BYTES + 1})).toContain('4.0 GiB is the most');
});

test('the bar never goes back', () => {
  const shares = [
    barShare({phase: 'waiting'}),
    barShare({phase: 'sending', share: 0.5}),
    barShare({phase: 'sending', share: 1}),
    barShare({phase: 'reading', share: 0}),
    barShare({phase: 'reading', share: 1}),
    barShare({phase: 'done', run: RUN}),
  ];

  expect([...shares].sort((a, b) => a - b)).toEqual(shares);
  expect(progressText({phase: 'reading', share: 0.517})).toBe('reading, 51 %');
  expect(progressText({phase: 'done', run: RUN})).toBe('profiler trace, can be planned');
});
