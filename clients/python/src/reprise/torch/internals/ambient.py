# SPDX-License-Identifier: Apache-2.0
"""What a kernel reads besides the arguments of its op: the default dtype, the number of threads,
the precision of a float32 multiplication, whether algorithms must be deterministic, and so on.

    there = current()          # in the forward, when an op is recorded
    with Surroundings() as around:
        around.be(there)       # in the backward: as it was then
        ...the op runs again
    ...                        # as the program has it
    state = GeneratorState(device_of(args)); state.restore()    # of the generator it draws from

A program may change any of these between a forward and its backward. `torch.linspace` without a
dtype then makes other values, and `torch.rand` draws other numbers. So every recorded op knows the
state in which it ran; where the state of the backward differs, the recorded one is set for as long
as the op runs again. Both engines do so (compiled/ambient.h in the native one); that a state is the
one of the last op costs them one comparison.

`FACTS` is the list. Not on it, because what runs again does not depend on them: autocast and
autograd's modes, below which it runs (tape/calls.py); the default device, which reaches an op as an
argument; anomaly mode, which is about the backward's own ops. Gradient mode and the state of the
generator are recorded with each op, streams are compared at each op (tape_run.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from reprise.torch.internals.contracts import PRECISION
from reprise.torch.internals.guard import surely
from reprise.torch.internals.ops import tensors_in

_C: Any = torch._C
# The smallest number that is not denormal. Its half is 0 where denormal numbers are flushed; a
# constant expression would be computed by Python's compiler.
_SMALLEST = 2.2250738585072014e-308


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing that kernels read."""

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], Any]
    # False: it shows in other facts, and only has to be put back with them.
    watched: bool = True


def _flushes() -> bool:
    return _SMALLEST * 0.5 == 0.0


def _deterministic() -> tuple[bool, bool]:
    return _C._get_deterministic_algorithms(), _C._get_deterministic_algorithms_warn_only()


def _be_deterministic(value: tuple[bool, bool]) -> None:
    _C._set_deterministic_algorithms(value[0], warn_only=value[1])


def _device() -> int:
    return int(_C._cuda_getDevice()) if torch.cuda.is_initialized() else -1


def _use_device(index: int) -> None:
    if index >= 0:
        _C._cuda_setDevice(index)


def _spread(write: Callable[..., Any]) -> Callable[[Any], Any]:
    """Returns a setter for a fact that is read as a tuple by newer releases of torch."""
    return lambda value: write(*value) if isinstance(value, tuple) else write(value)


def _flags(*names: str) -> list[Fact]:
    """Returns the flags that torch gets and sets under these names, of those that it has."""
    return [
        Fact(name, getattr(_C, f"_get_{name}"), _spread(getattr(_C, f"_set_{name}")))
        for name in names
        if hasattr(_C, f"_get_{name}") and hasattr(_C, f"_set_{name}")
    ]


def _precisions(cuda: bool) -> list[Fact]:
    """Returns the precision of float32 ops. An op of a backend takes its own one, else the one of
    the backend, else the general one: parents come first, so that what an op inherits is put back
    by putting back its parent."""
    if PRECISION.get() is None:
        return _flags("float32_matmul_precision", "cudnn_allow_tf32")
    backends = ("mkldnn", "cuda") if cuda else ("mkldnn",)
    pairs = [("generic", "all")]
    for backend in backends:
        pairs += [(backend, op) for op in ("all", "matmul", "conv", "rnn")]
    return [
        Fact(
            f"fp32_precision of {backend} {op}",
            partial(_C._get_fp32_precision_getter, backend, op),
            partial(_C._set_fp32_precision_setter, backend, op),
            watched=op != "all",
        )
        for backend, op in pairs
    ]


