# SPDX-License-Identifier: Apache-2.0
"""Restarts a backward at the outputs of a forward that has run again.

    outputs = Outputs(out)                           # after the first forward
    entry = Entry(outputs, heads, keep)              # before its backward, from the loss
    entry.watch(); ...the backward fails...; entry.stop()
    entry.restart(out)                               # `out`: what the second forward returned

A backward reaches the outputs of a model from outside, from the loss. The gradients that it brings
there are kept, with what hooks of the program have made of them. So the loss is not computed again,
and nothing that happens outside the model happens twice.

    copies = OutputGradients(small)
    copy = copies.keep(position, grad)    # in the place of the last one of this output
    copy.tensor()                         # as it came

They are kept in host memory that is used step after step. A new mapping would be paged in every
time, which takes longer than the copy. From a GPU a gradient is copied while the backward goes on
(not run on one).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from reprise.torch.internals import guard
from reprise.torch.internals.host import host_bytes
from reprise.torch.internals.ops import tensors_in
from reprise.torch.internals.outside import OutsideCopy, spanned
from reprise.torch.internals.subclass import bytes_of, is_wrapper


def is_ordinary(rest: Sequence[Any]) -> bool:
    """Returns whether a call of autograd's engine neither keeps its graph nor is differentiated
    again, and is for all leaves. `rest`: its positional arguments after the heads."""
    _, keep, create, inputs = (*rest, None, None, None, None)[:4]
    return not (keep or create or inputs)


def on_gradient(output: Tensor, told: Callable[[Tensor | None], None]) -> Any:
    """Calls `told` with the gradient of an output in every backward, after hooks of the program
    have changed it. Returns a handle with `remove()`."""
    node, number = output.grad_fn, output.output_nr
    if node is None:
        return output.register_hook(guard.quiet(told))
    return node.register_prehook(guard.quiet(lambda grads: told(grads[number])))


class Outputs:
    """Where the outputs of one forward are in autograd's graph, which is not kept alive."""

    def __init__(self, out: Any) -> None:
        self.bytes = 0  # of their gradients
        self._positions: dict[tuple[int, str, int], int] = {}
        for position, tensor in enumerate(tensors_in(out)):
            node = tensor.grad_fn
            if node is not None:
                key = (node._sequence_nr(), node.name(), tensor.output_nr)
                self._positions.setdefault(key, position)
                self.bytes += bytes_of(tensor)

    def reached(self, heads: Any) -> tuple[list[tuple[Any, int, int]], bool]:
        """Walks from `heads` to the outputs. Returns the nodes of the outputs that a backward
        reaches from outside, each with the number of the output among those of its node and its
        position; and whether neither a parameter nor another part of the model is on the way."""
        known = {(nr, name) for nr, name, _ in self._positions}
        todo = [(h.grad_fn, h.output_nr) for h in heads if isinstance(h, Tensor)]
        found, seen, alone = [], set(), True
        while todo:
            node, number = todo.pop()
            if node is None or (node, number) in seen:
                continue
            seen.add((node, number))
            name = (node._sequence_nr(), node.name())
            if name in known:
                position = self._positions.get((*name, number))
                if position is None:
                    alone = False  # an output of the same call that the model did not return
                else:
                    found.append((node, number, position))
            elif hasattr(node, "variable"):
                alone = False
            else:
                todo.extend(node.next_functions)
        return found, alone


