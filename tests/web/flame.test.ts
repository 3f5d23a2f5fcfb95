// SPDX-License-Identifier: Apache-2.0
import {create} from '@bufbuild/protobuf';
import {describe, expect, test} from 'vitest';
import {
  flameBoxes,
  flameText,
  flameTree,
  lineTo,
  modulePieces,
  ownerPieces,
  ownersAtPeak,
  type Flame,
  type Piece,
} from '../../web/src/data/flame';
import {Category} from '../../web/src/gen/reprise/v1/graph_pb';
import {
  StorageExplanationSchema,
  type StorageExplanation,
} from '../../web/src/gen/reprise/v1/planner_pb';
import {LiveMemorySchema} from '../../web/src/gen/reprise/v1/query_pb';

const {ACTIVATION, INPUT, OPTIMIZER_STATE, PARAMETER, TEMPORARY, UNKNOWN} = Category;

function piece(bytes: number, ...path: string[]): Piece {
  return {bytes, category: ACTIVATION, path};
}

/** "blocks 60", and what is below it further in. */
function drawn(node: Flame): string[] {
  const line = `${'  '.repeat(node.path.length - 1)}${node.path.at(-1)} ${node.bytes}`;
  return [line, ...node.children.flatMap(drawn)];
}

function everyNode(node: Flame): Flame[] {
  return [node, ...node.children.flatMap(everyNode)];
}

const CASES: Record<string, Piece[]> = {
  'a module with modules and storages of its own': [
    piece(30, 'blocks', '0', 'aten.add'),
    piece(10, 'blocks', '0', 'mlp', 'aten.add'),
    piece(20, 'blocks', '1', 'aten.add'),
    piece(5, 'aten.add'),
  ],
  'a storage that is called as a module is': [piece(3, 'mlp'), piece(4, 'mlp', 'aten.mm')],
  'a module that is called as what ends': [piece(1, 'a', 'itself', 'b'), piece(2, 'a')],
  'empty names': [piece(1, '', ''), piece(2, ''), piece(4, 'a', '')],
  'names with quotes, lines and spaces': [
    piece(1, 'a"', '"b'),
    piece(2, 'a', '""b'),
    piece(4, 'a\n', 'b '),
    piece(8, 'a', 'other'),
  ],
  'the words of the language': [piece(1, '__proto__', 'constructor'), piece(2, 'toString')],
  'nothing, and less than nothing': [piece(0, 'a'), piece(-5, 'b')],
};

describe.each(Object.entries(CASES))('%s', (_, pieces) => {
  const total = pieces.reduce((sum, {bytes}) => sum + Math.max(0, bytes), 0);

  test.each([false, true])('adds up at every level, inverted %s', (inverted) => {
    const root = flameTree(pieces, inverted);
    const nodes = everyNode(root);

    expect(root.bytes).toBe(total);
    for (const {children, bytes, parts} of nodes) {
      if (children.length > 0) {
        expect(children.reduce((sum, child) => sum + child.bytes, 0)).toBe(bytes);
      }
      expect(parts.reduce((sum, part) => sum + part.bytes, 0)).toBe(bytes);
    }
    // Svelte refuses two of a key.
    expect(new Set(nodes.map(({key}) => key)).size).toBe(nodes.length);
    for (const node of nodes) expect(lineTo(root, node.key).at(-1)).toBe(node);
  });
});

test('both directions have the same leaves the other way round', () => {
  const pieces = CASES['a module with modules and storages of its own']!;

  expect(drawn(flameTree(pieces, false))).toEqual([
    'all 65',
    '  blocks 60',
    '    0 40',
    '      aten.add 30',
    '      mlp 10',
    '        aten.add 10',
    '    1 20',
    '      aten.add 20',
    '  aten.add 5',
  ]);
  expect(drawn(flameTree(pieces, true))).toEqual([
    'all 65',
    '  aten.add 65',
    '    0 30',
    '      blocks 30',
    '    1 20',
    '      blocks 20',
    '    mlp 10',
    '      0 10',
    '        blocks 10',
    '    itself 5',
  ]);
});

