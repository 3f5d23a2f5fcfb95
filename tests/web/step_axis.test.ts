// SPDX-License-Identifier: Apache-2.0
import {create} from '@bufbuild/protobuf';
import {expect, test} from 'vitest';
import {baseBytes, bytesByCategory, staticMemory} from '../../web/src/data/base_memory';
import {flatAxis, foldedAxis} from '../../web/src/data/folded_axis';
import {opsCurves, opsView, type OpsShown, type OpsSource} from '../../web/src/data/memory_ops';
import {aligned, baseExecs, placedExecs} from '../../web/src/data/step_axis';
import {placedStep, tracedStep} from '../../web/src/data/traced_step';
import {Category, Phase, StepGraphSchema} from '../../web/src/gen/reprise/v1/graph_pb';
import {RecordKind} from '../../web/src/gen/reprise/v1/ingest_pb';
import {FreePolicy, PlanSchema} from '../../web/src/gen/reprise/v1/plan_pb';
import {ExplanationSchema} from '../../web/src/gen/reprise/v1/planner_pb';
import {StepPartSchema} from '../../web/src/gen/reprise/v1/query_pb';

// load -> a -> b -> loss -> b' -> a'; the output of `a` is read again by b'.
const graph = create(StepGraphSchema, {
  staticBytes: 100n,
  storages: [
    {id: 0, bytes: 10n, category: Category.INPUT},
    {id: 1, bytes: 20n, category: Category.ACTIVATION},
    {id: 2, bytes: 30n, category: Category.ACTIVATION},
    {id: 3, bytes: 40n, category: Category.GRADIENT},
  ],
  ops: [
    {id: 0, name: 'load', phase: Phase.FORWARD, writes: [0]},
    {id: 1, name: 'a', phase: Phase.FORWARD, reads: [0], writes: [1], workspaceBytes: 7n},
    {id: 2, name: 'b', phase: Phase.FORWARD, reads: [1], writes: [2]},
    {id: 3, name: "b'", phase: Phase.BACKWARD, reads: [1, 2], writes: [3]},
  ],
  required: [3],
});

test('what runs again stands between the first runs around it', () => {
  // Frees (negative entries) have no place.
  const execs = placedExecs([0n, 1n, -1n, 2n, 0n, 1n, 3n]);

  expect([...execs.ops]).toEqual([0, 1, 2, 0, 1, 3]);
  expect([...execs.runs]).toEqual([0, 0, 0, 1, 1, 0]);
  expect([...execs.places].map((place) => Number(place.toFixed(2)))).toEqual([
    0, 1, 2, 2.33, 2.67, 3,
  ]);
});

test('two lists of ops are aligned by the longest common subsequence', () => {
  const match = (a: string, b: string): number[] => [...aligned([...a], [...b])!];

  expect(match('abcd', 'abcd')).toEqual([0, 1, 2, 3]);
  expect(match('abcd', 'xaxbcxd')).toEqual([1, 3, 4, 6]);
  expect(match('abxcd', 'abcd')).toEqual([0, 1, -1, 2, 3]);
  expect(match('abab', 'ab').filter((at) => at >= 0)).toEqual([0, 1]);
  expect(match('', 'ab')).toEqual([]);
});

test('an alignment is the longest one on random lists', () => {
  let seed = 7;
  const random = (): number => (seed = (seed * 48271) % 2147483647);
  for (let round = 0; round < 40; round++) {
    const make = (): string[] =>
      Array.from({length: 1 + (random() % 14)}, () => 'abc'[random() % 3]!);
    const [a, b] = [make(), make()];
    const match = aligned(a, b)!;
    const used = [...match].filter((at) => at >= 0);
    match.forEach((at, i) => at >= 0 && expect(b[at]).toBe(a[i]));
    expect(used).toEqual([...new Set(used)].sort((x, y) => x - y));
    expect(used.length, `${a.join('')} ${b.join('')}`).toBe(longest(a, b));
  }
});

function longest(a: readonly string[], b: readonly string[]): number {
  const rows = Array.from({length: a.length + 1}, () => new Array<number>(b.length + 1).fill(0));
  for (let i = 1; i <= a.length; i++) {
    for (let j = 1; j <= b.length; j++) {
      rows[i]![j] =
        a[i - 1] === b[j - 1]
          ? rows[i - 1]![j - 1]! + 1
          : Math.max(rows[i - 1]![j]!, rows[i]![j - 1]!);
    }
  }
  return rows[a.length]![b.length]!;
}

