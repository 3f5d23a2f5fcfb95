# SPDX-License-Identifier: Apache-2.0
"""Checks the gradients of a planned step, bit for bit, against the same step without a plan.

    check = Check(model)                     # before the step
    check.forward(args, kwargs, outputs)     # after every forward of the root
    result = check.compare(call)             # after the backward, before the optimizer

The planned step is the real one: it trains. Kept from it are the generator states, the default
dtype and what else kernels read (ambient.py), the buffers and the inputs, and the gradients of the
outputs as they arrive. `compare` runs forward and backward once more without a plan from that
state, compares every parameter's gradient, what the forwards return and what they leave in the
buffers, and puts generators and buffers back. So nothing that happens outside the model (loss,
loader, logging) happens twice.
What is kept lies outside the allocator (outside.py): the step's peak is that of any other step.

Where gradients differ, the reference runs once more: one that differs from itself is no reference
(`repeatable`), and says nothing about the plan.

Needs the memory of an unplanned step and more, so that values are compared as a rule (values.py),
which needs none. A model whose forward cannot run once more unnoticed (repeatable.py), whose
parameters are moved or swapped within the step, have hooks of the program, or whose gradients are
differentiated again, has nothing compared here: `checked` is 0.

Gradients are known by digests (gradients.py). Left out: parameters that something other than the
model's forward reads too, and those whose gradients were changed between two backward passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn

from reprise.torch.check.gradients import Gradients
from reprise.torch.check.result import BUFFER, OUTPUT, CheckResult
from reprise.torch.check.written import buffers_of, digests_of
from reprise.torch.compiled.digest import digest
from reprise.torch.internals import guard
from reprise.torch.internals.ops import outputs_in
from reprise.torch.internals.outside import OutsideCopy, copied, restored
from reprise.torch.internals.subclass import is_wrapper
from reprise.torch.rerun.repeatable import Parameters, Remembered, hooked, observed
from reprise.torch.rerun.restart import on_gradient, restarting
from reprise.torch.rerun.snapshot import Buffers, Generators, Snapshot

Digest = bytes  # a field of a class below is called `bytes`


@dataclass(slots=True)
class _Forward:
    """What a second run needs of one forward of the root."""

    arguments: tuple[Any, Any]  # args and kwargs with copies for tensors
    bytes: int
    buffers: Buffers
    before: Snapshot
    # By backward pass (autograd's graph task), then by output.
    grads: dict[int, dict[int, OutsideCopy]] = field(default_factory=dict)
    # Digests of what it returned, and of what the reference returns.
    outputs: list[Digest] = field(default_factory=list)
    outputs_again: list[Digest] = field(default_factory=list)


class Check:
    """Compares the gradients of one sampled step with those of an unplanned run."""

    def __init__(self, model: nn.Module, left_out: frozenset[str]) -> None:
        self._model = model
        self._parameters = {
            name: p
            for name, p in model.named_parameters()
            if p.requires_grad and name not in left_out
        }
        self._left_out = len(left_out & {n for n, _ in model.named_parameters()})
        self._forwards: list[_Forward] = []
        # By name of a parameter whose gradient differs: the reference's.
        self.expected: dict[str, Tensor | None] = {}
        # Digests of buffers before the first forward, after the last one, and after that of the
        # reference; what the reference has left in those that differ.
        self._entered: dict[str, bytes] = {}
        self._left: dict[str, bytes] = {}
        self._again_left: dict[str, bytes] = {}
        self._buffers: dict[str, OutsideCopy] = {}
        self._handles: list[Any] = []
        self._now = Parameters(model)
        self._kept: Remembered | None = None
        # Nothing of the step may happen once more.
        self._once = hooked(model) or any(map(observed, self._parameters.values()))
        self._gradients = Gradients(self._parameters)

    def enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Remembers the state before a forward of the root."""
        self._once = self._once or self._now.differs(Parameters(self._model))
        if self._once:
            return
        self._kept = Remembered(self._model)
        if not self._forwards:
            self._entered = digests_of(self._model)
        copies: list[OutsideCopy] = []
        arguments = copied((args, kwargs), copies)
        buffers = Buffers(self._model)
        kept = sum(c.nbytes for c in copies)
        self._forwards.append(_Forward(arguments, kept, buffers, Snapshot(buffers)))

    def leave(self, outputs: Any) -> None:
        """Watches the outputs of a forward of the root for their gradients."""
        if self._kept is not None:
            self._once = self._once or self._kept.differs(Remembered(self._model))
            self._kept = None
        if self._once:
            return
        self._left = digests_of(self._model)
        forward = self._forwards[-1]
        forward.outputs = digests_of_outputs(outputs_in(outputs))
        for position, output in enumerate(outputs_in(outputs)):
            if output.requires_grad:
                self._handles.append(on_gradient(output, partial(self._keep, forward, position)))

    def _keep(self, forward: _Forward, position: int, grad: Tensor | None) -> None:
        if grad is None:
            # One of several outputs of a node, of which only another one is in the loss.
            return
        if torch.is_grad_enabled():
            self._once = True  # of this backward another one follows
            return
        of_task = forward.grads.setdefault(torch._C._current_graph_task_id(), {})
        of_task[position] = OutsideCopy(grad.detach())

    def stop(self) -> None:
        """Removes the hooks of this check."""
        self._gradients.stop()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    # ---- The reference ------------------------------------------------------------

    def compare(self, call: Callable[..., Any]) -> CheckResult:
        """Runs the reference through `call` (the root's forward) and compares."""
        self.stop()
        after, touched = self._gradients.after, self._gradients.touched
        left_out = len(self._parameters.keys() - after.keys() | touched) + self._left_out
        wanted = after.keys() - touched
        # None has come to an output: what the model returns is of a kind that nobody looks into.
        unseen = not any(forward.grads for forward in self._forwards)
        if self._once or unseen or not wanted or self._now.differs(Parameters(self._model)):
            return CheckResult(0, (), len(self._parameters) + self._left_out)
        extra = sum(
            g.nbytes for f in self._forwards for of in f.grads.values() for g in of.values()
        )
        extra += sum(f.buffers.bytes + f.bytes for f in self._forwards)
        extra += sum(b.nbytes for b in self._gradients.before.values() if b is not None)
        expected = self._from_here(call)
        differing = [n for n in after if n in wanted and self._differs(n, expected)]
        buffers = self._again_left
        others = [n for n, left in self._left.items() if buffers.get(n, left) != left]
        returned = [forward.outputs_again for forward in self._forwards]
        pairs = [p for f in self._forwards for p in zip_longest(f.outputs, f.outputs_again)]
        outputs = [f"{OUTPUT}{n}" for n, (own, again) in enumerate(pairs) if own != again]
        if (differing or others or outputs) and (
            self._digests(expected) != self._digests(self._from_here(call))
            or self._again_left != buffers
            or returned != [forward.outputs_again for forward in self._forwards]
        ):
            return CheckResult(0, (), left_out + len(wanted), extra, repeatable=False)
        for name in differing:
            grad = self._parameters[name].grad
            # One that was changed since cannot be put right.
            if grad is not None and digest(grad, self._parameters[name]) == after[name]:
                self.expected[name] = expected.get(name)
        written = sum(left != self._entered.get(n) for n, left in self._left.items())
        names = (*differing, *(BUFFER + name for name in others), *outputs)
        return CheckResult(
            len(wanted),
            names,
            left_out,
            extra,
            buffers=max(written, len(others)),
            outputs=sum(len(forward.outputs) for forward in self._forwards),
        )

    def put_right(self) -> None:
        """Replaces the gradients and buffers that differ by those of the reference, except what
        the program has changed since."""
        for name, grad in self.expected.items():
            own = self._parameters[name].grad
            if own is not None and grad is not None:
                own.copy_(grad)
        for name, buffer in buffers_of(self._model).items():
            copy = self._buffers.get(name)
            if copy is not None and digest(buffer) == self._left.get(name):
                with torch.no_grad():
                    buffer.copy_(copy.tensor())

    def _differs(self, name: str, expected: dict[str, Tensor]) -> bool:
        grad = expected.get(name)
        return grad is None or digest(grad, self._parameters[name]) != self._gradients.after[name]

    def _digests(self, grads: dict[str, Tensor]) -> dict[str, bytes]:
        return {name: digest(grad, self._parameters[name]) for name, grad in grads.items()}

    def _from_here(self, call: Callable[..., Any]) -> dict[str, Tensor]:
        """Returns the gradients of a run without a plan, and leaves generators and buffers as
        they are."""
        generators, buffers = Generators(), Buffers(self._model)
        try:
            return self._reference(call)
        finally:
            guard.surely(buffers.restore)
            guard.surely(generators.restore)

    def _reference(self, call: Callable[..., Any]) -> dict[str, Tensor]:
        """Returns the gradients of a run without a plan, added up as autograd adds them."""
        total = {n: b.tensor() for n, b in self._gradients.before.items() if b is not None}
        # Forwards whose outputs met in one backward are one graph.
        todo = list(self._forwards)
        while todo:
            group = [todo.pop(0)]
            while todo and group[-1].grads.keys() & todo[0].grads.keys():
                group.append(todo.pop(0))
            self._add_gradients(total, group, call)
        return total

    def _add_gradients(
        self, total: dict[str, Tensor], group: list[_Forward], call: Callable[..., Any]
    ) -> None:
        """Runs the forwards of a group again and adds their gradients to `total`, in one
        backward for every one that there was: sums depend on the order."""
        outputs = [self._again(forward, call, len(group) > 1) for forward in group]
        names = list(self._parameters)
        tasks = sorted({task for forward in group for task in forward.grads})
        for task in tasks:
            pairs = [
                (produced[position], copy)
                for forward, produced in zip(group, outputs, strict=True)
                for position, copy in forward.grads.get(task, {}).items()
            ]
            with restarting(pairs) as (heads, grads):
                found = torch.autograd.grad(
                    heads,
                    [self._parameters[n] for n in names],
                    grads,
                    retain_graph=task != tasks[-1],
                    allow_unused=True,
                )
            for name, grad in zip(names, found, strict=True):
                if grad is not None and self._gradients.counts(name, task):
                    total[name] = total[name] + grad if name in total else grad

    def _again(
        self, forward: _Forward, call: Callable[..., Any], several: bool
    ) -> tuple[Tensor, ...]:
        """Returns the outputs of a forward that runs again from its state. If there are several,
        none may write what the graph of another one has saved."""
        if several:
            forward.buffers.stand_in()
            forward.before.rewind_generators()
        else:
            forward.before.rewind()
        with forward.before.settings():
            args, kwargs = restored(forward.arguments)
            outputs = tuple(outputs_in(call(*args, **kwargs)))
        forward.outputs_again = digests_of_outputs(outputs)
        if forward is self._forwards[-1]:
            self._again_left = digests_of(self._model)
            self._buffers = {
                name: OutsideCopy(buffer)
                for name, buffer in buffers_of(self._model).items()
                if self._again_left[name] != self._left.get(name)
            }
        return outputs


def digests_of_outputs(outputs: Iterable[Tensor]) -> list[bytes]:
    """Returns a digest for each output of a forward that is a plain tensor."""
    return [digest(output) for output in outputs if not is_wrapper(output)]
