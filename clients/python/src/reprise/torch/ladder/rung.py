# SPDX-License-Identifier: Apache-2.0
"""One captured step with its plan (`Rung`), and the input that it is for (`Key`).

    key = key_of(args, kwargs)          # of a step's first forward
    rung.covers(key)                    # is the rung's plan good for a step with this input?

ladder.py keeps the rungs of a model and picks one for every step.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from reprise.base.budget import Budget
from reprise.plan import Plan
from reprise.torch.capture.captured import CapturedOp, CapturedStep, CapturedStorage
from reprise.torch.capture.step_graph import CapturedGraph
from reprise.torch.internals.subclass import parts_of, shape_of
from reprise.torch.ladder.host_terms import HostTerms
from reprise.torch.tape.executor import TapePlan
from reprise.torch.tape.tape import Tape


class Key(NamedTuple):
    """What a step's first forward is called with. A tuple: every step makes one and compares it."""

    kind: tuple[Any, ...]
    shapes: tuple[tuple[int, ...], ...]

    @property
    def size(self) -> int:
        """The number of elements of all input tensors."""
        return sum(map(math.prod, self.shapes))

    def widened(self, other: Key) -> Key:
        """Returns the key of an input as large as this and another of its kind, in each dimension;
        this one if the other is of another kind."""
        if self.kind != other.kind:
            return self
        pairs = zip(self.shapes, other.shapes, strict=True)
        return Key(self.kind, tuple(tuple(map(max, own, theirs)) for own, theirs in pairs))

    def within(self, other: Key) -> bool:
        """Returns whether this input is no larger than another of its kind, in any dimension."""
        return self == other or (
            self.kind == other.kind
            and all(
                mine <= its
                for own, theirs in zip(self.shapes, other.shapes, strict=True)
                for mine, its in zip(own, theirs, strict=True)
            )
        )


def key_of(
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    device: str = "cpu",
    model: nn.Module | None = None,
) -> Key:
    """Returns the key of a step whose first forward is called with these arguments. Types, ranks,
    flags, the type of the model's parameters and what autocast casts to make the kind; numbers do
    not: they may count steps."""
    first = None if model is None else _first_parameter(model)
    kind: list[Any] = [] if first is None else [("parameters", first.dtype)]
    if torch.is_autocast_enabled(device):
        kind.append(("autocast", torch.get_autocast_dtype(device)))
    shapes: list[tuple[int, ...]] = []
    for number, value in enumerate(args):
        _add(f".0.{number}", value, kind, shapes)
    for name, value in kwargs.items():
        _add(f".1.{name}", value, kind, shapes)
    return Key(tuple(kind), tuple(shapes))


def _first_parameter(module: nn.Module) -> Tensor | None:
    """Returns what `module.parameters()` yields first, without looking for names."""
    for parameter in module._parameters.values():
        if parameter is not None:
            return parameter
    for child in module._modules.values():
        if child is not None and (found := _first_parameter(child)) is not None:
            return found
    return None


def _add(name: str, value: Any, kind: list[Any], shapes: list[tuple[int, ...]]) -> None:
    """Adds a value among the arguments, and what it contains, to what makes their key."""
    if type(value) is Tensor or isinstance(value, Tensor):
        kind.append((name, value.dtype, value.dim()))
        if value.is_nested:
            # A ragged size is a symbol, and another one in every step: its parts have numbers.
            shapes += map(shape_of, parts_of(value))
        else:
            shapes.append(tuple(value.shape))
    elif isinstance(value, dict):
        for key, item in value.items():
            _add(f"{name}.{key}", item, kind, shapes)
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            _add(f"{name}.{number}", item, kind, shapes)
    elif value is None or isinstance(value, (bool, str)):
        kind.append((name, value))
    else:
        kind.append((name, type(value).__name__))


