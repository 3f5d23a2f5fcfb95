// SPDX-License-Identifier: Apache-2.0

/**
 * What a plan changes, by module: a tree of module paths, each with what is
 * recomputed below it and what is kept for the backward pass.
 */
import type {StorageExplanation} from '../gen/reprise/v1/planner_pb';
import {Decision} from '../gen/reprise/v1/plan_pb';
import {num} from '../format/number';

export interface Totals {
  readonly savedCount: number;
  readonly savedBytes: number;
  readonly recomputedCount: number;
  readonly recomputedBytes: number;
  /** Extra time of all repetitions. */
  readonly recomputeNs: number;
}

export interface ModuleNode extends Totals {
  /** Full path, "layers.3.attn"; "" is the whole step. */
  readonly path: string;
  readonly name: string;
  readonly children: readonly ModuleNode[];
}

interface Draft extends Record<keyof Totals, number> {
  path: string;
  name: string;
  children: Map<string, Draft>;
}

/** `saved` are the ids of storages kept across the end of the forward pass. */
export function changesByModule(
  storages: readonly StorageExplanation[],
  saved: readonly number[],
): ModuleNode {
  const kept = new Set(saved);
  const root = draft('', '');
  const counted = new Set<number>();
  for (const storage of storages) {
    const recomputed = storage.decision === Decision.RECOMPUTE;
    if (!recomputed && !kept.has(storage.storage)) continue;
    // An op that makes several storages runs again once for all of them.
    const ns = recomputed && !counted.has(storage.madeBy) ? repeatedNs(storage) : 0;
    if (recomputed) counted.add(storage.madeBy);
    let node = root;
    add(node, storage, recomputed, ns);
    for (const part of storage.module.split('.').filter((text) => text !== '')) {
      let child = node.children.get(part);
      if (!child) {
        child = draft(node.path === '' ? part : `${node.path}.${part}`, part);
        node.children.set(part, child);
      }
      node = child;
      add(node, storage, recomputed, ns);
    }
  }
  return finished(root);
}

function draft(path: string, name: string): Draft {
  return {
    path,
    name,
    children: new Map(),
    savedCount: 0,
    savedBytes: 0,
    recomputedCount: 0,
    recomputedBytes: 0,
    recomputeNs: 0,
  };
}

function repeatedNs(storage: StorageExplanation): number {
  return num(storage.recomputeNs) * Math.max(1, storage.timesRecomputed);
}

function add(node: Draft, storage: StorageExplanation, recomputed: boolean, ns: number): void {
  const bytes = num(storage.bytes);
  if (recomputed) {
    node.recomputedCount += 1;
    node.recomputedBytes += bytes;
    node.recomputeNs += ns;
  } else {
    node.savedCount += 1;
    node.savedBytes += bytes;
  }
}

/** Children in natural order ("layers.2" before "layers.10"); lone ones merge. */
function finished(node: Draft): ModuleNode {
  const children = [...node.children.values()].map(finished);
  children.sort((a, b) => a.name.localeCompare(b.name, 'en', {numeric: true}));
  const {children: _, ...totals} = node;
  const only = children.length === 1 ? children[0] : undefined;
  // "model -> layers" with nothing beside it reads as one line, "model.layers".
  if (only && node.path !== '' && sameTotals(node, only)) {
    return {...only, name: `${node.name}.${only.name}`};
  }
  return {...totals, children};
}

function sameTotals(a: Totals, b: Totals): boolean {
  return a.savedCount === b.savedCount && a.recomputedCount === b.recomputedCount;
}
