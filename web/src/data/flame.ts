// SPDX-License-Identifier: Apache-2.0

/**
 * Who owns the bytes of an instant, as a tree. Every piece hangs under the modules, or the callers,
 * that hold it, and ends in what it is:
 *
 *   top down   all > blocks > 0 > attention > aten._softmax.default
 *   inverted   all > aten._softmax.default > attention > 0 > blocks
 *
 * Either way the root has the bytes of all pieces, and every parent those of its children.
 */
import {CATEGORIES, categoryStyle, type CategoryStyle} from '../format/categories';
import {formatBytes, formatPercent, num} from '../format/units';
import {Category} from '../gen/reprise/v1/graph_pb';
import type {StorageExplanation} from '../gen/reprise/v1/planner_pb';
import type {LiveMemory} from '../gen/reprise/v1/query_pb';

export interface Piece {
  readonly bytes: number;
  readonly category: Category;
  /** The outermost module or caller first; then what it is, by name or by operator. */
  readonly path: readonly string[];
}

/** "/home/me/" of "/home/me/model.py:12 forward"; a function's name may hold anything. */
const FOLDER = /^.*\/(?=[^/]*:\d+ )/;
/** PyTorch's own frames around the forward of every module. */
const CALLS = /\/torch\/nn\/modules\/module\.py:\d+ _(wrapped_)?call_impl$/;

const sum = (some: readonly {readonly bytes: number}[]): number =>
  some.reduce((total, {bytes}) => total + bytes, 0);

/** What is alive, by owner and, as far as it is listed one by one, by stack. */
export function ownerPieces(memory: LiveMemory): Piece[] {
  const listed = memory.allocations
    .filter(({owner}) => owner !== '')
    .map(({owner, bytes, category, stack}) => {
      const frames = stack.filter((frame) => !CALLS.test(frame));
      const short = frames.map((frame) => frame.replace(FOLDER, ''));
      // Frames inside of the one that owns it are those of the framework.
      const callers = short.slice(short.indexOf(owner) + 1).reverse();
      return {owner, bytes: num(bytes), category, path: [...callers, owner]};
    });
  const left = new Map(memory.owners.map(({owner, bytes}) => [owner, num(bytes)]));
  let smaller = num(memory.foldedOwnersBytes);
  for (const {owner, bytes} of listed) {
    const known = left.get(owner);
    if (known === undefined) smaller -= bytes;
    else left.set(owner, known - bytes);
  }
  const rest = (bytes: number, category: Category, owner: string): Piece => {
    return {bytes, category, path: ['not listed one by one', owner]};
  };
  const pieces = [
    ...listed,
    ...memory.owners
      .filter(({owner}) => owner !== '')
      .map(({owner, category}) => rest(left.get(owner)!, category, owner)),
    ...nobodys(memory),
  ];
  // Most of what nothing tells is of the category that misses most.
  const missing = memory.categories.map(({category, bytes}) => {
    const known = pieces.filter((one) => one.category === category);
    return {category, bytes: num(bytes) - sum(known)};
  });
  const most = missing.sort((a, b) => b.bytes - a.bytes)[0]?.category ?? Category.UNKNOWN;
  return [...pieces, rest(smaller, most, 'smaller owners')];
}

/** What neither a record nor a stack names an owner of. */
function nobodys(memory: LiveMemory): Piece[] {
  const some = memory.owners.filter(({owner}) => owner === '');
  return some.map(({bytes, category}) => {
    const before = `${categoryStyle(category).name}, there before the step`;
    const name = category === Category.UNKNOWN ? 'not known' : before;
    return {bytes: num(bytes), category, path: [name]};
  });
}

/** What is alive at the peak, by the modules of the captured step; undefined: it names none. */
export function modulePieces(
  memory: LiveMemory,
  storages: readonly StorageExplanation[],
  planned: boolean,
): Piece[] | undefined {
  const alive = aliveAt(storages, planned);
  if (alive.every(({module}) => module === '')) return undefined;
  const pieces = alive.map(pieceOf);
  // A batch, or state that a plan may move, is a storage of the step that was there before it.
  const before = alive.filter((one) => one.madeBy === 0).map(pieceOf);
  for (const {bytes, category, path} of nobodys(memory)) {
    const told = sum(before.filter((one) => one.category === category));
    pieces.push({bytes: Math.max(0, bytes - told), category, path});
  }
  const bytes = num(memory.liveBytes) - sum(pieces);
  return [...pieces, {bytes, category: Category.UNKNOWN, path: ['not in the step']}];
}

const aliveAt = (storages: readonly StorageExplanation[], planned: boolean): StorageExplanation[] =>
  storages.filter((one) => (planned ? one.aliveAtPeak : one.aliveAtBasePeak));

