# SPDX-License-Identifier: Apache-2.0
"""The graphs of one compiled step as one: the only one, those of a model with graph breaks, or of a
model whose parts are compiled one by one.

    # Joint graphs; which of them a forward calls, in order, and in which parts; what was measured.
    whole = Whole(graphs, calls, parts, backwards)
    message = whole.message(static_bytes)
    message = with_optimizer(message, "AdamW", peak_bytes)             # of its step, as measured
    decided = whole.split(again)         # by compiled graph: its ops among those that run again

The forwards run one after the other, then the backwards in the other order. What one of them hands
to the next, and the next one's backward back, is one storage: told by its bytes, which is all that
a graph says about it. Parameters and whatever else is alive when the step begins are static, as
measured. What the program does between the graphs is in none of them: by how much the measured peak
of a plain step is above the predicted one is held in all of it (`with_held`). Between two backwards
it may let go of the gradients of parameters that the first one has returned: FSDP2 reduces them to
those of its shards. What is left of them is measured, too.

Equal parts are compiled once for each kind: parts of one kind run the same ops again. A graph that
is called more than once in a part is compiled once: an op of it runs again in all of these calls or
in none. Linear in the graphs, but for what is handed back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from reprise.torch.joint.joint_graph import LOSS, BackwardMemory, message_of, storage_of

# Kinds of equal parts. Each is compiled code of its own, and torch.compile keeps so much of one
# function and no more.
MOST_KINDS = 8
_BETWEEN = "reprise.between"
_GRADIENT = 2  # reprise.v1.Category
_Kind = dict[int, set[int]]  # by graph of a part, in the order of its calls: ops that run again


@dataclass(slots=True)
class _Call:
    """One call of a graph: its numbers in the whole."""

    graph: int
    part: int
    storages: list[int] = field(default_factory=list)
    ops: dict[int, int] = field(default_factory=dict)

    def among(self, ops: Collection[int]) -> set[int]:
        """Returns the numbers of some ops of the graph."""
        return {whole for number, whole in self.ops.items() if number in ops}


class Decided(NamedTuple):
    """What runs again, by what is compiled."""

    kinds: dict[int, int]  # by part
    graphs: list[tuple[int, set[int]]]  # as they are compiled: which graph, and its ops
    again: set[int]  # ops of the whole


class Whole:
    """The graphs of one forward and its backward."""

    def __init__(
        self,
        graphs: list[dict[str, Any]],
        calls: list[int],
        parts: list[int],
        backwards: Sequence[BackwardMemory] = (),
    ) -> None:
        """`backwards`: what was measured around the backward of each call; where that is not known,
        all gradients stay to the end of the step."""
        self._graphs = graphs
        self._calls = [_Call(*one) for one in zip(calls, parts, strict=True)]
        self._storages: list[dict[str, Any]] = []
        self._required: list[int] = []
        self._ops: list[dict[str, Any]] = [{**graphs[calls[0]]["ops"][0], "id": 0}]
        for call in self._calls:
            self._number(call)
        handed = {id(call): self._handed_back(at) for at, call in enumerate(self._calls)}
        for call in self._calls:
            for number, op in enumerate(graphs[call.graph]["ops"]):
                if number and op["phase"] == "PHASE_FORWARD":
                    self._add(call, number, op, set(), True, {})
        known = backwards if len(backwards) == len(calls) else [BackwardMemory()] * len(calls)
        for at, call in reversed([*enumerate(self._calls)]):
            last = call is self._calls[-1]
            between = {} if last else self._between(at, *known[at : at + 2])
            for number, op in enumerate(graphs[call.graph]["ops"]):
                if op["phase"] == "PHASE_BACKWARD":
                    self._add(call, number, op, handed[id(call)], last, between)
        made = {s for op in self._ops for s in op["writes"]}
        self._release(made)

    def message(self, static_bytes: int) -> dict[str, Any]:
        """Returns the step graph that the planner reads. `static_bytes`: alive when the step
        begins."""
        count, required = len(self._calls), sorted(set(self._required))
        name = f"{count} joint graphs" if count > 1 else "joint graph"
        return message_of(name, static_bytes, required, self._storages, self._ops)

    def split(self, again: tuple[int, ...]) -> Decided:
        """Returns what each compiled graph runs again, so that the ops `again` of the whole do."""
        wanted = set(again)
        by_part: dict[int, _Kind] = {}
        for call in self._calls:
            own = {number for number, op in call.ops.items() if op in wanted}
            by_part.setdefault(call.part, {}).setdefault(call.graph, set()).update(own)
        found = _few(by_part)
        kinds = {part: found.index(kind) for part, kind in by_part.items()}
        return Decided(
            kinds,
            [item for kind in found for item in kind.items()],
            {op for call in self._calls for op in call.among(by_part[call.part][call.graph])},
        )

    def numbers(self, by_graph: dict[int, tuple[int, ...]]) -> set[int]:
        """Returns the ops of the whole that are these ones of its graphs."""
        return {op for call in self._calls for op in call.among(by_graph.get(call.graph, ()))}

    # ---- Putting together -----------------------------------------------------------

    def _number(self, call: _Call) -> None:
        graph = self._graphs[call.graph]
        for storage in graph["storages"]:
            call.storages.append(len(self._storages))
            self._storages.append({**storage, "id": len(self._storages)})
        self._required += [call.storages[i] for i in graph["required"]]

    def _handed_back(self, at: int) -> set[int]:
        """Joins the gradients of its outputs with those that the backward of a later call makes,
        and returns them: they are the same storages."""
        if at == len(self._calls) - 1:
            return set()
        call = self._calls[at]
        graph = self._graphs[call.graph]
        tangents = [i for op in graph["ops"] if op["name"] == LOSS for i in op["writes"]]
        found = set()
        for tangent in tangents:
            size = graph["storages"][tangent]["bytes"]
            made = self._made_later(at, size)
            if made is not None:
                self._required.remove(made)
                self._storages[made]["pinned"] = False
                self._storages[call.storages[tangent]]["bytes"] = 0
                call.storages[tangent] = made
                found.add(tangent)
        return found

    def _made_later(self, at: int, size: int) -> int | None:
        for later in self._calls[at + 1 :]:
            for number in self._made_by(later):
                if number in self._required and self._storages[number]["bytes"] == size:
                    return number
        return None

    def _made_by(self, call: _Call) -> Iterator[int]:
        """Yields the storages that the backward of a call makes, in order."""
        for op in self._graphs[call.graph]["ops"]:
            if op["phase"] == "PHASE_BACKWARD" and op["name"] != LOSS:
                yield from (call.storages[i] for i in op["writes"])

    def _between(self, at: int, own: BackwardMemory, later: BackwardMemory) -> dict[str, Any]:
        """Returns what the op before the backward of a call reads, writes and takes: the gradients
        that the backward before it has returned, and what is left of them."""
        made = set(self._made_by(self._calls[at + 1]))
        gradients = [i for i in self._required if i in made]
        size = sum(self._storages[i]["bytes"] for i in gradients)
        left = max(0, size + own.began_live - later.ended_live)
        if not own.began_live or not later.ended_live or left >= size:
            return {}
        number = len(self._storages)
        storage = storage_of(number, left, "gradients of parameters")
        self._storages.append({**storage, "category": _GRADIENT, "pinned": True})
        self._required = [i for i in self._required if i not in made] + [number]
        takes = max(0, own.before_peak - later.ended_live - left)
        return {"reads": gradients, "writes": [number], "workspace_bytes": takes}

    def _add(
        self,
        call: _Call,
        number: int,
        op: dict[str, Any],
        handed: set[int],
        last: bool,
        between: dict[str, Any],
    ) -> None:
        made = {**op, "id": len(self._ops)}
        made["reads"] = sorted({call.storages[i] for i in op["reads"]})
        made["writes"] = [call.storages[i] for i in op["writes"] if i not in handed]
        if op["name"] == LOSS and not last:
            # Not the loss: only what the graphs after this one do not account for.
            made |= {"name": _BETWEEN, "reads": [], "workspace_bytes": 0}
            made |= {**between, "writes": [*made["writes"], *between.get("writes", ())]}
        call.ops[number] = len(self._ops)
        self._ops.append(made)

    def _release(self, made: set[int]) -> None:
        """Makes every storage written by an op, and alive until its last reader."""
        first: dict[int, int] = {}
        for number, op in enumerate(self._ops):
            for storage in op["writes"]:
                first.setdefault(storage, number)
        for storage in self._storages:
            storage["release_op"] = first.get(storage["id"], 0)
            if storage["id"] not in made:
                self._ops[0]["writes"] = [*self._ops[0]["writes"], storage["id"]]
                storage["bytes"] = 0


def _few(by_part: dict[int, _Kind]) -> list[_Kind]:
    """Returns the kinds of parts, in the order of their first calls. Where too many are of the same
    graphs, neighbours by what they run again become one, which runs again what either does."""
    of_graphs: dict[tuple[int, ...], list[_Kind]] = {}
    for kind in by_part.values():
        same = of_graphs.setdefault(tuple(kind), [])
        if kind not in same:
            same.append(kind)
    for graphs, same in of_graphs.items():
        same.sort(key=lambda kind: sum(map(len, kind.values())))
        each = -(-len(same) // MOST_KINDS)
        parts = {p: same.index(kind) // each for p, kind in by_part.items() if kind in same}
        for part, group in parts.items():
            joined = same[group * each : (group + 1) * each]
            by_part[part] = {g: set().union(*(kind[g] for kind in joined)) for g in graphs}
    found: list[_Kind] = []
    for kind in by_part.values():
        if kind not in found:
            found.append(kind)
    return found


def with_held(message: dict[str, Any], held_bytes: int) -> dict[str, Any]:
    """Returns the same step, which holds `held_bytes` more from its begin to its end."""
    number = len(message["storages"])
    held = {**storage_of(number, held_bytes, "outside the graphs"), "pinned": True}
    begin = {**message["ops"][0], "writes": [*message["ops"][0]["writes"], number]}
    return {
        **message,
        "ops": [begin, *message["ops"][1:]],
        "storages": [*message["storages"], held],
        "required": [*message["required"], number],
    }


def with_optimizer(message: dict[str, Any], name: str, peak_bytes: int) -> dict[str, Any]:
    """Returns the same step with that of its optimizer at the end, which peaks at `peak_bytes`.
    `name`: as the module of its ops in an eager step."""
    op = {**message["ops"][0], "id": len(message["ops"]), "name": "optimizer.step"}
    op |= {"module": name, "phase": "PHASE_OPTIMIZER", "reads": [], "writes": []}
    made = {**message, "ops": [*message["ops"], op]}
    storages = {s["id"]: s["bytes"] for s in message["storages"]}
    left = message["static_bytes"] + sum(storages[i] for i in message["required"])
    op["workspace_bytes"] = max(0, peak_bytes - left)
    return made