class Entry:
    """The gradients that one backward brings to the outputs of a forward."""

    def __init__(
        self, outputs: Outputs, heads: Any, keep: Callable[[int, Tensor], OutsideCopy | Arrived]
    ) -> None:
        """`keep` makes a copy of the gradient of an output, given its position."""
        self._nodes, self.alone = outputs.reached(heads)
        self._positions = sorted({position for _, _, position in self._nodes})
        self._keep = keep
        self._grads: dict[int, OutsideCopy | Arrived | None] = {}  # None: no gradient came
        self._again = False  # a gradient has come a second time
        self._handles: list[Any] = []

    @property
    def concerned(self) -> bool:
        """Whether the backward reaches an output."""
        return bool(self._positions)

    @property
    def complete(self) -> bool:
        """Whether the gradients of all outputs that it reaches have come, each once."""
        return sorted(self._grads) == self._positions and not self._again

    def watch(self) -> None:
        """Keeps the gradients that come from now on."""
        for node, number, position in self._nodes:
            self._handles.append(
                node.register_prehook(guard.quiet(partial(self._kept, number, position)))
            )
        self._nodes = []  # no graph is kept alive

    def _kept(self, number: int, position: int, grads: tuple[Any, ...]) -> None:
        grad = grads[number]
        self._again |= position in self._grads
        self._grads[position] = None if grad is None else self._keep(position, grad)

    def stop(self) -> None:
        """Removes the hooks. Calling it again does nothing."""
        while self._handles:
            self._handles.pop().remove()

    def restart(self, out: Any, inputs: list[Tensor] | None = None) -> None:
        """Runs the backward from the outputs `out` of a second forward. `inputs`: the parameters
        that get gradients; None: all."""
        found = list(tensors_in(out))
        del out
        if inputs is not None and not inputs:
            return
        kept = {at: grad for at in self._positions if (grad := self._grads[at]) is not None}
        with restarting((found[at], grad) for at, grad in kept.items()) as (heads, grads):
            torch.autograd.backward(heads, grads, inputs=inputs)


@contextmanager
def restarting(
    pairs: Iterable[tuple[Tensor, OutsideCopy | Arrived]],
) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
    """Yields outputs and their gradients, for a backward inside of the context in which each output
    has just that gradient."""
    heads: list[Tensor] = []
    grads: list[Tensor] = []
    handles: list[Any] = []
    try:
        for head, copy in pairs:
            heads.append(head)
            grads.append(copy.tensor())
            # What comes from another output that was made from this one is part of it already.
            handles.append(head.register_hook(lambda _, copy=copy: copy.tensor()))
        yield heads, grads
    finally:
        for handle in handles:
            handle.remove()


# ---- Copies of gradients ---------------------------------------------------------


class Arrived:
    """A copy in host memory of the gradient of one output."""

    __slots__ = ("_flat", "_form")

    def __init__(self, grad: Tensor) -> None:
        self._form = _form_of(grad)
        count = spanned(grad) * grad.element_size()
        self._flat = host_bytes(max(1, count), grad.device)[:count].view(grad.dtype)
        self.take(grad)

    @property
    def nbytes(self) -> int:
        """The bytes of host memory that the copy takes."""
        return self._flat.nbytes

    def fits(self, grad: Tensor) -> bool:
        """Returns whether a gradient can be copied to the place of this one."""
        return _form_of(grad) == self._form

    def take(self, grad: Tensor) -> None:
        """Copies a gradient to the place of the one before."""
        flat = grad.detach().as_strided((len(self._flat),), (1,), grad.storage_offset())
        self._flat.copy_(flat, non_blocking=True)

    def tensor(self) -> Tensor:
        """Returns the gradient on the device that it came from, with its strides: kernels may
        choose another algorithm for others."""
        size, stride, _, device = self._form
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        made = torch.empty_like(self._flat, device=device)
        return made.copy_(self._flat).as_strided(size, stride)


class OutputGradients:
    """The copies of one model: one per output, by its position."""

    def __init__(self, small: int) -> None:
        """Keeps no copies yet. The memory of those above `small` bytes is not kept for the next
        step."""
        self._small = small
        self._copies: dict[int, Arrived] = {}

    def keep(self, position: int, grad: Tensor) -> OutsideCopy | Arrived:
        """Returns a copy of the gradient of an output, which is valid until the next one."""
        if is_wrapper(grad) or grad.is_nested:
            return OutsideCopy(grad)
        known = self._copies.pop(position, None)
        if known is None or not known.fits(grad):
            known = Arrived(grad)
        else:
            known.take(grad)
        if known.nbytes <= self._small:
            self._copies[position] = known
        return known

    def clear(self) -> None:
        """Releases the memory."""
        self._copies.clear()


def _form_of(grad: Tensor) -> tuple[Any, ...]:
    return grad.size(), grad.stride(), grad.dtype, grad.device
