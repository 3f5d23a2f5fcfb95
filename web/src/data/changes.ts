// SPDX-License-Identifier: Apache-2.0

/**
 * What a plan changes, by module: a tree of module paths, each with what is
 * recomputed below it and what is kept for the backward pass. And what memory
 * costs under the plan, and whose clock the times of its ops are of.
 */
import type {Explanation, StorageExplanation} from '../gen/reprise/v1/planner_pb';
import {Decision} from '../gen/reprise/v1/plan_pb';
import {BYTE_UNITS, formatDuration, num} from '../format/units';

/** What a plan does with a storage. */
type Kind = 'saved' | 'host' | 'recomputed';

export interface Part {
  readonly count: number;
  readonly bytes: number;
}

export interface ModuleNode extends Readonly<Record<Kind, Part>> {
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
  readonly kind: Kind;
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
    const sent = decision === Decision.OFFLOAD;
    if (!recomputed && !sent && !kept.has(storage)) continue;
    // An op that makes several storages runs again once for all of them.
    const times = recomputed && !counted.has(madeBy) ? Math.max(1, one.timesRecomputed) : 0;
    if (recomputed) counted.add(madeBy);
    decided.push({
      path: module.split('.').filter((text) => text !== ''),
      bytes: num(bytes),
      kind: recomputed ? 'recomputed' : sent ? 'host' : 'saved',
      ns: times * num(one.recomputeNs),
    });
  }
  return nodeOf([], decided);
}

/** Children in natural order ("layers.2" before "layers.10"); lone ones merge. */
function nodeOf(path: readonly string[], decided: readonly Decided[]): ModuleNode {
  const below = new Map<string, Decided[]>();
  const node = {
    saved: {count: 0, bytes: 0},
    host: {count: 0, bytes: 0},
    recomputed: {count: 0, bytes: 0},
    recomputeNs: 0,
    path: path.join('.'),
    name: path.at(-1) ?? '',
  };
  for (const one of decided) {
    node[one.kind].count += 1;
    node[one.kind].bytes += one.bytes;
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
  const all = (of: ModuleNode): number => of.saved.count + of.host.count + of.recomputed.count;
  if (only && path.length > 0 && all(only) === decided.length)
    return {...only, name: `${node.name}.${only.name}`};
  return {...node, children};
}

/**
 * "one more MiB saves 2.3 ms"; empty where the budget costs nothing. The unit
 * is at most a tenth of the plan's peak without its static bytes: the price is
 * a slope, which holds near the budget only. Never more than all that the plan
 * recomputes. `reprise explain` says the same: formats/convert/explain_proto.h.
 */
export function priceText(explanation: Explanation | undefined): string {
  const plan = explanation?.plan;
  if (!explanation || !plan) return '';
  const dynamicBytes = num(plan.peakBytes - (explanation.workingSet?.staticBytes ?? 0n));
  const units = BYTE_UNITS.slice(1, 4);
  const fits = units.findLast(([, bytes]) => bytes <= dynamicBytes / 10);
  const [name, bytes] = fits ?? ['byte', 1];
  const mostNs = num(plan.timeNs - plan.baseTimeNs);
  const savedNs = Math.min(explanation.priceNsPerByte * bytes, mostNs);
  return savedNs >= 0.5 ? `one more ${name} saves ${formatDuration(Math.round(savedNs))}` : '';
}

/** Whose clock the times of the ops are of; empty where nobody asked for kernels. */
export function timingText(timing: string): string {
  if (timing === 'kernels') return 'An op takes as long as its kernels.';
  const [source, why] = timing.split(/: (.*)/s);
  return source === 'host' && why ? `Ops are timed by the host: ${why}.` : '';
}
