# SPDX-License-Identifier: Apache-2.0
"""What fills the memory when it runs out: every storage that is alive, and what made it.

    moment = Finder(job).moment(step=12, phase=2, ...)
    agent.snapshot(moment)               # proto3 JSON of reprise.v1.Moment

Bytes come from the meter's own list of blocks where it has one, so they add up to the bytes alive:
nothing is left out, and memory that another allocator owns (an array of NumPy) is not included.
What they are, from the first of these that knows:

    parameters, buffers, gradients, optimizer state     by name
    what the tape keeps of a step under a plan          op and module, from the captured step
    what Python sees, what autograd saved               the autograd function that made it, and the
                                                        module whose parameters it or the last one
                                                        before it ("after layers.3") took

Bounded: LONGEST_S of time, MOST storages (the largest; the others are counted), MOST_NODES of the
autograd graph. Nothing is unpacked and no hook of the program is called, as both could run ops;
no device memory is taken.
"""

from __future__ import annotations

import gc
import json
import re
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from types import FrameType, TracebackType
from typing import Any

from torch import Tensor, nn

from reprise.torch.internals.outside import is_hidden
from reprise.torch.internals.traces import frames
from reprise.torch.job.job import EagerJob
from reprise.torch.meter.meter import MOST_BLOCKS
from reprise.torch.meter.state import known_tensors
from reprise.torch.tape.records import Kept

LONGEST_S = 0.5
MOST = 256
MOST_NODES = 20_000
NEAR = 6
_PARAMETER, _ACTIVATION, _UNKNOWN = 1, 4, 8  # reprise.v1.Category
_OUT_OF_MEMORY = 2  # reprise.v1.MomentReason
_UNITS = {"bytes": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}


@dataclass(slots=True)
class _Found:
    """What is known of one storage that was alive."""

    bytes: int
    block_bytes: int = 0
    name: str = ""
    made_by: str = ""
    module: str = ""
    category: int = _UNKNOWN


