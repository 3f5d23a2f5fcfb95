# SPDX-License-Identifier: Apache-2.0
"""A backward before the first plan runs out of memory: once more, with its saved tensors elsewhere.

    again = PlainRetry(job, ...); again.open()   # a plain step begins
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

from reprise.torch.compiled import fast
from reprise.torch.internals import guard
from reprise.torch.internals.distributed import several_ranks
from reprise.torch.internals.engine import around, no_longer
from reprise.torch.internals.ops import tensors_in
from reprise.torch.internals.outside import OutsideCopy
from reprise.torch.internals.stale import GONE, refuse_stale
from reprise.torch.internals.subclass import saved_alias, version_of
from reprise.torch.job.job import EagerJob
from reprise.torch.recovery.failed_graph import release_graph
from reprise.torch.recovery.oom import is_oom
from reprise.torch.recovery.progress import Progress
from reprise.torch.rerun.repeatable import Parameters, Remembered, hooked, observed
from reprise.torch.rerun.restart import Entry, Outputs, is_ordinary
from reprise.torch.rerun.snapshot import Buffers, Generators, Snapshot

__all__ = ["KeptTensor", "PlainRetry"]


class KeptTensor:
    """A saved tensor that stays where it is, until it is let go."""

    __slots__ = ("__weakref__", "alias", "version")

    def __init__(self, tensor: Tensor) -> None:
        self.alias: Tensor | None = saved_alias(tensor)
        self.version = version_of(self.alias)

    def plainly(self) -> Tensor:
        """Returns the tensor as autograd would. Raises its error if the tensor was freed or
        modified."""
        if self.alias is None:
            raise guard.told(RuntimeError(GONE))
        if version_of(self.alias) != self.version:
            refuse_stale(self.alias, self.version)
        return self.alias


class PlainRetry:
    """Runs one plain step again from its forward if its backward runs out of memory."""

    def __init__(
        self,
        job: EagerJob,
        progress: Progress,
        forward_again: Callable[..., Any],
        failed: Callable[[str, str], None],
    ) -> None:
        """`forward_again`: runs a forward from its arguments, the state before it and the reason;
        `failed`: notes where the step ran out of memory, and why, if it cannot run again."""
        self._job = job
        self._progress = progress
        self._forward_again = forward_again
        self._failed = failed
        self._kept: list[weakref.ref[KeptTensor]] = []
        self._outputs: Outputs | None = None
        self._entry: Entry | None = None
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
        handed to `keep`; what is not is let go by the native engine of the tape, or not at all."""
        began = self._clock()
        model = self._job.model
        self._forwards += 1
        before = Remembered(model)
        self._called = (call, args, kwargs)
        self._before = Snapshot(Buffers(model))
        self._job.step.times.leave_out(self._clock() - began)
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
            and not any(observed(p) for p in model.parameters())
        )
        self._outputs = Outputs(out) if self._possible else None
        self._job.step.times.leave_out(self._clock() - began)
        return out

    def _clock(self) -> int:
        """Returns a time in nanoseconds, for what is left out of the step's own; always 0 on a
        GPU, where it hides behind the device."""
        return time.thread_time_ns() if self._job.device.type == "cpu" else 0

    # ---- The backward -----------------------------------------------------------------

    def open(self) -> None:
        """Calls of the engine come here from now on."""
        self._open = True
        around(self._run)

    def close(self) -> None:
        """Stops watching and releases everything. Idempotent."""
        no_longer(self._run)
        self._open = self._possible = False
        if self._entry is not None:
            self._entry.stop()
        self._outputs, self._entry, self._kept = None, None, []
        self._called = None

    @property
    def would_help(self) -> bool:
        """Whether the backward could run again if memory ran out now."""
        return self._running and self._can()

    def _run(self, engine: Any, heads: Any, *rest: Any, **options: Any) -> Any:
        if not self._open or self._running or not options.get("accumulate_grad"):
            return engine(heads, *rest, **options)
        self._running = True
        self._enter(heads, rest)
        try:
            out = engine(heads, *rest, **options)
            self._possible = False  # gradients are there
            return out
        except BaseException as error:
            if not is_oom(error):
                self._possible = False
                raise
            guard.quietly(self._progress.ran_out, error)
            text = (str(error).splitlines() or [type(error).__name__])[0]
            if not self._can():
                self._failed("the backward", text)
                raise
        finally:
            self._running = False
        # Outside the handler: its traceback would keep what the failed backward held.
        self._take_again(heads, text)
        return ()

    def _enter(self, heads: Any, rest: tuple[Any, ...]) -> None:
        """Keeps the gradients that an ordinary backward brings to the outputs. Nothing runs again
        where it passes by a parameter on its way there, or is the second one."""
        if not self._possible or self._outputs is None or not is_ordinary(rest):
            self._possible = False
            return
        self._entry = Entry(self._outputs, heads, lambda _, grad: OutsideCopy(grad))
        self._possible = self._entry.concerned and self._entry.alone
        if self._possible:
            self._entry.watch()

    def _can(self) -> bool:
        return (
            self._possible
            and self._entry is not None
            and self._entry.complete
            and not self._parameters.differs(Parameters(self._job.model))
            and not several_ranks()
        )

    def _take_again(self, heads: Any, why: str) -> None:
        """Runs the forward again in a way that needs less memory, and its backward."""
        entry, called = self._entry, self._called
        assert entry is not None
        assert called is not None
        release_graph(heads)
        for reference in self._kept:
            kept = reference()
            if kept is not None:
                kept.alias = None
        with torch.no_grad():
            for parameter in self._job.model.parameters():
                parameter.grad = None
        after = Generators()
        self.close()
        out = self._forward_again(*called, self._before, why)
        after.restore()
        entry.restart(out)
