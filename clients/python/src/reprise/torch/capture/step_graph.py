# SPDX-License-Identifier: Apache-2.0
"""Turns a captured step into the step graph the planner reads (`reprise.v1.StepGraph`).

    graph = build(step, name="resnet", measured_peak_bytes=..., measured_step_ns=...)
    agent.submit_graph(graph.to_json(), ...)

Listed are the storages that come or go during the step; what stays is one number, `static_bytes`.
The evaluator frees a storage after its last reader and not before `release_op`, so the numbers
written here must make it replay the measured live bytes op by op:

    made by the step, gone in it     writer op, readers, release_op
    alive before, gone in the step   written by op 0, `reprise.step_begin`
    alive at the end                 `required`
    alive before and after           part of static_bytes
    the same, but written in it      both of the above, `required` and by op 0 (changing.py)

The ops of one autograd node are one op (fuse.py). Ops before which autograd unpacks nothing are no
replay points: the tape runs nothing again right before them.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import dataclass
from typing import Any

from reprise.plan import FreePolicy, StepGraph, evaluate
from reprise.plan.evaluate import base_schedule
from reprise.torch.capture.captured import (
    OPTIMIZER,
    CapturedOp,
    CapturedStep,
    CapturedStorage,
)
from reprise.torch.capture.changing import follow_changes, keep_collected, written_elsewhere
from reprise.torch.capture.fuse import fuse_nodes
from reprise.torch.capture.lent import list_gathered
from reprise.torch.internals.ops import OpKind

# torch.get_rng_state() of the CPU generator.
RNG_STATE_BYTES = 5056

_KIND_NAMES = {kind: f"OP_KIND_{kind.name}" for kind in OpKind}
_PHASE_NAMES = ("", "PHASE_FORWARD", "PHASE_BACKWARD", "PHASE_OPTIMIZER")
# reprise.v1.Category
_GRADIENT, _STATE, _ACTIVATION, _INPUT, _UNKNOWN, _BESIDE = 2, 3, 4, 5, 8, 10
_RAN = "eager-dispatch"  # the flavour of a step that ran


@dataclass(frozen=True, slots=True)
class CapturedGraph:
    """A captured step with its storages numbered as in the step graph."""

    name: str
    step: CapturedStep
    storages: tuple[CapturedStorage, ...]  # by id
    required: tuple[int, ...]
    release: tuple[int, ...]  # by storage id
    static_bytes: int
    structure: str
    measured_peak_bytes: int
    measured_step_ns: int
    flavour: str = _RAN

    @property
    def varies(self) -> bool:
        """Whether the data decides sizes within the step."""
        return self.step.varies

    def message(self) -> dict[str, Any]:
        """Returns the step graph as proto3 JSON, with the names of the proto."""
        stops = {unpack.op for unpack in self.step.unpacks}
        return {
            "name": self.name,
            "source": "torch, eager",
            "static_bytes": self.static_bytes,
            "static_parts": self._static_parts(),
            "flavour": self.flavour,
            "structure": self.structure,
            "measured_peak_bytes": self.measured_peak_bytes,
            "measured_step_ns": self.measured_step_ns,
            "required": list(self.required),
            "storages": [
                {
                    "id": storage.id,
                    "bytes": storage.bytes,
                    "name": storage.name,
                    "category": storage.category,
                    "saved_for_backward": storage.saved,
                    "release_op": self.release[storage.id],
                    "pinned": storage.pinned,
                }
                for storage in self.storages
            ],
            "ops": [_op_message(i, op, i in stops) for i, op in enumerate(self.step.ops)],
            "tensors": [
                {
                    "storage": saved.storage.id,
                    "version": saved.version,
                    "shape": list(saved.shape),
                    "dtype": saved.dtype,
                    "saved_for_backward": True,
                }
                for saved in self.step.slots
                if saved.storage.id >= 0
            ],
        }

    def message_of_adding(self) -> tuple[dict[str, Any], int]:
        """Returns the step graph of a step that adds to gradients which are alive when it begins
        instead of making them, as proto3 JSON, and the bytes of those gradients. What it computes
        of each is alive beside it until it is added."""
        message, size = self.message(), 0
        for storage in self.storages:
            if storage.category == _GRADIENT and not storage.prior and storage.death is None:
                number = len(message["storages"])
                message["storages"].append(
                    {
                        "id": number,
                        "bytes": storage.bytes,
                        "name": storage.name,
                        "category": _GRADIENT,
                        "release_op": storage.birth,
                        "pinned": True,
                    }
                )
                message["ops"][0]["writes"].append(number)
                size += storage.bytes
        return message, size

    def message_of_kept_draws(self) -> dict[str, Any]:
        """Returns the step graph as proto3 JSON, with all that random numbers were drawn for kept,
        as where no generator can be set for a recomputation."""
        message = self.message()
        for op in message["ops"]:
            if op["kind"] == _KIND_NAMES[OpKind.SEEDED]:
                op["kind"] = _KIND_NAMES[OpKind.ONCE]
        return message

    def _static_parts(self) -> list[dict[str, int]]:
        """Returns static memory by category: what the model and its optimizers hold, and inputs,
        which ops read. In a step that ran, no recorded op read the rest: it is
        beside the step."""
        parts: Counter[int] = Counter()
        for storage in self.step.storages:
            if storage.prior and storage.id < 0 and storage.category != _ACTIVATION:
                parts[storage.category] += storage.bytes
        for storage in self.batch:
            parts[_INPUT] += storage.bytes
        if self.flavour == _RAN:
            parts[_BESIDE] = self.static_bytes - parts.total()
        return [
            {"category": kind, "bytes": size} for kind, size in sorted(parts.items()) if size > 0
        ]

    @property
    def batch(self) -> list[CapturedStorage]:
        """The inputs that are static memory: what ops read of it that neither the model nor its
        optimizers hold."""
        read = {s for op in self.step.ops for s in op.arguments}
        return [
            s for s in self.step.storages
            if s.prior and s.id < 0 and s.category == _ACTIVATION and s in read
        ]  # fmt: skip

    @property
    def idle_bytes(self) -> int:
        """Static memory that the model's forward does not read: neither the parameters nor the
        batch, which grows with the input."""
        read = {s for op in self.step.ops if op.in_region for s in op.arguments if s.id < 0}
        return self.static_bytes - sum(storage.bytes for storage in read)

    @property
    def shortcuts(self) -> frozenset[int]:
        """Ops that a replay has a shortcut to (shortcut.py)."""
        return frozenset(number for number, op in enumerate(self.step.ops) if op.again_ns)

    def only_shortcuts(self, numbers: frozenset[int]) -> None:
        """Removes all shortcuts but these: the other ops are made again as they were made, because
        another rank has no shortcut to them."""
        for number in self.shortcuts - numbers:
            self.step.ops[number].again_ns = 0

    def base_peak_bytes(self) -> int:
        """Returns the most bytes alive in the step when no plan is applied."""
        graph = StepGraph.from_message(self.message())
        return evaluate(graph, base_schedule(graph, FreePolicy.PROGRAM)).peak_bytes

    def to_json(self) -> bytes:
        """Returns the graph as JSON, as `Agent.submit_graph` takes it."""
        return json.dumps(self.message(), separators=(",", ":")).encode()


def build(
    step: CapturedStep, *, name: str, measured_peak_bytes: int, measured_step_ns: int
) -> CapturedGraph:
    """Numbers the storages, settles the kinds that need the whole step, fits the times."""
    elsewhere = written_elsewhere(step)
    step = fuse_nodes(step)
    begin = step.ops[0]
    list_gathered(step)
    keep_collected(step)
    changing = follow_changes(step, elsewhere)
    listed = [s for s in step.storages if s in changing or not (s.prior and s.death is None)]
    for number, storage in enumerate(listed):
        storage.id = number
        if storage.prior:
            storage.birth = 0
            if storage.category == _ACTIVATION:
                storage.category = _INPUT
            storage.name = storage.name or "before the step"
            begin.writes.append(storage)
        if storage.chosen is not None:  # the data decides: another one in every step (kinds.py)
            storage.bytes = storage.chosen.largest(storage.bytes)
    _fit_times(step, measured_step_ns)
    last = len(step.ops) - 1
    last_read = {s: i for i, op in enumerate(step.ops) for s in op.reads}
    static = max(0, step.live_begin - sum(s.bytes for s in listed if s.prior))
    required = tuple(s.id for s in listed if s.death is None)
    release = [_release(s, last_read.get(s, s.birth), last) for s in listed]
    ends = {s: last if s.death is None else max(last_read.get(s, 0), release[s.id]) for s in listed}
    for storage in _held_between(step, ends, static) if step.apart else ():
        storage.id = len(listed)
        listed.append(storage)
        release.append(storage.release)
        ends[storage] = storage.release
    _add_unseen(step.ops, ends, static)
    return CapturedGraph(
        name=name,
        step=step,
        storages=tuple(listed),
        required=required,
        release=tuple(release),
        static_bytes=static,
        structure=_structure(step.ops),
        measured_peak_bytes=measured_peak_bytes,
        measured_step_ns=measured_step_ns or step.step_ns,
    )


def settle(step: CapturedStep) -> None:
    """The first step of an optimizer makes its state, which all later ones find: so it is made
    static. Nothing else about such a step is special."""
    grew = step.live_end - step.live_begin
    made = [
        s
        for s in step.storages
        if not s.prior and s.death is None and step.ops[s.birth].phase == OPTIMIZER
    ]
    state = sum(s.bytes for s in made)
    if not 0 < state <= grew:
        return
    for storage in made:
        maker = step.ops[storage.birth]
        maker.writes.remove(storage)
        storage.prior, storage.birth, storage.category = True, 0, _STATE
    step.live_begin += state
    step.peak_bytes += state


def _op_message(number: int, op: CapturedOp, stop: bool) -> dict[str, Any]:
    """`stop`: autograd unpacks a saved tensor right before the op, which is where the tape can run
    ops again."""
    message: dict[str, Any] = {
        "id": number,
        "name": op.name,
        "phase": _PHASE_NAMES[op.phase],
        "kind": _KIND_NAMES[op.kind],
        "time_ns": op.time_ns,
        "workspace_bytes": op.workspace_bytes,
        "reads": [s.id for s in op.reads if s.id >= 0],
        "writes": [s.id for s in op.writes],
        "mutates": [s.id for s in op.mutates if s.id >= 0],
        "module": op.module,
        "call": op.call,
        "ordinal": op.ordinal,
    }
    if op.source:
        message["source"] = op.source
    if not stop:
        message["replay_point"] = False
    if op.replay_windows:
        message["replay_windows"] = [end for window in op.replay_windows for end in window]
    if op.again_ns:
        message["again_ns"] = op.again_ns
    if op.kind == OpKind.SEEDED:
        message["state_bytes"] = state_bytes(op)
    if op.agent_ops:
        message["agent_ops"] = op.agent_ops
    return message


def state_bytes(op: CapturedOp) -> int:
    """Returns how many bytes a record of the op keeps beside its arguments."""
    if op.kind != OpKind.SEEDED:
        return 0
    return op.kept_bytes if op.again_ns else RNG_STATE_BYTES


def _release(storage: CapturedStorage, last_read: int, last: int) -> int:
    """The op after which the program lets go of the storage."""
    if storage.death is None:
        return last
    release = max(storage.release, storage.birth)
    if storage.death > max(release, last_read):
        # Something that the capture does not see holds it: autograd's graph, or C++.
        release = storage.death
    return release


def _held_between(
    step: CapturedStep, ends: dict[CapturedStorage, int], static: int
) -> list[CapturedStorage]:
    """Returns storages for what is alive when a later micro-batch begins and no other storage
    accounts for. A plan under which the step was captured holds nothing then; but threads of a
    collective library may, until they have another collective to work on."""
    found: list[CapturedStorage] = []
    held: CapturedStorage | None = None
    for begin, _ in step.regions[1:]:
        # A view makes nothing.
        made = next(at for at in range(begin - 1, -1, -1) if step.ops[at].kind != OpKind.VIEW)
        if held is not None:
            held.death = held.release = max(held.birth, made - 1)
            held = None
        alive = sum(s.bytes for s, end in ends.items() if s.birth < begin <= end)
        more = step.ops[begin].live_before - static - alive
        if more > 0:
            held = CapturedStorage(more, made, prior=False, name="held between micro-batches")
            held.category, held.pinned = _UNKNOWN, True
            held.death = held.release = len(step.ops) - 1
            step.ops[made].writes.append(held)
            found.append(held)
    return found


def _fit_times(step: CapturedStep, measured_step_ns: int) -> None:
    """Op 0 carries what no op accounts for, so that the times sum to the measured step. Ops may sum
    to more: in a capture each of them is called from Python. So is a replay, so of CPU times those
    of ops that may be replayed stay as they are; on the wall all are scaled, a slow moment of the
    machine made them longer."""
    whole = measured_step_ns or step.step_ns
    replayed = (OpKind.PURE, OpKind.SEEDED)
    others = [o for o in step.ops if not (step.worked and o.in_region and o.kind in replayed)]
    for ops in (others, step.ops):
        excess, total = sum(op.time_ns for op in step.ops) - whole, sum(op.time_ns for op in ops)
        if excess > 0 and total > 0:
            for op in ops:
                op.time_ns = op.time_ns * max(0, total - excess) // total
                op.again_ns = op.again_ns and max(1, op.again_ns * max(0, total - excess) // total)
    step.ops[0].time_ns = max(0, whole - sum(op.time_ns for op in step.ops))


def _add_unseen(ops: list[CapturedOp], ends: dict[CapturedStorage, int], static: int) -> None:
    """What the meter saw and no storage accounts for (made in C++, past the dispatcher) becomes
    workspace of the ops during which it was alive."""
    change = [0] * (len(ops) + 1)
    for storage, end in ends.items():
        change[storage.birth] += storage.bytes
        change[end + 1] -= storage.bytes
    live = static
    for number, op in enumerate(ops):
        live += change[number]
        if op.func is not None:
            op.workspace_bytes = max(op.workspace_bytes, op.peak_bytes - live)


def _structure(ops: list[CapturedOp]) -> str:
    """SHA-256 over op keys, signatures and producers, without sizes. What was there before the step
    is alike whether the program lets go of it in this step or not."""
    digest = hashlib.sha256()
    for op in ops:
        producers = ",".join(str(-1 if s.prior or s.id < 0 else s.birth) for s in op.arguments)
        named = op.first or op
        key = (named.module, named.call, named.name, named.ordinal, op.signature, producers)
        digest.update(repr(key).encode())
    return digest.hexdigest()