function pieceOf({module, name, bytes, category}: StorageExplanation): Piece {
  const what = module && name.startsWith(`${module}.`) ? name.slice(module.length + 1) : name;
  // A dot in parentheses is no level: "AdamW(lr=0.1)".
  const modules = module.match(/(?:\([^)]*\)|[^.])+/g) ?? [];
  return {bytes: num(bytes), category, path: [...modules, what]};
}

const MOST_OWNERS = 3;

/** "layers.1 24.0 MiB, layers.2 24.0 MiB, head 8.0 MiB": who has most at the peak of the step. */
export function ownersAtPeak(storages: readonly StorageExplanation[], planned: boolean): string {
  let node = flameTree(aliveAt(storages, planned).map(pieceOf), false);
  // What holds nearly everything tells nothing.
  while (node.children[0] && node.children[0].bytes > 0.8 * node.bytes) node = node.children[0];
  const some = node.children.length > 0 || node.bytes === 0 ? node.children : [node];
  const texts = some
    .slice(0, MOST_OWNERS)
    .map(({path, bytes}) => `${path.slice(1).join('.')} ${formatBytes(bytes)}`);
  const more = some.length - texts.length;
  return [...texts, ...(more > 0 ? [`${more} more`] : [])].join(', ');
}

interface Part {
  readonly style: CategoryStyle;
  readonly bytes: number;
}

function partsOf(some: readonly Part[]): Part[] {
  return CATEGORIES.map((style) => {
    return {style, bytes: sum(some.filter((part) => part.style === style))};
  }).filter(({bytes}) => bytes > 0);
}

export interface Flame {
  /** Begins with the key of its parent. */
  readonly key: string;
  /** From the root to it. */
  readonly path: readonly string[];
  readonly bytes: number;
  /** By category, in the order of the legend. */
  readonly parts: readonly Part[];
  /** The largest first. */
  readonly children: readonly Flame[];
}

export function flameTree(pieces: readonly Piece[], inverted: boolean): Flame {
  const some = pieces.filter(({bytes}) => bytes > 0);
  const turned = some.map((one) => ({...one, path: [...one.path].reverse()}));
  return grown(inverted ? turned : some, '', ['all']);
}

function grown(pieces: readonly Piece[], key: string, path: readonly string[]): Flame {
  const depth = path.length - 1;
  // Where all end there is nothing below; where only some do, they are a child too.
  const on = pieces.some((one) => one.path.length > depth) ? pieces : [];
  const below = new Map<string, Piece[]>();
  for (const piece of on) {
    const name = depth < piece.path.length ? piece.path[depth] || 'no name' : 'itself';
    const group = below.get(name);
    if (group) group.push(piece);
    else below.set(name, [piece]);
  }
  return {
    ...{key, path, bytes: sum(pieces)},
    parts: partsOf(pieces.map(({category, bytes}) => ({style: categoryStyle(category), bytes}))),
    children: [...below]
      .map(([name, some]) => grown(some, key + JSON.stringify(name), [...path, name]))
      .sort((a, b) => b.bytes - a.bytes || (a.key < b.key ? -1 : 1)),
  };
}

/** From the root to the one with this key, or as far as there is one. */
export function lineTo(root: Flame, key: string): Flame[] {
  const next = root.children.find((child) => key.startsWith(child.key));
  return next ? [root, ...lineTo(next, key)] : [root];
}

/**
 * Shares of the width, a row a level: the last of `line` and what holds it over all of it, what it
 * holds below, each followed by its own. Children narrower than `least` are one box, "other".
 */
export function flameBoxes(line: readonly Flame[], least: number) {
  const boxes = line.slice(0, -1).map((node) => ({node, left: 0, width: 1}));
  const spread = (node: Flame, left: number, width: number): void => {
    boxes.push({node, left, width});
    const {key, path, children} = node;
    const wide = ({bytes}: Flame): number => (width * bytes) / node.bytes;
    const seen = children.filter((child) => wide(child) >= least);
    let x = left;
    for (const child of seen) {
      spread(child, x, wide(child));
      x += wide(child);
    }
    if (seen.length === children.length) return;
    const rest = children.slice(seen.length);
    const other = {
      ...{key: `${key} `, path: [...path, 'other'], bytes: sum(rest)},
      ...{parts: partsOf(rest.flatMap(({parts}) => parts)), children: []},
    };
    boxes.push({node: other, left: x, width: left + width - x});
  };
  spread(line.at(-1)!, 0, 1);
  return boxes;
}

/** "all › blocks › 0: 8.0 MiB, 4.5 %, activations". */
export function flameText({path, bytes, parts}: Flame, whole: number): string {
  const facts = [formatBytes(bytes), formatPercent(bytes / whole)];
  return `${path.join(' › ')}: ${[...facts, ...parts.map(({style}) => style.name)].join(', ')}`;
}
