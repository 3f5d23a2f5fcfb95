// SPDX-License-Identifier: Apache-2.0

/**
 * A step graph small enough to compute by hand: sixteen layers, each with an
 * activation of 8 MiB that its backward op reads again, but for layer 9, whose
 * activation is 24 MiB.
 *
 *   step_begin -> fwd 0 -> ... -> fwd 15 -> loss -> bwd 15 -> ... -> bwd 0 -> update
 *
 * Its largest working set is that of the backward op of layer 9: two
 * activations (24 + 8), two gradients of them (24 + 8) and the weights'
 * gradients, over 40 MiB of static memory.
 */
import {create} from '@bufbuild/protobuf';
import {
  Category,
  OpKind,
  OpSchema,
  Phase,
  StepGraphSchema,
  StorageSchema,
  type Op,
  type StepGraph,
  type Storage,
} from '../../web/src/gen/reprise/v1/graph_pb';

export const MIB = 2 ** 20;
const LAYERS = 16;
const WIDE = 9;
const MS = 1_000_000;

export function layeredGraph(name: string): StepGraph {
  const storages: Storage[] = [];
  const ops: Op[] = [];

  function storage(text: string, mib: number, category: Category, saved = false): number {
    const id = storages.length;
    storages.push(
      create(StorageSchema, {
        id,
        name: text,
        bytes: BigInt(mib * MIB),
        category,
        savedForBackward: saved,
      }),
    );
    return id;
  }

  function op(
    text: string,
    phase: Phase,
    kind: OpKind,
    ms: number,
    module: string,
    reads: number[],
    writes: number[],
  ): void {
    const timeNs = BigInt(ms * MS);
    ops.push(
      create(OpSchema, {
        id: ops.length,
        name: text,
        phase,
        kind,
        timeNs,
        module,
        reads,
        writes,
      }),
    );
  }

  const mibOf = (layer: number): number => (layer === WIDE ? 24 : 8);
  const x = storage('input batch', 4, Category.INPUT);
  op('reprise.step_begin', Phase.FORWARD, OpKind.ONCE, 1, '', [], [x]);

  const acts: number[] = [];
  for (let i = 0; i < LAYERS; i++) {
    acts.push(storage(`layers.${i}: activation`, mibOf(i), Category.ACTIVATION, true));
    const before = i === 0 ? x : acts[i - 1]!;
    op('aten.gelu.default', Phase.FORWARD, OpKind.PURE, 10, `layers.${i}`, [before], [acts[i]!]);
  }

  const loss = storage('loss', 1, Category.ACTIVATION);
  let gradient = storage(`layers.${LAYERS - 1}: gradient`, 8, Category.TEMPORARY);
  op(
    'aten.mse_loss.default',
    Phase.FORWARD,
    OpKind.ONCE,
    1,
    '',
    [acts[LAYERS - 1]!],
    [loss, gradient],
  );

  const weights: number[] = [];
  for (let i = LAYERS - 1; i >= 0; i--) {
    const before = i === 0 ? x : acts[i - 1]!;
    const writes = [storage(`layers.${i}: weight gradient`, 1, Category.GRADIENT)];
    weights.push(writes[0]!);
    const reads = [gradient, acts[i]!, before];
    if (i > 0) {
      gradient = storage(`layers.${i - 1}: gradient`, mibOf(i - 1), Category.TEMPORARY);
      writes.push(gradient);
    }
    op('aten.gelu_backward.default', Phase.BACKWARD, OpKind.PURE, 20, `layers.${i}`, reads, writes);
  }
  op('aten._fused_adam.default', Phase.OPTIMIZER, OpKind.ONCE, 5, '', weights, []);

  return create(StepGraphSchema, {
    name,
    flavour: 'eager-dispatch',
    staticBytes: BigInt(40 * MIB),
    storages,
    ops,
    required: [loss, ...weights],
  });
}