class Finder:
    """Looks for what is alive. Use once, at once."""

    def __init__(self, job: EagerJob) -> None:
        self._job, self._model = job, job.model
        rung = job.plans.rung
        self._planned = None if rung is None or job.step.run is None else rung.graph.step
        self._deadline = time.monotonic() + LONGEST_S
        self._found: dict[int, _Found] = {}
        self._paths = {id(p): n.rpartition(".")[0] for n, p in self._model.named_parameters()}

    def moment(self, **facts: Any) -> bytes:
        """Returns the proto3 JSON of a Moment; `facts` are its other fields."""
        self._named()
        self._seen()
        meter = self._job.meter
        blocks = meter.blocks()
        found = {} if 0 < len(blocks) < MOST_BLOCKS else self._found
        for address, size, block in blocks:
            one = found[address] = self._found.get(address, _Found(size))
            one.bytes, one.block_bytes = size, block
        storages = sorted(found.values(), key=lambda one: -one.bytes)
        rest = storages[MOST:]
        message = {
            "reason": _OUT_OF_MEMORY,
            "at_ns": time.monotonic_ns(),
            "live_bytes": max(0, meter.live()),
            "storages": [asdict(one) for one in storages[:MOST]],
            "more_storages": len(rest),
            "more_bytes": sum(one.bytes for one in rest),
            **facts,
        }
        return json.dumps(message, separators=(",", ":")).encode()

    def _add(self, tensor: Tensor, **facts: Any) -> None:
        try:
            storage = tensor.untyped_storage()
            # A fake tensor's is nowhere, and torch warns of who asks where.
            if storage.device.type != self._job.device.type:
                return
            address, size = storage.data_ptr(), storage.nbytes()
        except (RuntimeError, NotImplementedError):
            return  # no memory of its own: sparse, functional
        if is_hidden(storage):
            return
        if address and size and address not in self._found:
            self._found[address] = _Found(size, **facts)

    def _named(self) -> None:
        for name, parameter in self._model.named_parameters():
            self._add(parameter, name=name, category=_PARAMETER)
        for tensor, name, category in known_tensors(self._model, self._job.step.optimizers):
            self._add(tensor, name=name, category=category)

    def _seen(self) -> None:
        tensors: list[Tensor] = []
        for thing in gc.get_objects():
            kind = type(thing)
            if kind is Kept:
                self._kept(thing)
            elif issubclass(kind, Tensor):
                tensors.append(thing)
        nodes: list[Any] = []
        for tensor in tensors:
            node = _maker(tensor)
            if node is not None:
                nodes.append(node)
            self._add(tensor, **self._made_by(node))
        self._saved(nodes)

    def _kept(self, kept: Kept) -> None:
        """Adds a saved tensor that the plan keeps: the captured step knows what made it."""
        facts: dict[str, Any] = {"category": _ACTIVATION}
        step = self._planned if kept.run is self._job.step.run else None
        if step is not None and 0 <= kept.slot < len(step.slots):
            storage = step.slots[kept.slot].storage
            op = step.ops[storage.birth]
            facts["category"] = storage.category
            if not storage.prior:
                facts["made_by"], facts["module"] = op.name, op.module
            facts["name"] = storage.name
        if kept.tensor is not None:
            self._add(kept.tensor, **facts)

    def _saved(self, nodes: list[Any]) -> None:
        """Adds what autograd holds, from these functions down."""
        known = {id(node) for node in nodes}
        waiting = list(nodes)
        keep = list(nodes)  # an id stays taken as long as its object lives
        while waiting and len(keep) < MOST_NODES and time.monotonic() < self._deadline:
            node = waiting.pop()
            for data in raw_saved(node):
                if isinstance(data, Tensor):
                    self._add(data, **self._made_by(_maker(data) or node))
                elif type(data) is Kept:
                    self._kept(data)
            for following, _ in getattr(node, "next_functions", ()):
                if following is not None and id(following) not in known:
                    known.add(id(following))
                    keep.append(following)
                    waiting.append(following)

    def _made_by(self, node: Any) -> dict[str, Any]:
        """Describes what made a tensor: for "AddmmBackward0" it is addmm."""
        if node is None:
            return {}
        name = re.sub(r"Backward\d*$", "", node.name())
        snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
        return {"made_by": snake, "module": self._module(node), "category": _ACTIVATION}

    def _module(self, node: Any) -> str:
        """Returns the module of a function: that of the parameter it takes, itself or
        transposed; otherwise the nearest one before."""
        level, own = [node], True
        for _ in range(NEAR):
            following = [f for n in level for f, _ in getattr(n, "next_functions", ()) if f]
            for function in following:
                path = self._paths.get(id(getattr(function, "variable", None)))
                if path is not None:
                    return path if own else f"after {path}"
            transposed = [f for f in following if f.name() == "TBackward0"]
            if own and transposed:
                level = transposed
                own = any(self._taken(f) for f in transposed)
            else:
                own = False
            if not own:
                level = following[:NEAR]
        return ""

    def _taken(self, function: Any) -> bool:
        return any(
            id(getattr(f, "variable", None)) in self._paths for f, _ in function.next_functions if f
        )


def _maker(tensor: Tensor) -> Any:
    try:
        return None if tensor._is_view() else tensor.grad_fn
    except RuntimeError:
        return None  # a view that was written to: asking would compute


def raw_saved(node: Any) -> Iterator[Any]:
    """Yields what a function saved, as it was packed. Without hooks that is the tensor itself."""
    for attribute in dir(node):
        if not attribute.startswith("_raw_saved"):
            continue
        try:
            saved = getattr(node, attribute)
        except RuntimeError:
            return  # its backward has run
        for one in saved if isinstance(saved, (list, tuple)) else (saved,):
            # Before torch could show it packed there is no way to look without unpacking.
            data = getattr(one, "data", None)
            if data is not None:
                yield data


def asked_bytes(error: BaseException) -> int:
    """Returns how many bytes were asked for, as the allocator's error says; 0 if it does not."""
    said = re.search(r"tried to allocate ([\d.]+) ?(bytes|[KMG]iB)", str(error), re.IGNORECASE)
    return int(float(said[1]) * _UNITS[said[2].lower()]) if said else 0


def module_of(model: nn.Module, error: BaseException | None) -> str:
    """Returns the innermost module whose forward the error came through; without an error, the one
    that runs now."""
    paths = {id(module): path for path, module in model.named_modules()}
    found = ""
    for frame in _running_here() if error is None else _ended(error.__traceback__):
        owner = frame.f_locals.get("self")
        if owner is not None and id(owner) in paths:
            found = paths[id(owner)] or found
    return found


def _running_here() -> Iterable[FrameType]:
    return reversed(list(frames())) if sys.version_info >= (3, 13) else ()


def _ended(trace: TracebackType | None) -> Iterator[FrameType]:
    running = {id(frame) for frame in frames()}  # a frame in a variable of its own is a cycle
    while trace is not None:
        if id(trace.tb_frame) not in running:
            yield trace.tb_frame
        trace = trace.tb_next