@dataclass(slots=True, eq=False)
class Rung:
    """One captured (or fitted) step and its plan."""

    number: int
    key: Key
    size: int  # elements of the largest input it is planned for
    graph: CapturedGraph
    left_out: frozenset[str]
    leaks: bool = False  # the model hands more to the outside than its outputs
    own_size: int = 0  # of the input its graph was captured with, of several ranks on this one
    shared: bool = False  # by several ranks, each with an input of its own
    fitted: bool = False
    uneven: bool = False  # its micro-batches had several sizes; planned as the largest of them
    sketch: bool = False  # from shapes alone; fitted too
    foreseen: dict[str, Any] | None = None  # the graph of a size that nobody has seen
    sizes: Mapping[int, int] = field(default_factory=dict)  # bytes of its storages, if foreseen
    request_id: int | None = None  # of the request for its plan
    answered: int = 0  # number of the plan that the request has brought; 0: none yet
    asked: Budget | None = None  # the budget of that request
    terms: HostTerms | None = None  # what several ranks may send to host memory; None: nothing
    planned: TapePlan | None = None  # its newest plan, maybe removed
    refused: str = ""
    final: bool = False  # the server has refused to replace its plan by another with more room
    # Bytes that the rank with the most static memory has more of it than this one.
    beside_bytes: int = 0
    asked_least: bool = False  # for the plan that needs least, because nothing fits
    spare_bytes: int = 0  # that its plan holds back
    held_bytes: int = 0  # of these, for what is alive beside the step
    exceeds: bool = False  # nothing fits, and it was said that its steps exceed the budget
    adds: bool = False  # to gradients that are there; of a step from shapes
    roomier: Rung | None = None  # the same step, with a plan for when more is alive beside it
    roomiers: int = 0  # how many of them there were
    recaptured: bool = False  # it was captured again, because no plan left room for its steps
    own_ns: int = 0  # what a step under its plan takes beside its ops
    repeats: bool | None = None  # its forward can run again unnoticed; None: not known
    awaited: bool = False  # its next plan is waited for, before its next step
    late: bool = False  # has been waited for, in vain
    used: int = 0  # the last step it ran
    matched: bool = False  # a step was as captured
    varies: bool = field(init=False)  # the data decides sizes within the step

    def __post_init__(self) -> None:
        self.varies = self.graph.varies  # once, because every planned step asks for it

    def message(self) -> dict[str, Any]:
        """Returns the step graph that it is planned for, as proto3 JSON."""
        return self.graph.message() if self.foreseen is None else self.foreseen

    def graph_of_plan(self) -> CapturedGraph:
        """Returns the captured step with the storages as large as its plan has them."""
        if not self.sizes:
            return self.graph
        sized = (replace(s, bytes=self.sizes.get(s.id, s.bytes)) for s in self.graph.storages)
        return replace(self.graph, storages=tuple(sized))

    @property
    def forwards(self) -> int:
        """The number of forwards of the captured step."""
        return len(self.graph.step.regions)

    @property
    def live_begin(self) -> int:
        """The bytes that are alive when its step begins, as its graph has it."""
        # A step from shapes knows its own tensors only; what else is alive is in static memory.
        return self.graph.static_bytes if self.sketch else self.graph.step.live_begin

    @property
    def live_end(self) -> int:
        """The bytes that are alive when its step ends, as its graph has it."""
        step = self.graph.step
        return self.live_begin + step.live_end - step.live_begin

    def beside(self, live: int, missing: int) -> int:
        """Returns the bytes that a step has beside it which its own does not know: `live` bytes are
        alive when it begins, and so many of gradients are missing (0: not looked at). What holds
        the missing ones is alive, and they will be made beside it."""
        known, more = self.live_begin, live - self.live_begin
        if missing:
            more = max(more, live + missing - known - self.graph.step.missing_bytes)
        return max(0, more)

    @property
    def plan(self) -> Plan | None:
        """The newest plan, also after it was removed; None if there was none."""
        return None if self.planned is None else self.planned.plan

    @property
    def tape(self) -> Tape | None:
        """What runs the next steps under the plan; None if there is no plan."""
        return None if self.planned is None else self.planned.tape

    def lacks(self, beside: int) -> int:
        """Returns by how much a step under the plan exceeds its budget with so many bytes alive
        beside it, as far as is known; 0 if it keeps it."""
        plan = self.plan
        more = 0 if plan is None else plan.peak_bytes - self.held_bytes + beside - plan.budget_bytes
        return max(0, more)

    def remove(self) -> None:
        """Removes the plan, and expects none."""
        if self.planned is not None:
            self.planned.remove()
        self.request_id = None
        if self.roomier is not None:
            self.roomier.remove()

    @property
    def open(self) -> bool:
        """Whether a plan was requested and may still arrive."""
        return self.request_id is not None and not self.refused

    def covers(self, key: Key) -> bool:
        """Returns whether the plan is good for a step with this input."""
        if self.shared:
            return key.kind == self.key.kind and key.size <= self.size
        return key.within(self.key)

    @property
    def may_tighten(self) -> bool:
        """Returns whether a plan that leaves more may be asked for. Not of a size that nobody has
        seen."""
        return (self.sketch or not self.fitted) and not self.final


