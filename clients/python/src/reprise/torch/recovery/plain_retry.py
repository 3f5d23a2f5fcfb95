# SPDX-License-Identifier: Apache-2.0
"""A backward before the first plan runs out of memory: once more, with its saved tensors elsewhere.

    again = PlainRetry(session); again.open()     # a plain step begins
    again.forward(call, args, kwargs, ...)   # its forward; again.keep(x): autograd saves x of it
    again.close()                            # the step is over

The graph of a backward that failed is spent, its gradients are half there. What had been handed to
the model's outputs is not: so the gradients of the outputs are copied as they arrive (outside the
allocator), and when memory runs out after that, what is left of the graph is let go, the forward
runs again in a way that needs less, and the backward from its outputs on.

Only where that is the same step to the bit, else the error goes on to the program:

    one process, one forward in this step, and its first backward, an ordinary `loss.backward()`
    no parameter had a gradient before it, and between outputs and loss there is none
    no input of the model wants a gradient: its graph would be spent too
    the forward can run once more unnoticed (repeatable.py), no parameter tells of its gradients

Whoever catches the error and goes on takes the next step in the other way.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from reprise.torch.check.repeatable import Parameters, Remembered, hooked
from reprise.torch.check.state import Autocast, Buffers, Generators
from reprise.torch.compiled import fast
from reprise.torch.internals import guard
from reprise.torch.internals.engine import around, no_longer
from reprise.torch.internals.ops import tensors_in
from reprise.torch.internals.outside import OutsideCopy
from reprise.torch.internals.stale import GONE, refuse_stale
from reprise.torch.internals.subclass import saved_alias, version_of
from reprise.torch.recovery.failed_graph import let_go
from reprise.torch.recovery.job import Job
from reprise.torch.recovery.oom import is_oom

__all__ = ["KeptTensor", "PlainRetry", "told"]


class KeptTensor:
    """A saved tensor that stays where it is, until it is let go."""

    __slots__ = ("__weakref__", "alias", "version")

    def __init__(self, tensor: Tensor) -> None:
        self.alias: Tensor | None = saved_alias(tensor)
        self.version = version_of(self.alias)

    def plainly(self) -> Tensor:
        """The tensor, as autograd would hand it out."""
        if self.alias is None:
            raise guard.told(RuntimeError(GONE))
        if version_of(self.alias) != self.version:
            refuse_stale(self.alias, self.version)
        return self.alias


class PlainRetry:
    """Runs one plain step again from its forward if its backward runs out of memory."""

    def __init__(self, session: Job) -> None:
        self._session = session
        self._kept: list[weakref.ref[KeptTensor]] = []
        self._outputs: list[Any] = []  # nodes of autograd
        self._grads: dict[int, OutsideCopy | None] = {}
        self._reached: list[int] = []
        self._handles: list[Any] = []
        self._forwards = 0
        self._called: tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]] | None = None
        self._possible = True
        self._open = self._running = False

    # ---- The forward ----------------------------------------------------------------

    def keep(self, kept: KeptTensor) -> None:
        """Notes a tensor that autograd has saved."""
        self._kept.append(weakref.ref(kept))

    def forward(
        self,
        call: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        kept: bool,
    ) -> Any:
        """Runs it, and remembers what a second one needs. `kept`: all that autograd saves of it is
        handed to `keep`; what is not is let go by the compiled half of the tape, or not at all."""
        began = self._clock()
        model = self._session.model
        self._forwards += 1
        before = Remembered(model)
        self._called = (call, args, kwargs)
        self._generators, self._buffers, self._autocast = Generators(), Buffers(model), Autocast()
        self._session.step.times.leave_out(self._clock() - began)
        out = call(*args, **kwargs)
        began = self._clock()
        self._parameters = Parameters(model)
        self._possible = (
            self._forwards == 1
            and (kept or fast.library() is not None)
            and not hooked(model)
            and not before.differs(Remembered(model))
            and not any(t.requires_grad for t in tensors_in(args, kwargs))
            and all(p.is_leaf and p.grad is None for p in model.parameters())
            and not any(told(p) for p in model.parameters())
        )
        for position, tensor in enumerate(tensors_in(out) if self._possible else ()):
            self._outputs.append(tensor.grad_fn)
            if tensor.requires_grad:
                self._handles.append(tensor.register_hook(guard.quiet(self._arrived(position))))
        self._session.step.times.leave_out(self._clock() - began)
        return out

    def _clock(self) -> int:
        """To leave out of a step what it does not do: on a GPU that hides behind the device."""
        return time.thread_time_ns() if self._session.device.type == "cpu" else 0

    def _arrived(self, position: int) -> Callable[[Tensor | None], None]:
        def hook(grad: Tensor | None) -> None:
            if torch.is_grad_enabled() or position in self._grads:
                self._possible = False  # another backward will follow, or has been
            else:
                # None: one of several outputs of a node, of which only another is in the loss.
                self._grads[position] = None if grad is None else OutsideCopy(grad)

        return hook

    # ---- The backward -----------------------------------------------------------------

    def open(self) -> None:
        """Calls of the engine come here from now on."""
        self._open = True
        around(self._run)

    def close(self) -> None:
        """Stops watching and releases everything. Idempotent."""
        no_longer(self._run)
        self._open = self._possible = False
        for handle in self._handles:
            handle.remove()
        self._handles, self._outputs, self._grads, self._kept = [], [], {}, []
        self._called = None

    @property
    def would_help(self) -> bool:
        """True if the backward could run again, should memory run out now."""
        return self._running and self._can()

    def _run(self, engine: Any, heads: Any, *rest: Any, **options: Any) -> Any:
        if not self._open or self._running or not options.get("accumulate_grad"):
            return engine(heads, *rest, **options)
        self._running = True
        self._reached = self._reach(heads, rest) if self._possible else []
        try:
            out = engine(heads, *rest, **options)
            self._possible = False  # gradients are there
            return out
        except BaseException as error:
            if not is_oom(error):
                self._possible = False
                raise
            guard.quietly(self._session.progress.ran_out, error)
            text = (str(error).splitlines() or [type(error).__name__])[0]
            if not self._can():
                self._session.startup.failed("the backward", text)
                raise
        finally:
            self._running = False
        # Outside the handler: its traceback would keep what the failed backward held.
        self._take_again(heads, text)
        return ()

    def _reach(self, heads: Any, rest: tuple[Any, ...]) -> list[int]:
        """Positions of the outputs that this backward comes to from outside; none: it is not an
        ordinary one, or passes by a parameter on its way."""
        _, keep, create, inputs = (*rest, None, None, None, None)[:4]
        if keep or create or inputs:
            return []
        ours: dict[Any, list[int]] = {}
        for at, node in enumerate(self._outputs):
            if node is not None:
                ours.setdefault(node, []).append(at)
        todo = [head.grad_fn for head in heads if isinstance(head, Tensor)]
        seen, found = set(), []
        while todo:
            node = todo.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            if node in ours:
                found += ours[node]
            elif hasattr(node, "variable"):
                return []
            else:
                todo.extend(following for following, _ in node.next_functions)
        return sorted(found)

    def _can(self) -> bool:
        model = self._session.model
        return (
            self._possible
            and bool(self._reached)
            and all(position in self._grads for position in self._reached)
            and not self._parameters.differs(Parameters(model))
            and self._session.planning.coordinator is None
        )

    def _take_again(self, heads: Any, why: str) -> None:
        session = self._session
        model = session.model
        let_go(heads)
        for reference in self._kept:
            kept = reference()
            if kept is not None:
                kept.alias = None
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.grad = None
        grads = {at: grad for at in self._reached if (grad := self._grads[at]) is not None}
        assert self._called is not None
        called, autocast = self._called, self._autocast
        after, buffers, generators = Generators(), self._buffers, self._generators
        self.close()
        generators.restore()
        buffers.restore()
        out = session.attempts.forward_again(*called, autocast, why)
        after.restore()
        found = list(tensors_in(out))
        del out
        handles = [
            # Of an output that another one was made from, that is part of it already.
            found[at].register_hook(lambda _, copy=copy: copy.tensor())
            for at, copy in grads.items()
        ]
        torch.autograd.backward([found[at] for at in grads], [c.tensor() for c in grads.values()])
        for handle in handles:
            handle.remove()


def told(parameter: Tensor) -> bool:
    """Returns whether a parameter has hooks that observe its gradients."""
    return bool(parameter._backward_hooks) or bool(
        getattr(parameter, "_post_accumulate_grad_hooks", None)
    )
