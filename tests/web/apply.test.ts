// SPDX-License-Identifier: Apache-2.0
import {create} from '@bufbuild/protobuf';
import {expect, test} from 'vitest';
import {runCommand} from '../../web/src/data/apply';
import {RunSchema} from '../../web/src/gen/reprise/v1/query_pb';

const runOf = (name: string) => create(RunSchema, {name});

test('a command names the program that the run is named after', () => {
  expect(runCommand('2GiB', runOf('small.py'))).toBe(
    'reprise run --budget 2GiB -- python small.py',
  );
});

test('a name that is no plain file name is not typed', () => {
  for (const name of ['a.py; rm -rf ~', '$(x).py', '-c.py', 'run.sh', '', "x'.py"]) {
    expect(runCommand('2GiB', runOf(name))).toBe('reprise run --budget 2GiB -- python train.py');
  }
  expect(runCommand('2GiB')).toBe('reprise run --budget 2GiB -- python train.py');
});

test('a command gives plans the host memory that this one uses', () => {
  expect(runCommand('2GiB', runOf('small.py'), 512n)).toBe(
    'reprise run --budget 2GiB --host-budget 512 -- python small.py',
  );
});