def evened(graph: CapturedGraph) -> CapturedGraph:
    """Returns a step with micro-batches of several sizes as if each were as large as the largest;
    the same graph if they are of one size.

    Packed sequences come in other lengths in every step and at every place of it. A plan of the
    step as captured would keep what a short micro-batch saves, and exceed its budget when a long
    one comes there. So each op's storages get the bytes of the largest among the ops that are the
    same op of another micro-batch: of the model, by module, call of the module, name, and place
    among ops of that name; of the loop around it, by which micro-batch's tensors it reads."""
    before = sum(storage.bytes for storage in graph.storages)
    for same in _same(graph.step):
        for op in same:
            op.workspace_bytes = max(other.workspace_bytes for other in same)
        for written in zip(*(op.writes for op in same), strict=True):
            most = max(storage.bytes for storage in written)
            for storage in written:
                storage.bytes = most
    if sum(storage.bytes for storage in graph.storages) == before:
        return graph
    peak = max(graph.measured_peak_bytes, graph.base_peak_bytes())
    return replace(graph, measured_peak_bytes=peak)


def _same(step: CapturedStep) -> list[list[CapturedOp]]:
    """Returns, for each op of a micro-batch, that op of all of them."""
    forwards = len(step.regions)
    if forwards < 2:
        return []
    named: defaultdict[tuple[int, str, str], list[CapturedOp]] = defaultdict(list)
    around: defaultdict[tuple[int, str], list[list[CapturedOp]]] = defaultdict(
        lambda: [[] for _ in range(forwards)]
    )
    for op, of in zip(step.ops, _micro_batches(step), strict=True):
        name = (op.first or op).name
        if op.module:
            named[op.phase, op.module, name].append(op)
        elif of is not None:
            around[op.phase, name][of].append(op)
    found = []
    for same in named.values():
        each, rest = divmod(len(same), forwards)
        if not rest:
            same.sort(key=lambda op: op.call)  # a backward runs last calls first
            found += [same[number::each] for number in range(each)]
    for ops in around.values():
        if len({len(of_one) for of_one in ops}) == 1:
            found += [list(same) for same in zip(*ops, strict=True)]
    return [same for same in found if len({len(op.writes) for op in same}) == 1]


def _micro_batches(step: CapturedStep) -> list[int | None]:
    """Returns for each op the micro-batch that made all it reads of what micro-batches have made;
    None if there is none or more than one, as of the backward of another model around this one."""
    inside = {at: number for number, ends in enumerate(step.regions) for at in range(*ends)}
    makers: dict[CapturedStorage, int] = {}
    found: list[int | None] = []
    for at, op in enumerate(step.ops):
        read = {inside[at]} if at in inside else {makers[s] for s in op.reads if s in makers}
        found.append(read.pop() if len(read) == 1 else None)
        if (of := found[-1]) is not None:
            makers |= dict.fromkeys(op.writes, of)
    return found
