// SPDX-License-Identifier: Apache-2.0
import {create} from '@bufbuild/protobuf';
import {expect, test} from 'vitest';
import {appended, bucketName, checksText, emptyLog, folded, totals} from '../../web/src/data/steps';
import {StepReportSchema, VerifyReportSchema} from '../../web/src/gen/reprise/v1/ingest_pb';
import {StepBucketsSchema} from '../../web/src/gen/reprise/v1/query_pb';

const step = (number: number, peak = 10) =>
  create(StepReportSchema, {
    step: BigInt(number),
    peakBytes: BigInt(peak),
    stepNs: 7n,
    planned: number > 1,
  });
const check = (number: number, differing = 0) =>
  create(VerifyReportSchema, {
    step: BigInt(number),
    checked: 5,
    differing,
    bitwise: differing === 0,
  });
/** Steps 1 to 4 in one bucket: two plain ones, two planned. */
const four = create(StepBucketsSchema, {
  steps: 4n,
  plannedSteps: 2n,
  first: [1n],
  last: [4n],
  plain: [2],
  planned: [2],
  plainPeakBytes: [40n],
  plannedPeakBytes: [30n],
  plainNs: [5n],
  plannedNs: [6n],
  longestNs: [9n],
  overBudget: [0],
  outOfMemory: [0],
  traced: [0],
  checks: [1],
  checksDiffering: [0],
});

test('each step that comes while the page is open has a bucket of its own', () => {
  const log = appended(appended(emptyLog(), [step(0), step(1)], []), [step(2, 30)], [check(2)]);

  expect(log.first).toEqual([0, 1, 2]);
  expect(log.plainPeakBytes).toEqual([10, 10, 0]);
  expect(log.plannedPeakBytes).toEqual([0, 0, 30]);
  expect(log.checks).toEqual([0, 0, 1]);
});

test('steps are added after the buckets of the server, and none twice', () => {
  const log = appended(folded(four), [step(4), step(5)], [check(3, 2), check(5)]);

  expect(log.first).toEqual([1, 5]);
  expect(log.last).toEqual([4, 5]);
  expect(log.checks).toEqual([2, 1]);
  expect(totals(log)).toEqual({
    steps: 5,
    planned: 3,
    overBudget: 0,
    outOfMemory: 0,
    checks: 3,
    differing: 1,
  });
});

test('a planned step above the budget is counted', () => {
  expect(totals(appended(emptyLog(), [step(1, 50), step(2, 50)], [], 40)).overBudget).toBe(1);
});

test('the log is the same object when nothing is new', () => {
  const log = appended(emptyLog(), [step(1)], []);

  expect(appended(log, [step(1)], [])).toBe(log);
  expect(appended(log, [step(2)], [])).not.toBe(log);
});

test('a bucket says which steps it is of, and what its checks found', () => {
  const log = appended(folded(four), [step(5)], []);

  expect(bucketName(log, 0)).toBe('steps 1 to 4');
  expect(bucketName(log, 1)).toBe('step 5');
  expect(checksText(1, 0)).toBe('1 check, equal');
  expect(checksText(3, 0)).toBe('3 checks, all equal');
  expect(checksText(3, 2)).toBe('2 of 3 checks found a difference');
});
