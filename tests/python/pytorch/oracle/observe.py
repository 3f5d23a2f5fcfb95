# SPDX-License-Identifier: Apache-2.0
"""Runs a list of calls once, keeps everything alive, and observes what each call does to storages:
which it makes, which it writes, and which of its outputs are views of existing ones.

Only writes are taken from schemas, so that sizes and aliases are those of this torch and this
device.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable
from typing import Any

import torch
from oracle.calls import BACKWARD, FORWARD, Call, Traced, Value, below_autograd
from torch import Tensor
from torch.utils._pytree import tree_leaves

from reprise.base.errors import RepriseError
from reprise.torch.internals.ops import (
    OpKind,
    first_kind,
    hidden_writes,
    mutated_positions,
    tensors_in,
)

__all__ = ["Observer"]


class Observer:
    """Runs the list once. Everything it makes stays alive, so that a storage is identified by its
    address."""

    def __init__(self, graph: Any, name: str) -> None:
        self._graph = graph
        self._name = name
        self._values: dict[Any, Any] = {}  # by node: its result with a `Value` for every tensor
        self._real: dict[Any, Any] = {}
        self._numbers: dict[int, int] = {}  # storage numbers by address; -1: static
        self._alive: list[Any] = []
        self._statics: dict[int, Tensor] = {}
        self._versions: list[int] = []
        self._sizes: list[int] = []
        self._calls: list[Call] = []
        # By storage: the stretch of the module call that made it, until whose end it is held.
        self._stretch: list[int] = []
        self._static_reads: list[set[int]] = []
        self._static_writes: list[set[int]] = []

    def run(self, inputs: tuple[Any, ...], names: list[str]) -> Traced:
        """Runs the list on these inputs; returns the traced step. `names` are the parameters of its
        gradients."""
        left = iter(tree_leaves(inputs))
        output: Any = ()
        for node in self._graph.graph.nodes:
            if node.op == "placeholder":
                self._static(node, next(left))
            elif node.op == "get_attr":
                self._static(node, getattr(self._graph, node.target))
            elif node.op == "output":
                output = [self._values[n] if n is not None else None for n in node.args[0]]
            elif node.target is operator.getitem:
                source, at = node.args
                self._values[node] = self._values[source][at]
                self._real[node] = self._real[source][at]
            elif isinstance(node.target, torch._ops.OpOverload):
                self._call(node)
            else:
                raise RepriseError(f"the step cannot be traced: it calls {node.target}")
        self._freeze_readers_of_changing_state()
        loss, *gradients = output
        if not isinstance(loss, Value):
            raise RepriseError("the step cannot be traced: it does not return a loss")
        return Traced(
            name=self._name,
            calls=self._calls,
            sizes=self._sizes,
            release=self._releases(),
            static_bytes=sum(t.untyped_storage().nbytes() for t in self._statics.values()),
            device=self._real_loss_device(),
            loss=loss,
            gradients={n: g for n, g in zip(names, gradients, strict=True) if g is not None},
            statics=list(self._statics.values()),
        )

    def _real_loss_device(self) -> torch.device:
        """Returns the device of the step's static tensors."""
        return next((t.device for t in self._statics.values()), torch.device("cpu"))

    def _static(self, node: Any, tensor: Any) -> None:
        """Registers a static tensor."""
        self._real[node] = tensor
        self._values[node] = tensor
        if isinstance(tensor, Tensor):
            key = _place(tensor)
            self._numbers[key] = -1
            self._statics[key] = tensor
            self._values[node] = self._value(tensor.detach())

    def _value(self, tensor: Tensor) -> Value:
        """Returns the value that describes a tensor."""
        number = self._numbers[_place(tensor)]
        static = tensor if number < 0 else None
        geometry = (tensor.size(), tensor.stride(), int(tensor.storage_offset()))
        return Value(number, *geometry, tensor.dtype, static)

    def _call(self, node: Any) -> None:
        """Runs one call, and records what it reads, writes and makes."""
        func = node.target
        phase, module, stretch = node.meta.get("reprise", (BACKWARD, "", -1))
        args = torch.fx.node.map_arg(node.args, self._real.__getitem__)
        kwargs = torch.fx.node.map_arg(node.kwargs, self._real.__getitem__)
        call = Call(
            func,
            torch.fx.node.map_arg(node.args, self._values.__getitem__),
            dict(torch.fx.node.map_arg(node.kwargs, self._values.__getitem__)),
            phase,
            module,
            grad=phase == FORWARD,
        )
        if any(isinstance(a, torch.Generator) for a in (*args, *kwargs.values())):
            raise RepriseError(
                f"the step cannot be traced: {func} draws from a generator of its own; draw before "
                "the step and pass what was drawn"
            )
        read = list(tensors_in(*args, kwargs))
        self._static_reads.append(self._on_statics(read))
        for tensor in read:
            number = self._numbers[_place(tensor)]
            if number >= 0:
                call.needs[number] = self._versions[number]
        written = list(tensors_in([_argument(at, args, kwargs) for at in mutated_positions(func)]))
        changed = self._on_statics([*written, *hidden_writes(func, args)])
        self._static_writes.append(changed)
        with below_autograd(call.grad):
            begin = time.perf_counter_ns()
            out = func(*args, **kwargs)
            call.time_ns = time.perf_counter_ns() - begin
        for tensor in tensors_in(out):
            key = _place(tensor)
            if key not in self._numbers:
                self._numbers[key] = len(self._sizes)
                call.writes.append(len(self._sizes))
                self._sizes.append(tensor.untyped_storage().nbytes())
                self._versions.append(1)
                self._stretch.append(stretch)
            call.outputs.append(self._value(tensor))
        for tensor in written:
            number = self._numbers[_place(tensor)]
            if number >= 0 and number not in call.mutates:
                call.mutates.append(number)
                self._versions[number] += 1
        call.kind = self._kind(call, args, kwargs, bool(changed))
        self._alive.append(out)
        self._real[node] = out
        self._values[node] = _with_values(out, self._value)
        self._calls.append(call)

    def _on_statics(self, tensors: list[Tensor]) -> set[int]:
        """Returns the static storages among those of the tensors."""
        keys = {_place(t) for t in tensors}
        return {key for key in keys if self._numbers[key] < 0}

    @staticmethod
    def _kind(call: Call, args: Any, kwargs: Any, changes_state: bool) -> OpKind:
        """Returns the kind of a call, from what it did and from its schema."""
        if not call.outputs or (changes_state and not hidden_writes(call.func, args)):
            return OpKind.ONCE
        if not call.writes and not call.mutates:
            return OpKind.VIEW
        return first_kind(call.func, args, kwargs)

    def _freeze_readers_of_changing_state(self) -> None:
        """Makes calls ONCE that read static memory which is written later, because static memory
        has no versions."""
        later: set[int] = set()
        for call, reads, writes in zip(
            reversed(self._calls),
            reversed(self._static_reads),
            reversed(self._static_writes),
            strict=True,
        ):
            hidden = bool(writes) and call.kind != OpKind.ONCE  # statistics that a replay skips
            if reads & later and call.kind != OpKind.VIEW and not hidden:
                call.kind = OpKind.ONCE
            later |= writes

    def _releases(self) -> list[int]:
        """Returns by storage the call after which the program releases it. A local variable lives
        until its function returns, so what a module's forward made is held to the last call before
        it returns or calls another module."""
        last: dict[int, int] = {}
        made_by: dict[int, int] = {}
        for number, call in enumerate(self._calls):
            for storage in call.writes:
                made_by[storage] = number
        for number, stretch in enumerate(self._stretches()):
            last[stretch] = number
        return [
            last[self._stretch[s]] if self._stretch[s] >= 0 else made_by[s]
            for s in range(len(self._sizes))
        ]

    def _stretches(self) -> list[int]:
        """Returns by call the stretch it belongs to: the calls between two entries or exits of
        modules."""
        nodes = [n for n in self._graph.graph.nodes if n.op == "call_function"]
        calls = [n for n in nodes if n.target is not operator.getitem]
        return [n.meta.get("reprise", (BACKWARD, "", -1))[2] for n in calls]


def _place(tensor: Tensor) -> int:
    """Returns the identity of a tensor's storage, which is unique while it is alive. Raises
    RepriseError for tensors that cannot be traced."""
    if tensor.layout != torch.strided or tensor.is_conj() or tensor.is_neg():
        raise RepriseError("the step cannot be traced: a tensor is sparse, conjugate or negated")
    return int(tensor.untyped_storage()._cdata)


def _argument(at: int | str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Returns an argument by position or name; None if it was not passed."""
    if isinstance(at, str):
        return kwargs.get(at)
    return args[at] if at < len(args) else None


def _with_values(out: Any, value: Callable[[Tensor], Value]) -> Any:
    """Returns a result with every tensor replaced by its value."""
    if isinstance(out, Tensor):
        return value(out)
    if isinstance(out, (list, tuple)):
        return [_with_values(o, value) for o in out]
    return out
