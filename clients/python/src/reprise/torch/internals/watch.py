# SPDX-License-Identifier: Apache-2.0
"""Watches what the program writes between the forward of a planned step and its last replay: for as
long as its graph lives, whatever forwards and optimizer steps come in between.

    watch(run)                       # the root's forward is over
    ...the program's own code: the loss, whatever it does to tensors it holds...
    loss.backward()                  # ...its hooks, the backwards of its own functions...
    others = waiting(run)            # another forward begins, with a mode or a gate of its own...
    tell(others, func, args, kwargs) # ...which sees what is written
    before_step(optimizer)           # an optimizer is about to write parameters
    resume()                         # that is over

A recorded call holds its inputs, and the program may write one of them after the forward: it fills
a static input buffer with the next batch, resets a hidden state in place, steps a parameter as soon
as its gradient exists, or while the graph of an earlier step still waits. Without a plan that is
allowed if autograd has not saved the tensor, so it must be allowed under a plan: just before the
write, the record gets a private copy of the tensor. The captured step need not have contained that
write.

Between forward and backward the gate of the native engine sees every op, in C++ (compiled/gate.h).
Where there is none, a dispatch mode does. It must not be active during the backward (autograd would
add gradients out of place, and every op would pass through Python), and it cannot be removed in the
middle of one, so the one call that starts the engine is wrapped while a run is watched. During the
backward the engine writes nothing that a record holds, but Python code may. A function mode sees
what Python calls and nothing of what the engine does, and it runs a call that may write a held
tensor under a dispatch mode.

A parameter that is gathered for each use (capture/lent.py) cannot be copied: between two uses it is
nowhere. If the program writes what it is gathered from, the backward raises an error.

A write that neither sees, such as that of a hook in another language, shows only in the version
counter, and the replay raises an error (replay.py).
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from reprise.torch.internals.calls import Call
from reprise.torch.internals.engine import around, no_longer
from reprise.torch.internals.guard import again, quietly, surely
from reprise.torch.internals.modes import FunctionMode, Mode, Op
from reprise.torch.internals.ops import PLAIN_TYPES, all_written_by, may_write, tensors_in
from reprise.torch.internals.sharding import unwatched

# A run whose records may still be replayed (tape/tape_run.py).
Watched = Any

_runs: list[weakref.ref[Watched]] = []
_open: list[_Between] = []


def watch(run: Watched) -> None:
    """Watches writes until nothing of the run can be replayed any more."""
    for known in _runs:
        if known() is run:
            break
    else:
        _runs.append(weakref.ref(run))
    resume()


def waiting(besides: object) -> list[Watched]:
    """Returns the runs that must be told of writes, without one of them."""
    return [run for run in _waiting() if run is not besides] if _runs else []


def tell(runs: Iterable[Watched], func: Any, args: Any, kwargs: Any) -> None:
    """Lets runs copy what a call is about to write."""
    if may_write(func):
        written = all_written_by(func, args, kwargs)
        for run in runs:
            run.before_write_between(written)


def before_step(optimizer: torch.optim.Optimizer) -> None:
    """Lets runs copy the parameters that an optimizer is about to write: its kernels may be seen by
    no mode."""
    runs = _waiting() if _runs else []
    if not runs:
        return
    groups = optimizer.param_groups
    written = [p.detach() for group in groups for p in group["params"] if p.grad is not None]
    plain = [p for p in written if type(p) in PLAIN_TYPES]
    for run in runs:
        run.before_write_between(plain)


def close_watches() -> None:
    """Stops watching, because a step, a forward or a backward begins, or Reprise is removed."""
    if _open:
        no_longer(_backward)
        for between in reversed(_open.copy()):
            between.close()


def _waiting() -> list[Watched]:
    """Returns the runs that must still be watched, and forgets the others."""
    runs = []
    for known in _runs.copy():
        run = known()
        if run is not None and run.waits():
            runs.append(run)
        else:
            _runs.remove(known)
    return runs


def resume() -> None:
    """Watches the remaining runs until the next backward begins. Does nothing within a backward,
    where no mode may be set, and under another mode of ours, which tells them itself."""
    if not _runs or torch._C._current_graph_task_id() != -1:
        return
    close_watches()
    if torch._C._len_torch_dispatch_stack():
        modes = _get_current_dispatch_mode_stack()
        if any(getattr(mode, "tells_writes", False) for mode in modes):
            return
    runs = _waiting()
    if runs:
        around(_backward)
        _open.append(_Between(runs))


class _Writes(Mode):
    """Tells runs what is about to be written. `between`: between a forward and its backward, where
    the native engine is missing."""

    supports_higher_order_operators = True

    def __init__(self, runs: list[Watched], *, between: bool = False) -> None:
        super().__init__()
        self._runs = runs
        self.only_looks = between

    def op(self, op: Op, types: Any) -> Any:
        if FakeTensor in types:
            return op.run()  # a DTensor finds out the shape of a result; nothing is written
        if not PLAIN_TYPES.issuperset(types):
            return NotImplemented  # the subclass makes inner calls, whose writes come here
        again(self._before, op)  # the write follows in any case
        return op.run()

    def _before(self, op: Op) -> None:
        if may_write(op.func):
            written = all_written_by(op.func, op.args, op.kwargs)
            for run in self._runs:
                (run.before_write_between if self.only_looks else run.before_write)(written)


class _Between:
    """A watch between a forward and its backward: the gate of the native engine tells the runs, or
    a dispatch mode does."""

    def __init__(self, runs: list[Watched]) -> None:
        """Begins to watch."""
        self._thread = threading.get_ident()
        self._inference = torch.is_inference_mode_enabled()
        self._told = [run.hears for run in runs]
        self._gate: Any = None
        for run in runs:
            self._gate = self._gate or run.gate
        self.mode: _Writes | None = None
        if self._gate is None or not self._gate.watch(self._told):
            self._gate, self._told, self.mode = None, runs, _Writes(runs, between=True)
            self.mode.__enter__()

    def close(self) -> None:
        """Stops watching. Under a mode of the program, in its inference mode, or on another thread,
        the watch cannot be removed: it does nothing until it is removed at the next opportunity."""
        self._told.clear()  # for the gate and the mode, which hold this list
        # Inference mode puts the thread's dispatch keys back when it is left: with it would come
        # back the key of a mode that is gone, and every op would fail.
        left = self._inference or not torch.is_inference_mode_enabled()
        if threading.get_ident() != self._thread or not left:
            return
        if self._gate is not None:
            surely(self._gate.unwatch)
        elif self.mode is not None:
            if not self.mode.on_top():
                return
            self.mode.__exit__(None, None, None)
        _open.remove(self)


def _backward(engine: Any, *args: Any, **kwargs: Any) -> Any:
    """Stops watching, runs a backward, and watches again what remains. One that a hook calls within
    another runs below the mode of that one."""
    if torch._C._current_graph_task_id() != -1:
        with _During(_waiting()), unwatched(_During):
            return engine(*args, **kwargs)
    close_watches()
    latest = _runs[-1]() if _runs else None
    runs = _waiting()
    if latest is not None and runs and runs[-1] is latest:
        latest.refuse_changed()
    del latest
    around(_backward)  # a hook may call another one
    try:
        with _During(runs), unwatched(_During):
            out = engine(*args, **kwargs)
    finally:
        runs.clear()
        no_longer(_backward)
    quietly(resume)  # a graph that was kept may be replayed again
    return out


class _During(FunctionMode):
    """Watches the writes of Python code during one backward. The engine takes it along to its
    threads."""

    def __init__(self, runs: list[Watched]) -> None:
        super().__init__()
        self._watched = runs

    def seen(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Makes a call; if it may write a held tensor, its ops are watched."""
        if _may_write(call.do, kwargs):
            held = _storages((*args, kwargs))
            runs = [run for run in self._watched if run.holds(held)]
            if runs:
                with _Writes(runs):
                    return call(*args, **kwargs)
        return call(*args, **kwargs)


def _may_write(func: Any, kwargs: dict[str, Any]) -> bool:
    """Returns whether a function that Python calls may write one of its arguments: `add_`,
    `__setitem__`, `__iadd__`, anything with `out`, and overloads and Python functions, whose names
    do not tell."""
    name = getattr(func, "__name__", "_")
    if name.startswith("__"):
        return name == "__setitem__" or name.startswith("__i")
    plain = type(func).__name__ in ("method_descriptor", "builtin_function_or_method")
    return not plain or name.endswith("_") or "out" in kwargs


def _storages(arguments: tuple[Any, ...]) -> list[int]:
    found = []
    for tensor in tensors_in(*arguments):
        if isinstance(tensor, Tensor):
            with contextlib.suppress(NotImplementedError, RuntimeError):
                found.append(tensor.untyped_storage()._cdata)
    return found