test('a box says its path, bytes, share and categories; a hostile name is text like any other', () => {
  const name = '<img src=x onerror=alert(1)>';
  const root = flameTree(
    [piece(512, 'blocks', name), {bytes: 1536, category: PARAMETER, path: ['blocks', 'w']}],
    false,
  );

  expect(flameText(root, root.bytes)).toBe('all: 2.0 KiB, 100.0 %, parameters, activations');
  expect(flameText(root.children[0]!.children[1]!, root.bytes)).toBe(
    `all › blocks › ${name}: 512 B, 25.0 %, activations`,
  );
});

test('boxes lie beside each other and within what holds them, and the narrow ones are one', () => {
  // 60 + 32 + 4 * 2 = 100: each of the four has less than a twentieth.
  const small = ['b', 'c', 'd', 'e'].map((name) => piece(2, name));
  const root = flameTree([piece(60, 'a', 'x'), piece(32, 'a', 'y'), ...small], false);

  const boxes = flameBoxes([root], 0.05);

  expect(boxes.map(({node, left, width}) => [node.path.join(' '), left, width])).toEqual([
    ['all', 0, 1],
    ['all a', 0, 0.92],
    ['all a x', 0, 0.6],
    ['all a y', 0.6, 0.32],
    ['all other', 0.92, expect.closeTo(0.08)],
  ]);
  const other = boxes.at(-1)!.node;
  expect(flameText(other, 100)).toBe('all › other: 8 B, 8.0 %, activations');
});

test('what is zoomed into has all of the width, and so has what holds it', () => {
  const root = flameTree([piece(60, 'a', 'x'), piece(40, 'b')], false);
  const key = root.children[0]!.children[0]!.key;

  const boxes = flameBoxes(lineTo(root, key), 0.01);

  expect(boxes.map(({node, width}) => [node.path.join(' '), width])).toEqual([
    ['all', 1],
    ['all a', 1],
    ['all a x', 1],
  ]);
  // It is gone at another instant: what held it is shown.
  const later = flameTree([piece(60, 'a', 'z'), piece(40, 'b')], false);
  expect(lineTo(later, key).at(-1)!.path).toEqual(['all', 'a']);
});

/** Bytes by path, "blocks/0/aten.mm": 8; pieces of one path are one box. */
function byPath(pieces: readonly Piece[] | undefined): Record<string, number> {
  const some = pieces?.filter(({bytes}) => bytes !== 0) ?? [];
  const paths = [...new Set(some.map(({path}) => path.join('/')))];
  return Object.fromEntries(
    paths.map((path) => [
      path,
      some.reduce((all, one) => all + (one.path.join('/') === path ? one.bytes : 0), 0),
    ]),
  );
}

test('a captured step is told by module, with what was there before and what it does not name', () => {
  const memory = create(LiveMemorySchema, {
    liveBytes: 1060n,
    owners: [
      {owner: '', bytes: 60n, category: OPTIMIZER_STATE},
      {owner: 'aten.mm', bytes: 300n, category: TEMPORARY},
      {owner: '', bytes: 500n, category: PARAMETER},
      {owner: '', bytes: 40n, category: INPUT},
      {owner: '', bytes: 50n, category: UNKNOWN},
    ],
  });
  const storages = (
    [
      ['blocks.0', 'blocks.0.aten.mm.default', 200n, true, true],
      ['blocks.0', 'a name of its own', 100n, true, false],
      ['Adam(lr=0.1, b=(1.5,)).x', 'Adam(lr=0.1, b=(1.5,)).x.aten.sqrt', 50n, true, true],
      ['', 'aten.loss', 7n, true, true],
      ['', 'batch', 30n, true, true, INPUT],
      ['', 'optimizer state', 20n, true, true, OPTIMIZER_STATE],
      ['', 'optimizer state', 5n, true, true, OPTIMIZER_STATE],
      ['blocks.1', 'blocks.1.aten.mm.default', 900n, false, false],
    ] as const
  ).map(([module, name, bytes, aliveAtPeak, aliveAtBasePeak, category = ACTIVATION]) =>
    create(StorageExplanationSchema, {module, name, bytes, category, aliveAtPeak, aliveAtBasePeak}),
  );

  expect(byPath(modulePieces(memory, storages, true))).toEqual({
    'blocks/0/aten.mm.default': 200,
    'blocks/0/a name of its own': 100,
    'Adam(lr=0.1, b=(1.5,))/x/aten.sqrt': 50,
    'aten.loss': 7,
    batch: 30,
    'optimizer state': 25,
    'parameters, there before the step': 500,
    'optimizer state, there before the step': 35,
    // 40, of which the batch has a name.
    'inputs, there before the step': 10,
    'not known': 50,
    'not in the step': 53,
  });
  expect(byPath(modulePieces(memory, storages, false))['not in the step']).toBe(153);
  // Of a trace nothing names a module: its owners are told.
  expect(modulePieces(memory, [storages[3]!], true)).toBeUndefined();
});

