// SPDX-License-Identifier: Apache-2.0
import {create} from '@bufbuild/protobuf';
import {expect, test} from 'vitest';
import {appended, checkText, emptyLog} from '../../web/src/data/steps';
import {StepReportSchema, VerifyReportSchema} from '../../web/src/gen/reprise/v1/ingest_pb';

const step = (number: number, peak = 10) =>
  create(StepReportSchema, {
    step: BigInt(number),
    peakBytes: BigInt(peak),
    planned: number > 1,
  });
const check = (number: number, differing = 0) =>
  create(VerifyReportSchema, {
    step: BigInt(number),
    checked: 5,
    differing,
    bitwise: differing === 0,
    firstName: 'head.weight',
  });

test('steps are appended in order', () => {
  const log = appended(appended(emptyLog(), [step(0), step(1)], []), [step(2, 30)], [check(2)]);

  expect(log.step).toEqual([0, 1, 2]);
  expect(log.peakBytes).toEqual([10, 10, 30]);
  expect(log.planned).toEqual([false, false, true]);
  expect(log.checks.map((one) => one.step)).toEqual([2]);
});

test('a step that was seen before is not added again', () => {
  const log = appended(emptyLog(), [step(1), step(2)], [check(2)]);

  const again = appended(log, [step(2), step(3)], [check(2)]);

  expect(again.step).toEqual([1, 2, 3]);
  expect(again.checks).toHaveLength(1);
});

test('the log is the same object when nothing is new', () => {
  const log = appended(emptyLog(), [step(1)], []);

  expect(appended(log, [step(1)], [])).toBe(log);
  expect(appended(log, [step(2)], [])).not.toBe(log);
});

test('a check says what it found', () => {
  const {checks} = appended(emptyLog(), [], [check(1), check(2, 3)]);

  expect(checks.map(checkText)).toEqual([
    '5 gradients equal bit for bit',
    '3 of 5 gradients differ, first head.weight',
  ]);
});

test('a check of recomputed tensors does not speak of gradients', () => {
  const {checks} = appended(emptyLog(), [], [{...check(1), values: true}]);

  expect(checks.map(checkText)).toEqual(['5 recomputed tensors equal bit for bit']);
});