def _facts(cuda: bool) -> tuple[Fact, ...]:
    """Returns what kernels read; `cuda`: on a GPU, too."""
    found = [
        Fact("default dtype", torch.get_default_dtype, _C._set_default_dtype),
        Fact("number of threads", torch.get_num_threads, torch.set_num_threads),
        Fact("flush denormal", _flushes, torch.set_flush_denormal),
        Fact("deterministic algorithms", _deterministic, _be_deterministic),
        *_flags(
            "deterministic_fill_uninitialized_memory",
            "mkldnn_enabled",
            "mkldnn_deterministic",
            "nnpack_enabled",
            "cpu_allow_fp16_reduced_precision_reduction",
            "math_sdp_allow_fp16_bf16_reduction",
        ),
        *(
            Fact(f"{kind} attention", getattr(_C, get), getattr(_C, put))
            for kind in ("flash", "mem_efficient", "math")
            if hasattr(_C, get := f"_get_{kind}_sdp_enabled")
            and hasattr(_C, put := f"_set_sdp_use_{kind}")
        ),
        *_precisions(cuda),
    ]
    if cuda:
        found += [
            Fact("current device", _device, _use_device),
            Fact("cudnn attention", _C._get_cudnn_sdp_enabled, _C._set_sdp_use_cudnn),
            *_flags(
                "cudnn_enabled",
                "cudnn_benchmark",
                "cudnn_deterministic",
                "cublas_allow_fp16_reduced_precision_reduction",
                "cublas_allow_bf16_reduced_precision_reduction",
                "cublas_allow_fp16_accumulation",
                "linalg_preferred_backend",
                "blas_preferred_backend",
            ),
        ]
    return tuple(found)


FACTS = _facts(torch.backends.cuda.is_built())
_WATCHED = tuple(fact.read for fact in FACTS if fact.watched)


class Ambient:
    """The state around an op."""

    __slots__ = ("marks", "values")

    def __init__(self, marks: list[Any]) -> None:
        self.marks = marks  # of the facts that are watched
        self.values = [fact.read() for fact in FACTS]


_latest: Ambient | None = None


def current() -> Ambient:
    """Returns the present state: the same object as the last time, if it is the same state."""
    global _latest
    marks = [read() for read in _WATCHED]
    found = _latest
    if found is None or found.marks != marks:
        _latest = found = Ambient(marks)
    return found


Undo = list[tuple[Fact, Any]]


def enter(ambient: Ambient) -> Undo:
    """Sets a recorded state; returns what `leave` puts back. Raises if torch refuses a value; then
    nothing has changed."""
    undo: Undo = []
    try:
        for fact, value in zip(FACTS, ambient.values, strict=True):
            now = fact.read()
            if now != value:
                undo.append((fact, now))
                fact.write(value)
    except BaseException:
        leave(undo)
        raise
    return undo


def leave(undo: Undo) -> None:
    """Puts back what `enter` has changed."""
    while undo:
        fact, value = undo.pop()
        surely(fact.write, value)


@contextmanager
def during(ambient: Ambient) -> Iterator[None]:
    """Runs code of the program that begins in a recorded state, and puts back what was there
    before, whatever that code has changed."""
    before = Ambient([])
    try:
        enter(ambient)
        yield
    finally:
        surely(enter, before)


class Surroundings:
    """The state around ops that run again, one after the other."""

    __slots__ = ("_at", "_undo")

    def __init__(self) -> None:
        self._at: Ambient | None = None  # the state that is set, or found
        self._undo: Undo = []

    def __enter__(self) -> Surroundings:
        return self

    def be(self, ambient: Ambient | None) -> None:
        """Makes the state the one of an op that is about to run again."""
        if ambient is self._at or ambient is None:
            return
        self._back()
        if current().marks != ambient.marks:
            self._undo = enter(ambient)
        self._at = ambient

    def _back(self) -> None:
        undo, self._undo, self._at = self._undo, [], None
        leave(undo)

    def __exit__(self, *_: object) -> None:
        self._back()


def device_of(*values: Any) -> torch.device:
    """Returns the device on which an op with these arguments runs."""
    for tensor in tensors_in(*values):
        return tensor.device
    for value in values:
        if isinstance(value, dict) and value.get("device") is not None:
            return torch.device(value["device"])
    return torch.device("cpu")


class GeneratorState:
    """The state of a device's default generator at the time of construction."""

    __slots__ = ("_state", "device")

    def __init__(self, device: torch.device) -> None:
        self.device = device
        cuda = device.type == "cuda"
        self._state = torch.cuda.get_rng_state(device) if cuda else torch.get_rng_state()

    def restore(self) -> None:
        """Sets the generator to the saved state."""
        if self.device.type == "cuda":
            torch.cuda.set_rng_state(self._state, self.device)
        else:
            torch.set_rng_state(self._state)
