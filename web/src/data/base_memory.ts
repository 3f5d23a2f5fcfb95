// SPDX-License-Identifier: Apache-2.0

/** What is alive during each op of a step graph, and of what category. */
import {Category, type StepGraph} from '../gen/reprise/v1/graph_pb';
import {FreePolicy} from '../gen/reprise/v1/plan_pb';
import type {StorageExplanation} from '../gen/reprise/v1/planner_pb';
import {num} from '../format/units';

/** Bytes that are there from one run to another, both included. */
export interface Held {
  readonly category: Category;
  readonly bytes: number;
  readonly born: number;
  readonly last: number;
}

export interface HeldStorage extends Held {
  readonly storage: number;
}

/** What a plan holds, by its runs. */
export function heldByPlan(storages: readonly StorageExplanation[]): HeldStorage[] {
  return storages.flatMap(({storage, category, bytes, lives}) =>
    lives.map(({born, last}) => ({storage, category, bytes: num(bytes), born, last})),
  );
}

/** What the step without a plan holds, by its ops: from the one that makes it. O(ops + reads). */
export function heldByStep(graph: StepGraph, policy: FreePolicy): HeldStorage[] {
  const born = new Map<number, number>();
  const last = new Map<number, number>();
  graph.ops.forEach((op, i) => {
    for (const storage of op.writes) {
      born.set(storage, i);
      last.set(storage, i);
    }
    for (const storage of op.reads) last.set(storage, i);
  });
  const end = graph.ops.length - 1;
  for (const storage of graph.required) last.set(storage, end);
  if (policy === FreePolicy.PROGRAM) {
    for (const {id, releaseOp} of graph.storages) {
      if (releaseOp !== undefined)
        last.set(id, Math.max(last.get(id) ?? 0, Math.min(releaseOp, end)));
    }
  }
  return graph.storages
    .filter(({id}) => born.has(id))
    .map(({id: storage, category, bytes}) => ({
      ...{storage, category, bytes: num(bytes)},
      ...{born: born.get(storage)!, last: last.get(storage)!},
    }));
}

/** Bytes alive while each op of the step without a plan runs. */
export function baseBytes(graph: StepGraph, policy: FreePolicy): Float64Array {
  const change = new Float64Array(graph.ops.length + 1);
  for (const {bytes, born, last} of heldByStep(graph, policy)) {
    change[born]! += bytes;
    change[last + 1]! -= bytes;
  }
  let live = num(graph.staticBytes);
  return Float64Array.from(graph.ops, (op, i) => {
    live += change[i]!;
    return live + num(op.workspaceBytes);
  });
}

/** Static memory by category: what its parts leave is unknown. */
export function staticMemory(graph: StepGraph): Held[] {
  const parts: Held[] = [];
  let rest = num(graph.staticBytes);
  const take = (category: Category, wanted: number): void => {
    const bytes = Math.min(wanted, rest);
    if (bytes > 0) parts.push({category, bytes, born: 0, last: Infinity});
    rest -= bytes;
  };
  for (const {category, bytes} of graph.staticParts) take(category, num(bytes));
  take(graph.staticParts.length > 0 ? Category.UNKNOWN : Category.STATIC, rest);
  return parts;
}

/**
 * The bytes of every run by category. `total` holds the bytes of each run; what
 * nothing accounts for (workspace) is temporary. O(held + runs).
 */
export function bytesByCategory(
  held: readonly Held[],
  reserveBytes: number,
  total: Float64Array,
): Map<Category, Float64Array> {
  const parts = new Map<Category, Float64Array>();
  const part = (category: Category): Float64Array => {
    const known = parts.get(category) ?? new Float64Array(total.length + 1);
    parts.set(category, known);
    return known;
  };
  const add = (category: Category, bytes: number, born: number, last: number): void => {
    part(category)[born]! += bytes;
    part(category)[Math.min(last, total.length - 1) + 1]! -= bytes;
  };
  if (reserveBytes > 0) add(Category.UNKNOWN, reserveBytes, 0, total.length);
  for (const {category, bytes, born, last} of held) {
    if (born >= total.length) continue;
    add(category === Category.UNSPECIFIED ? Category.UNKNOWN : category, bytes, born, last);
  }
  const known = new Float64Array(total.length);
  for (const column of parts.values()) {
    for (let i = 0; i < total.length; i++) {
      if (i > 0) column[i]! += column[i - 1]!;
      known[i]! += column[i]!;
    }
  }
  const rest = Float64Array.from(total, (bytes, i) => Math.max(0, bytes - known[i]!));
  if (rest.some((bytes) => bytes > 0)) {
    const temporary = part(Category.TEMPORARY);
    rest.forEach((bytes, i) => (temporary[i]! += bytes));
  }
  return parts;
}