test('lists that have nothing in common are not aligned', () => {
  const many = (letter: string): string[] => new Array<string>(2000).fill(letter);

  expect(aligned(many('a'), many('b'))).toBeUndefined();
});

const NAMES = [
  {id: 1, text: 'load'},
  {id: 2, text: 'a'},
  {id: 3, text: 'b'},
  {id: 4, text: "b'"},
  {id: 5, text: 'detach'},
];

/** Op marks as [name id], allocations as bytes. */
function stepOf(entries: readonly (readonly [number] | number)[]) {
  const records = {
    kind: entries.map((entry) =>
      typeof entry === 'number' ? RecordKind.ALLOC : RecordKind.OP_BEGIN,
    ),
    name: entries.map((entry) => (typeof entry === 'number' ? 0 : entry[0])),
    bytes: entries.map((entry) => BigInt(typeof entry === 'number' ? entry : 0)),
    extra: entries.map((entry) => (typeof entry === 'number' && entry < 0 ? 1n : 0n)),
  };
  return tracedStep([
    create(StepPartSchema, {step: 4n, endNs: 9n, baselineBytes: 100n}),
    create(StepPartSchema, {names: NAMES, records}),
  ]);
}

test('a traced step is put on the places of its ops, bookkeeping counted with the op before', () => {
  const step = stepOf([[1], 10, [5], 4, -4, [2], 20, -10, [3], 30, [4], 40]);

  const {curve, why} = placedStep(step, baseExecs(4), (op) => graph.ops[op]!.name);

  expect(why).toBe('');
  expect(step.step).toBe(4);
  expect([...curve!.ops]).toEqual([0, 1, 2, 3]);
  expect([...curve!.bytes]).toEqual([114, 130, 150, 190]);
});

test('a traced step without marks, or of another graph, says why it cannot be placed', () => {
  const nameOf = (op: number): string => graph.ops[op]!.name;

  expect(placedStep(stepOf([10, -10]), baseExecs(4), nameOf).why).toMatch(/no marks of its ops/);
  expect(placedStep(stepOf([[5], [2], [5]]), baseExecs(4), nameOf).why).toMatch(
    /not that of the step graph. Only 1 of its 4 ops/,
  );
});

test('ops of the graph that are not executed need not be in the trace', () => {
  const names = ['reprise.step_begin', 'reprise.external', 'a', 'b'];

  const {curve, why} = placedStep(stepOf([[2], 10, [3], 20]), baseExecs(4), (op) => names[op]!);

  expect(why).toBe('');
  expect([...curve!.ops]).toEqual([2, 3]);
});

test('the step without a plan frees after the last reader, or where the program lets go', () => {
  // Workspace of `a` counts while it runs alone.
  expect([...baseBytes(graph, FreePolicy.EAGER)]).toEqual([110, 137, 150, 190]);

  const held = create(StepGraphSchema, graph);
  held.storages[0]!.releaseOp = 3;
  expect([...baseBytes(held, FreePolicy.PROGRAM)]).toEqual([110, 137, 160, 200]);
  expect([...baseBytes(held, FreePolicy.EAGER)]).toEqual([110, 137, 150, 190]);
  delete held.storages[0]!.releaseOp;
});

test('categories add up to the total of every run; the rest is temporary', () => {
  const total = Float64Array.of(110, 137, 100);
  const known = create(StepGraphSchema, {
    staticBytes: 90n,
    staticParts: [
      {category: Category.PARAMETER, bytes: 30n},
      {category: Category.OPTIMIZER_STATE, bytes: 40n},
    ],
  });
  const held = [
    {category: Category.INPUT, bytes: 10, born: 0, last: 1},
    {category: Category.ACTIVATION, bytes: 20, born: 1, last: 1},
  ];

  const parts = bytesByCategory([...staticMemory(known), ...held], 10, total);

  const sums = [...total].map((_, i) =>
    [...parts.values()].reduce((sum, column) => sum + column[i]!, 0),
  );
  expect(sums).toEqual([110, 137, 100]);
  expect([...parts.get(Category.TEMPORARY)!.slice(0, 3)]).toEqual([0, 7, 0]);
  expect([...parts.get(Category.OPTIMIZER_STATE)!.slice(0, 3)]).toEqual([40, 40, 40]);
  // What nobody names of the static memory, and the reserve.
  expect([...parts.get(Category.UNKNOWN)!.slice(0, 3)]).toEqual([30, 30, 30]);
  // Without names it is never called parameters alone.
  const nameless = create(StepGraphSchema, {staticBytes: 90n});
  expect(staticMemory(nameless).map(({category}) => category)).toEqual([Category.STATIC]);
});