test('who has most at the peak is told where the modules part, and of operators by name', () => {
  const of = (module: string, name: string, kib: number, aliveAtPeak = true): StorageExplanation =>
    create(StorageExplanationSchema, {module, name, bytes: BigInt(1024 * kib), aliveAtPeak});
  const blocks = [1, 2, 3, 4].map((i) => of(`net.blocks.${i}`, 'aten.mm', 10 * i));

  expect(ownersAtPeak([...blocks, of('net.head', 'aten.mm', 5)], true)).toBe(
    'net.blocks.4 40.0 KiB, net.blocks.3 30.0 KiB, net.blocks.2 20.0 KiB, 1 more',
  );
  expect(ownersAtPeak([of('', 'aten.mm', 3), of('', 'aten.exp', 2)], true)).toBe(
    'aten.mm 3.0 KiB, aten.exp 2.0 KiB',
  );
  expect(ownersAtPeak([of('net', 'aten.mm', 3, false)], true)).toBe('');
});

test('a recording is told by stack from the owner on, and all of each owner is there', () => {
  const torch = '/usr/lib/torch/nn';
  const stack = [
    `${torch}/functional.py:9 linear`,
    '/home/me/model.py:12 forward',
    `${torch}/modules/module.py:1784 _call_impl`,
    `${torch}/modules/module.py:1773 _wrapped_call_impl`,
    '/home/me/train.py:7 <lambda>/main',
  ];
  const memory = create(LiveMemorySchema, {
    liveBytes: 1000n,
    allocations: [
      {owner: 'model.py:12 forward', bytes: 400n, category: ACTIVATION, stack},
      {owner: 'rare.py:1 f', bytes: 20n, category: ACTIVATION},
      {owner: '', bytes: 30n},
    ],
    owners: [
      {owner: 'model.py:12 forward', bytes: 600n, category: ACTIVATION},
      {owner: 'aten::mm', bytes: 250n, category: ACTIVATION},
      {owner: '', bytes: 80n, category: UNKNOWN},
    ],
    foldedOwners: 2n,
    foldedOwnersBytes: 70n,
    categories: [
      {category: ACTIVATION, bytes: 870n},
      {category: TEMPORARY, bytes: 50n},
      {category: UNKNOWN, bytes: 80n},
    ],
  });

  const pieces = ownerPieces(memory);

  expect(byPath(pieces)).toEqual({
    'train.py:7 <lambda>/main/model.py:12 forward': 400,
    'rare.py:1 f': 20,
    'not listed one by one/model.py:12 forward': 200,
    'not listed one by one/aten::mm': 250,
    'not listed one by one/smaller owners': 50,
    'not known': 80,
  });
  // 870 of activations are known, and no temporary.
  expect(pieces.at(-1)!.category).toBe(TEMPORARY);
  const inverted = flameTree(pieces, true);
  expect(inverted.bytes).toBe(1000);
  // As the server sums them.
  expect(inverted.children.map(({path, bytes}) => [path.at(-1), bytes])).toEqual([
    ['model.py:12 forward', 600],
    ['aten::mm', 250],
    ['not known', 80],
    ['smaller owners', 50],
    ['rare.py:1 f', 20],
  ]);
});
