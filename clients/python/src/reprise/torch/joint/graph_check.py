# SPDX-License-Identifier: Apache-2.0
"""Checks one step of a model that is compiled part by part: every call of a graph against the same
graph compiled without a plan, bit for bit.

    check = GraphCheck(model, plain, aside)  # plain: by graph, what was compiled without a plan
    call = check.begin(graph, args)          # of a graph, in the forward; None: is not compared
    check.end(call, out, args)               # it has returned
    result = check.compare(...)              # after the backward: what was found

When a call has returned, the graph runs once more without a plan, from copies of its inputs and in
the state of its generators; when its backward is over, forward and backward, with the gradients
that came. So the check needs the memory of one graph and not of the step, nothing outside the
graphs happens twice, and no collective runs that other ranks do not run: FSDP's parameters are
gathered at these moments. Outputs and gradients that differ are replaced by those of the reference
before anything reads them, so the step is the one without a plan.

The copies lie outside the allocator (outside.py). A reference that differs from itself says nothing
about the plan (`repeatable`). Not compared, and counted as left out: calls whose node of autograd
is not found, or that are differentiated again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, saved_tensors_hooks

from reprise.torch.check.result import BUFFER, OUTPUT, CheckResult
from reprise.torch.check.verify import digests_of_outputs
from reprise.torch.compiled.digest import digest
from reprise.torch.internals import guard
from reprise.torch.internals.ops import outputs_in
from reprise.torch.internals.outside import OutsideCopy
from reprise.torch.internals.subclass import is_wrapper
from reprise.torch.rerun.snapshot import Generators, Snapshot

Compiled = Callable[..., Any]
Grads = tuple[Tensor | None, ...]
# What AOTAutograd calls the function of a graph, and how far its outputs are views of what it made.
_NODE = "CompiledFunctionBackward"
_NEAR = 4


class GraphCheck:
    """Compares the calls of the graphs of one step."""

    def __init__(
        self,
        model: nn.Module,
        plain: Mapping[int, Compiled],
        aside: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """`aside`: makes a context for what runs only to be compared, which is no part of the
        step's memory."""
        self._model = model
        self._plain = plain
        self._aside = aside
        self._handles: list[Any] = []
        self._checked = self._outputs = self._buffers = self._left_out = self._bytes = 0
        self._differing: list[str] = []
        self._repeatable = True
        self._error: Exception | None = None  # of a reference that did not run

    def begin(self, graph: int, args: tuple[Any, ...]) -> _Call | None:
        """Keeps what a second run of a call that begins needs."""
        if not torch.is_grad_enabled() or in_backward():
            return None
        if graph not in self._plain:
            self._left_out += 1
            return None
        return _Call(self._plain[graph], args)

    def end(self, call: _Call, out: Any, args: tuple[Any, ...]) -> None:
        """Notes what a call has returned, and has its backward compared."""
        node = node_of(out, args)
        if node is None:
            self._left_out += 1
            return
        try:
            with self._aside():
                call.left(out, args, node)
        except Exception as error:  # the reference is ours: out of memory, mostly
            self._error = error
            self._left_out += 1
            return
        self._bytes += call.nbytes
        self._handles.append(node.register_hook(guard.quiet(partial(self._ended, call))))

    def _ended(self, call: _Call, grads: Grads, came: Grads) -> Grads | None:
        """Compares what a backward has made: the gradients of the inputs of its graph. Returns what
        takes their place; None: nothing does."""
        try:
            with self._aside():
                return self._compared(call, grads, came)
        except Exception as error:  # the reference is ours: out of memory, mostly
            self._error = error
            self._left_out += 1
            return None

    def _compared(self, call: _Call, grads: Grads, came: Grads) -> Grads | None:
        if torch.is_grad_enabled():  # this backward is differentiated
            self._left_out += 1
            return None
        generators = Generators()
        try:
            expected = call.again(came)
            names = [] if expected is None else call.differing(grads, expected)
            again = call.again(came) if names else None
        finally:
            guard.surely(generators.restore)
        unsteady = again is not None and again.digests() != (expected and expected.digests())
        if expected is None or len(expected.grads) != len(grads) or unsteady:
            self._repeatable &= not unsteady
            self._left_out += 1
            return None
        self._checked += sum(grad is not None for grad in grads)
        self._outputs += len(expected.outputs)
        self._buffers += len(expected.written)
        self._differing += [self._named(name, call) for name in names]
        call.put_right(expected)
        wrong = {name for name in names if isinstance(name, int)}
        if not wrong:
            return None
        return tuple(expected.grads[at] if at in wrong else own for at, own in enumerate(grads))

    def _named(self, name: str | int, call: _Call) -> str:
        """Returns the name of a gradient: that of its parameter, or where it goes."""
        if isinstance(name, str):
            return name
        variable = call.leaves[name]
        own = (n for n, p in self._model.named_parameters() if p is variable)
        return next(own, f"the gradient of input {name} of a compiled part")

    def stop(self) -> None:
        """Removes the hooks of this check."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def compare(self, _: Compiled) -> CheckResult:
        """Returns what was found in the step. Raises what has kept a reference from running."""
        self.stop()
        if self._error is not None:
            raise self._error
        return CheckResult(
            self._checked,
            tuple(self._differing),
            self._left_out,
            self._bytes,
            repeatable=self._repeatable,
            buffers=self._buffers,
            outputs=self._outputs,
        )


@dataclass(slots=True)
class _Again:
    """What the reference of one call makes."""

    grads: Grads
    outputs: list[bytes]
    written: dict[int, Tensor]  # by input: one that it changes

    def digests(self) -> list[bytes | None]:
        """Returns what tells whether another run of the reference makes the same."""
        made: Iterable[Tensor | None] = (*self.grads, *self.written.values())
        return [*self.outputs, *(None if t is None else digest(t) for t in made)]


class _Call:
    """One call of a graph: what a second run of it needs, and what the first one left."""

    def __init__(self, plain: Compiled, args: tuple[Any, ...]) -> None:
        self._plain = plain
        # A parameter is the same in the backward; FSDP frees and gathers it meanwhile.
        self._args = [OutsideCopy(a) if _is_watched(a) else a for a in args]
        self._before = Snapshot()
        self._versions = _versions(args)
        self.leaves: list[Any] = []  # by gradient: its parameter; None where it goes on
        self._outputs: list[bytes] = []
        # Inputs that it has changed, as it left them: the tensor, its version and its digest.
        self._written: dict[int, tuple[Tensor, int, bytes]] = {}

    @property
    def nbytes(self) -> int:
        """How many bytes the copies of its inputs take, outside the allocator."""
        return sum(a.nbytes for a in self._args if isinstance(a, OutsideCopy))

    def left(self, out: Any, args: tuple[Any, ...], node: Any) -> None:
        """Notes what the planned call has returned and changed, and to which leaves its gradients
        go. Not the node: it will hold what holds this."""
        self.leaves = [getattr(f, "variable", None) for f, _ in node.next_functions]
        outputs = _plain_outputs(out)
        self._outputs = digests_of_outputs(outputs)
        for at in _changed(self._versions, args):
            self._written[at] = args[at], args[at]._version, digest(args[at])
        generators = Generators()
        try:
            self._put_outputs_right(outputs)
        finally:
            guard.surely(generators.restore)

    def _put_outputs_right(self, outputs: list[Tensor]) -> None:
        """Gives outputs that differ the values of the reference, which the rest of the step reads.
        Their versions stay: autograd may have saved them."""
        with saved_tensors_hooks(_as_it_is, _as_it_is):  # the program's count what is saved
            expected = _plain_outputs(self._forward()[0])
        for own, left, other in zip(outputs, self._outputs, expected, strict=False):
            if left != digest(other):
                own.data.copy_(other.data)

    def again(self, came: Grads) -> _Again | None:
        """Runs the graph without a plan from the same state, and its backward with the gradients
        that came; None if its node is not found."""
        out, args, before = self._forward()
        node = node_of(out, args)
        if node is None:
            return None
        outputs = digests_of_outputs(outputs_in(out))
        written = {at: args[at] for at in _changed(before, args)}
        del out
        heads = [(GradientEdge(node, n), grad) for n, grad in enumerate(came) if grad is not None]
        edges = [edge if edge[0] is not None else None for edge in node.next_functions]
        wanted = [GradientEdge(*edge) for edge in edges if edge is not None]
        made = iter(
            torch.autograd.grad(
                [edge for edge, _ in heads],
                wanted,
                [grad for _, grad in heads],
                allow_unused=True,
            )
            if heads and wanted
            else ()
        )
        return _Again(
            tuple(None if edge is None else next(made) for edge in edges), outputs, written
        )

    def _forward(self) -> tuple[Any, list[Any], list[int]]:
        """Runs the graph without a plan from the same state. Returns its output, its arguments, and
        their versions before."""
        args = [a.tensor() if isinstance(a, OutsideCopy) else a for a in self._args]
        for at in self._written:  # which this run changes, too, and the copy is needed once more
            args[at] = args[at].detach().clone().requires_grad_(args[at].requires_grad)
        before = _versions(args)
        self._before.rewind()
        with self._before.settings():
            out = self._plain(*args)
        return out, args, before

    def differing(self, grads: Grads, expected: _Again) -> list[str | int]:
        """Returns which gradients, by number, and which outputs and buffers differ."""
        names: list[str | int] = [
            at
            for at, (own, other) in enumerate(zip(grads, expected.grads, strict=False))
            if (own is None) != (other is None)
            or (own is not None and other is not None and digest(own) != digest(other, own))
        ]
        outputs = zip(self._outputs, expected.outputs, strict=False)
        names += [f"{OUTPUT}{n}" for n, (own, other) in enumerate(outputs) if own != other]
        for at, (_, _, left) in self._written.items():
            other = expected.written.get(at)
            if other is None or digest(other) != left:
                names.append(f"{BUFFER}{at} of a compiled part")
        return names

    def put_right(self, expected: _Again) -> None:
        """Replaces what the planned call has changed otherwise than the reference, unless the
        program has changed it since."""
        for at, (tensor, version, left) in self._written.items():
            other = expected.written.get(at)
            if other is not None and digest(other) != left and tensor._version == version:
                with torch.no_grad():
                    tensor.copy_(other)


def _plain_outputs(out: Any) -> list[Tensor]:
    return [output for output in outputs_in(out) if not is_wrapper(output)]


def _as_it_is(tensor: Tensor) -> Tensor:
    return tensor


def in_backward() -> bool:
    """Returns whether this is called in a backward, as by a checkpoint of the program."""
    return int(torch._C._current_graph_task_id()) >= 0


def node_of(out: Any, args: Iterable[Any]) -> Any:
    """Returns the node of autograd of the graph that has made these outputs from these inputs; None
    if there is none, or more than one."""
    before = {a.grad_fn for a in args if isinstance(a, Tensor) and a.grad_fn is not None}
    found = set()
    for output in outputs_in(out):
        level: list[Any] = [output.grad_fn]
        for _ in range(_NEAR):
            level = [node for node in level if node is not None and node not in before]
            found |= {node for node in level if node.name() == _NODE}
            level = [f for node in level if node.name() != _NODE for f, _ in node.next_functions]
    return found.pop() if len(found) == 1 else None


def _versions(args: Iterable[Any]) -> list[int]:
    return [a._version if _is_watched(a) else 0 for a in args]


def _changed(before: list[int], args: Iterable[Any]) -> list[int]:
    """Returns which arguments have been written since they had these versions."""
    pairs = zip(before, _versions(args), strict=True)
    return [at for at, (old, now) in enumerate(pairs) if old != now]


def _is_watched(value: Any) -> bool:
    return isinstance(value, Tensor) and not isinstance(value, nn.Parameter)