const plan = create(PlanSchema, {
  feasible: true,
  planId: 'p',
  budgetBytes: 185n,
  peakBytes: 180n,
  basePeakBytes: 190n,
  freePolicy: FreePolicy.EAGER,
  schedule: [0n, 1n, 2n, -1n - 1n, 0n, 1n, 3n],
  predicted: {startNs: [0n, 1n, 2n, 3n, 4n, 5n], bytes: [110n, 137n, 150n, 140n, 167n, 180n]},
});

const source: OpsSource = {
  graph,
  plan,
  explanation: create(ExplanationSchema, {plan}),
  whatIf: undefined,
  whatIfExplanation: undefined,
  // It runs load and a again, and has bookkeeping that the graph leaves out.
  measured: stepOf([[1], 10, [2], 20, [3], 30, -20, [1], [5], [2], 20, -10, [4], 31]),
  measuredBase: stepOf([[1], 10, [2], 20, -10, [3], 30, [4], 40]),
};

const shown = (change: Partial<OpsShown> = {}): OpsShown => ({
  axis: flatAxis(4),
  window: undefined,
  columns: 4,
  ...change,
});

test('a budget that is not planned yet is drawn from the nearest known plan, cut at its peak', () => {
  const preview = {budgetBytes: 185, peakBytes: 150, overhead: 0.1, plan: undefined, text: ''};

  const data = opsView(opsCurves(source), source, shown({preview}));

  // Of the step as predicted without a plan, what is over 150 is cut off.
  expect([...data.preview!.max]).toEqual([110, 137, 150, 150]);
  expect(data.previewBytes).toBe(150);
  expect(data.tooltipAt(3)!.rows).toContainEqual(['what if, interpolated', '150 B']);
});

test('a job that ended is marked at its op, also where the optimizer is folded', () => {
  const [forward, backward, optimizer] = [Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER];
  const axis = foldedAxis([forward, backward, optimizer, optimizer])!;

  const data = opsView(
    opsCurves(source),
    source,
    shown({axis, end: {op: 3, bytes: 7, name: 'killed here'}}),
  );

  expect(data.ends).toEqual([{op: 3, bytes: 7, name: 'killed here', at: axis.at(3)}]);
  const after = {op: undefined, bytes: 7, name: 'killed, with this much alive'};
  const [end] = opsView(opsCurves(source), source, shown({axis, end: after})).ends;
  expect(end!.at).toBe(axis.length);
  // Its last column is of the last ops, and the tooltip says so.
  expect(axis.at(3)).toBeLessThan(2.2);
  expect(data.tooltipAt(3)!.title).toMatch(/^op 3/);
});

test('a tooltip speaks of one op: every value in it is of that op', () => {
  const curves = opsCurves(source);
  const data = opsView(curves, source, shown());

  const backward = data.tooltipAt(3)!;
  expect(backward.title).toBe("op 3: b'");
  expect(backward.rows).toEqual([
    ['measured', '181 B'],
    ['predicted', '180 B'],
    ['no plan, predicted', '190 B'],
    ['no plan, measured', '190 B'],
    ['phase', 'backward'],
  ]);

  // Between op 2 and op 3 the plan runs `a` again; without a plan nothing does.
  const again = opsView(curves, source, shown({window: {from: 2.67, to: 3}})).tooltipAt(0)!;
  expect(again.title).toBe('op 1: a');
  expect(again.rows).toEqual([
    ['measured', '160 B'],
    ['predicted', '167 B'],
    ['phase', 'forward'],
    ['run again', 'before op 3'],
  ]);
});

test('every curve has its peak at the op that has it', () => {
  const data = opsView(opsCurves(source), source, shown());

  expect(data.peaks).toEqual([
    {of: 'predicted', at: 3, bytes: 180},
    {of: 'measured', at: 3, bytes: 181},
  ]);
  expect(data.sections).toEqual([
    {at: 0, name: 'forward', folded: false},
    {at: 3, name: 'backward', folded: false},
  ]);
  expect([...data.measuredBase!.max]).toEqual([110, 130, 150, 190]);
});

test('a step that cannot be placed is left out, and the picture says so', () => {
  const curves = opsCurves({...source, measured: stepOf([10])});

  expect(curves.curves.measured).toBeUndefined();
  expect(curves.why).toMatch(/no marks/);
});
