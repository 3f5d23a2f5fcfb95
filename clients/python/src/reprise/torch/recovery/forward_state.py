# SPDX-License-Identifier: Apache-2.0
"""From where a planned forward ran, in case it has to run again (planned_retry.py).

    state = State(model)                            # its parameters and buffers, once per model
    forward = Forward(state, call, args, kwargs)    # just before one
    forward.ended(out)
    forward.arguments(), forward.obstacle(session)  # can it run again now?
    rehearsed(model, forward, small)                # what this costs a step, ns

Linear in parameters and buffers, of which the large ones are not copied.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from reprise.torch.check.repeatable import hooked
from reprise.torch.check.state import Autocast, Generators
from reprise.torch.compiled import fast
from reprise.torch.internals.host import host_bytes
from reprise.torch.internals.ops import tensors_in
from reprise.torch.internals.outside import OutsideCopy, replaced
from reprise.torch.recovery.job import Job
from reprise.torch.recovery.oom import several_ranks
from reprise.torch.recovery.output_gradients import Arrived
from reprise.torch.recovery.plain_retry import told
from reprise.torch.tape.costs import STEP_BYTES

__all__ = ["Forward", "Gradients", "State", "rehearsed"]

# Of a buffer or an input that is copied before every forward: statistics and tokens are smaller,
# masks and images larger.
STATISTICS = 1 << 16
ROUNDS = 7

# Which parameters still have the gradient that they had, as it was.
Gradients = Callable[[], list[bool]]


class State:
    """Parameters and buffers of a model, and what stood in the buffers. Asked for before every
    forward, so found once and copied into the same place, outside the allocator."""

    def __init__(self, model: nn.Module) -> None:
        self.parameters: list[Tensor] = list(model.parameters())
        self._places = [
            (module._buffers, name, buffer)
            for module in model.modules()
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]
        strided = [b for *_, b in self._places if b.layout == torch.strided and b.numel()]
        self._small = [b for b in strided if b.nbytes <= STATISTICS]
        self._copies = [
            host_bytes(b.nbytes, b.device).view(b.dtype).view(b.shape) for b in self._small
        ]
        put_back = {id(b) for b in self._small} | {id(b) for *_, b in self._places if not b.numel()}
        self._watched = [*self.parameters, *(b for *_, b in self._places if id(b) not in put_back)]
        # One of both ways for as long as this lives: the module may come to be built meanwhile.
        self._module = fast.library()
        self._on_cpu = all(b.device.type == "cpu" for b in self._small)
        self._versions: Any = None

    def take(self) -> None:
        """Remembers the present state."""
        if self._module is not None and self._on_cpu:
            self._module.copy_all(self._copies, self._small)
        elif self._small:
            with torch.no_grad():
                # Into pinned memory a GPU copies while the forward begins (not run on one).
                torch._foreach_copy_(self._copies, self._small, non_blocking=True)
        self._versions = self._versions_now()

    @property
    def same(self) -> bool:
        """True if the tensors are still those of the model."""
        return all(found.get(name) is buffer for found, name, buffer in self._places)

    def differs(self, model: nn.Module) -> bool:
        """Returns whether anything changed since that cannot be restored."""
        now = State(model)
        return (
            [id(p) for p in now.parameters] != [id(p) for p in self.parameters]
            or [id(b) for *_, b in now._places] != [id(b) for *_, b in self._places]
            or self._versions_now() != self._versions
        )

    def _versions_now(self) -> Any:
        if self._module is not None:
            return self._module.versions(self._watched)
        return [t._version for t in self._watched]

    def gradients(self) -> Gradients | None:
        """Returns a check that accumulated gradients are untouched; None if there are none."""
        if self._module is not None:
            taken = self._module.gradients(self.parameters)
            return (
                None if taken is None else partial(self._module.untouched, self.parameters, taken)
            )
        if all(p.grad is None for p in self.parameters):
            return None
        return partial(_untouched, self.parameters, [_gradient(p) for p in self.parameters])

    def restore(self) -> None:
        """Restores the buffers to the remembered state."""
        if any(b.device.type == "cuda" for b in self._small):
            torch.cuda.synchronize()
        with torch.no_grad():
            for buffer, copy in zip(self._small, self._copies, strict=True):
                buffer.copy_(copy)


class Forward:
    """One planned forward, and what it takes to run it again."""

    def __init__(self, state: State, call: Any, args: Any, kwargs: Any) -> None:
        self.call = call
        self._arguments = replaced((args, kwargs), Tensor, _Input)
        self.generators, self.autocast = Generators(), Autocast()
        self.state = state
        state.take()
        self.outputs: dict[tuple[int, str, int], int] = {}  # of autograd nodes -> position
        self.bytes = 0  # of their gradients

    def ended(self, out: Any) -> None:
        """Notes the outputs of the forward and the bytes of their gradients."""
        for position, tensor in enumerate(tensors_in(out)):
            node = tensor.grad_fn
            if node is not None:
                key = (node._sequence_nr(), node.name(), tensor.output_nr)
                self.outputs.setdefault(key, position)
                self.bytes += tensor.nbytes

    def arguments(self) -> tuple[Any, Any] | None:
        """What it was called with, if all of it is still there and as it was."""
        try:
            args, kwargs = replaced(self._arguments, _Input, _Input.tensor)
        except ReferenceError:
            return None
        return args, kwargs

    def obstacle(self, session: Job) -> str:
        """Why it cannot run again now; empty: it can."""
        rung = session.planning.rung
        arguments = self.arguments()
        session.step.stop_check()  # which listens to gradients, too
        if several_ranks() or session.planning.coordinator is not None:
            return "other ranks would not do the same"
        if arguments is None:
            return "its inputs were freed or modified since"
        if any(not p.is_leaf or told(p) for p in session.model.parameters()):
            return "a parameter has gradient hooks"
        if rung is None or not rung.repeats or hooked(session.model):
            return "a second forward would have side effects"
        if self.state.differs(session.model):
            return "parameters or large buffers were modified after its forward"
        return ""


def rehearsed(model: nn.Module, forward: Forward, small: int) -> int:
    """What remembering takes in a step, whose data has thrown ours out of the caches; `small`: of
    outputs whose gradients are kept."""
    cpu, arguments = torch.device("cpu"), forward.arguments() or ((), {})
    others = host_bytes(STEP_BYTES, cpu)
    state = State(model)  # not that of the forward, which is there to be put back
    grad = host_bytes(forward.bytes if 0 < forward.bytes <= small else 1, cpu)
    arrived = Arrived(grad)
    took = []
    for _ in range(ROUNDS):
        others.add_(1)
        begin = time.thread_time_ns()
        Forward(state, None, *arguments)
        state.gradients()
        arrived.take(grad)
        took.append(time.thread_time_ns() - begin)
    return int(median(took))


def _gradient(parameter: Tensor) -> tuple[Any, int]:
    """A gradient and its version, to know it by; -1: there is none."""
    grad = parameter.grad
    if grad is None:
        return None, -1
    return (lambda: grad) if grad.is_sparse else weakref.ref(grad), grad._version


def _untouched(parameters: list[Tensor], before: list[tuple[Any, int]]) -> list[bool]:
    now = [p.grad for p in parameters]
    return [
        version < 0 if grad is None else 0 <= version == grad._version and grad is seen()
        for grad, (seen, version) in zip(now, before, strict=True)
    ]


class _Input:
    """A tensor that a forward was called with. A small one is copied, out of the allocator's sight;
    a large one lives no longer than without us."""

    __slots__ = ("_copy", "_version", "_weak")

    def __init__(self, tensor: Tensor) -> None:
        small = tensor.nbytes <= STATISTICS and tensor.layout == torch.strided
        self._weak = None if small else weakref.ref(tensor)
        self._copy = None
        if small:
            self._copy = OutsideCopy(tensor) if tensor.device.type == "cpu" else tensor
        self._version = tensor._version

    def tensor(self) -> Tensor:
        """Returns the input unchanged. Raises ReferenceError if it was freed or written since."""
        if isinstance(self._copy, OutsideCopy):
            return self._copy.tensor()
        found = self._copy if self._weak is None else self._weak()
        if found is None or found._version != self._version:
            raise ReferenceError
        return found
