// SPDX-License-Identifier: Apache-2.0

/**
 * What a plan changes, by module: a tree of module paths, each with what is
 * recomputed below it and what is kept for the backward pass.
 */
import type {StorageExplanation} from '../gen/reprise/v1/planner_pb';
import {Decision} from '../gen/reprise/v1/plan_pb';
import {num} from '../format/units';

export interface ModuleNode {
  readonly savedCount: number;
  readonly savedBytes: number;
  readonly recomputedCount: number;
  readonly recomputedBytes: number;
  /** Extra time of all repetitions. */
  readonly recomputeNs: number;
  /** Full path, "layers.3.attn"; "" is the whole step. */
  readonly path: string;
  readonly name: string;
  readonly children: readonly ModuleNode[];
}

/** A storage that a plan decides on. */
interface Decided {
  readonly path: readonly string[];
  readonly bytes: number;
  readonly recomputed: boolean;
  readonly ns: number;
}

/** `saved` are the ids of storages kept across the end of the forward pass. */
export function changesByModule(
  storages: readonly StorageExplanation[],
  saved: readonly number[],
): ModuleNode {
  const kept = new Set(saved);
  const counted = new Set<number>();
  const decided: Decided[] = [];
  for (const {storage, decision, module, bytes, madeBy, ...one} of storages) {
    const recomputed = decision === Decision.RECOMPUTE;
    if (!recomputed && !kept.has(storage)) continue;
    // An op that makes several storages runs again once for all of them.
    const times = recomputed && !counted.has(madeBy) ? Math.max(1, one.timesRecomputed) : 0;
    if (recomputed) counted.add(madeBy);
    const path = module.split('.').filter((text) => text !== '');
    decided.push({path, bytes: num(bytes), recomputed, ns: times * num(one.recomputeNs)});
  }
  return nodeOf([], decided);
}

/** How many storages are copied to host memory, and their bytes. */
export function onHost(storages: readonly StorageExplanation[]): readonly [number, number] {
  const sent = storages.filter(({decision}) => decision === Decision.OFFLOAD);
  return [sent.length, sent.reduce((bytes, one) => bytes + num(one.bytes), 0)];
}

/** Children in natural order ("layers.2" before "layers.10"); lone ones merge. */
function nodeOf(path: readonly string[], decided: readonly Decided[]): ModuleNode {
  const below = new Map<string, Decided[]>();
  const node = {
    ...{savedCount: 0, savedBytes: 0, recomputedCount: 0, recomputedBytes: 0, recomputeNs: 0},
    path: path.join('.'),
    name: path.at(-1) ?? '',
  };
  for (const one of decided) {
    node[one.recomputed ? 'recomputedCount' : 'savedCount'] += 1;
    node[one.recomputed ? 'recomputedBytes' : 'savedBytes'] += one.bytes;
    node.recomputeNs += one.ns;
    const part = one.path[path.length];
    if (part === undefined) continue;
    const inside = below.get(part);
    if (inside) inside.push(one);
    else below.set(part, [one]);
  }
  const children = [...below].map(([part, inside]) => nodeOf([...path, part], inside));
  children.sort((a, b) => a.name.localeCompare(b.name, 'en', {numeric: true}));
  const only = children.length === 1 ? children[0] : undefined;
  // "model -> layers" with nothing beside it reads as one line, "model.layers".
  const same =
    only?.savedCount === node.savedCount && only.recomputedCount === node.recomputedCount;
  if (only && path.length > 0 && same) return {...only, name: `${node.name}.${only.name}`};
  return {...node, children};
}
