# SPDX-License-Identifier: Apache-2.0
"""Makes of a captured step the one that is planned: fuses the ops of one autograd node into one op
of the step graph, and takes out forwards that no backward was for.

A backward node unpacks all its saved tensors before its first op and holds them until it returns.
No executor could discard such a tensor between two ops of the node, so a plan must not. Fused into
one op, the node needs all of them at once, as it really does.

    node of addmm:   unpack input, weight | t, mm, t, mm, sum | returns

Of a step on fake tensors, a view that autograd makes once more after a write to it is a part of the
op that writes: of real tensors it makes none.

Storages that live and die inside the node are its workspace: the measured peak inside, minus what
was alive before, minus what it leaves behind. Its name is that of the op at its peak, which sizes
decide; whether two captures are of one program, its first op tells.

A forward whose graph had no backward in the step is a batch that was skipped, or a validation with
gradients. No step needs it, and in another one the next forward takes its place (tape_run.py).
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace

from reprise.torch.capture.captured import CapturedOp, CapturedStep, CapturedStorage, SavedTensor
from reprise.torch.internals.ops import OpKind


def fuse_nodes(step: CapturedStep) -> CapturedStep:
    """Returns the step with one op per autograd node that reads saved tensors."""
    groups: list[list[int]] = []
    for number, op in enumerate(step.ops):
        before = step.ops[number - 1] if number else None
        together = op.node >= 0 and before is not None and before.node == op.node
        if together or op.echo:
            groups[-1].append(number)
        else:
            groups.append([number])
    if len(groups) == len(step.ops):
        return step
    starts = [group[0] for group in groups]

    def moved(number: int) -> int:
        return bisect_right(starts, number) - 1

    storages = []
    for storage in step.storages:
        born, gone = moved(storage.birth), storage.death
        inside = gone is not None and moved(gone) == born and len(groups[born]) > 1
        storage.birth = born
        storage.death = None if gone is None else moved(gone)
        storage.release = moved(storage.release)
        storage.mutated_by = sorted({moved(at) for at in storage.mutated_by} - {born})
        storage.filled = [(moved(at), size) for at, size in storage.filled]
        storage.emptied = [moved(at) for at in storage.emptied]
        storage.collected = [(moved(at), size) for at, size in storage.collected]
        if not inside or storage.prior or storage in (s.storage for s in step.slots):
            storages.append(storage)
    alive = set(storages)
    ops = []
    for group in groups:
        members = [step.ops[i] for i in group if not step.ops[i].echo]
        ops.append(members[0] if len(members) == 1 else _fused(members, alive))
    last = len(step.ops)
    return replace(
        step,
        ops=ops,
        storages=storages,
        slots=[replace(s, op=moved(s.op) if s.op < last else len(ops)) for s in step.slots],
        unpacks=[replace(u, op=moved(u.op) if u.op < last else len(ops)) for u in step.unpacks],
        regions=[(moved(a), moved(b) if b < last else len(ops)) for a, b in step.regions],
    )


def _fused(members: list[CapturedOp], alive: set[CapturedStorage]) -> CapturedOp:
    """Returns one op for the ops of a node; `alive` are the storages that remain in the graph."""
    top = max(members, key=lambda op: op.peak_bytes)
    first = members[0]
    kind = OpKind.ONCE if any(m.kind == OpKind.ONCE for m in members) else OpKind.PURE
    fused = CapturedOp(top.func, top.name, first.phase, kind, in_region=False)
    fused.module, fused.call, fused.ordinal = top.module, top.call, top.ordinal
    fused.source, fused.first = top.source, first
    fused.signature = ";".join(f"{m.name}({m.signature})" for m in members)
    fused.node = first.node
    for member in members:
        fused.time_ns += member.time_ns
        fused.agent_ops += member.agent_ops
        fused.writes += [s for s in member.writes if s in alive]
    made = {s for member in members for s in member.writes}
    for member in members:
        for s in member.reads:
            if s not in made and s not in fused.reads:
                fused.reads.append(s)
        for s in member.mutates:
            if s not in made and s not in fused.mutates:
                fused.mutates.append(s)
    fused.arguments = tuple(fused.reads)
    fused.live_before, fused.live_bytes = first.live_before, members[-1].live_bytes
    fused.peak_bytes = top.peak_bytes
    left = sum(s.bytes for s in fused.writes)
    fused.workspace_bytes = max(0, top.peak_bytes - first.live_before - left)
    return fused


def without_idle(step: CapturedStep) -> CapturedStep:
    """Returns the step without the forwards that have saved tensors, none of which was unpacked; as
    it is if that is true of all. Their ops stay, as ops of the program's own."""

    def number(slot: SavedTensor) -> int:
        return next(n for n, (_, end) in enumerate(step.regions) if slot.op <= end)

    of = [number(slot) for slot in step.slots]
    used = {of[unpack.slot] for unpack in step.unpacks}
    idle = set(of) - used
    if not idle or not used:
        return step
    kept = {slot: n for n, slot in enumerate(s for s, f in enumerate(of) if f not in idle)}
    for forward in idle:
        for op in step.ops[slice(*step.regions[forward])]:
            op.in_region = False
            for storage in op.writes:
                storage.in_region = False
    return replace(
        step,
        slots=[step.slots[slot] for slot in kept],
        unpacks=[replace(unpack, slot=kept[unpack.slot]) for unpack in step.unpacks],
        regions=[region for n, region in enumerate(step.regions) if n not in idle],
    )
