# SPDX-License-Identifier: Apache-2.0
"""The C ABI of `libreprise_agent.so` in ctypes, and where the library is found.

A copy of `profiler/include/reprise_agent.h`: tests/python/agent/test_abi.py compiles
the header and compares every size and offset with this file. Calls that never
block go through `PyDLL`, which keeps the GIL and is quicker; those that may
block go through `CDLL`, which lets other threads run.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import (
    POINTER,
    c_char,
    c_char_p,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reprise.agent import bundled
from reprise.agent.marks import At, OpBegin, OpEnd, PythonCalls, bind, ignore_end
from reprise.base.errors import RepriseError

ABI = 1
WHY_BYTES = 1024

OK = 0
DEGRADED = 1
INERT = 2
PENDING = 3
EINVAL = -1
EABI = -2
ETOOBIG = -3
EREFUSED = -4

# What an ALLOC record says.
ALLOC, FREE, SEGMENT, MAP, UNMAP, POOL, DRIVER, BASELINE = range(8)

# What a window traces.
KIND_OPS, KIND_ALLOCS, KIND_KERNELS = 1, 2, 4

STEP_PLANNED, STEP_KEPT_ALL, STEP_OOM, STEP_WINDOW, STEP_INCOMPLETE = 1, 2, 4, 8, 16

VERIFY_BITWISE, VERIFY_WITHIN_NOISE, VERIFY_FAILED, VERIFY_VALUES = 1, 2, 4, 8

# What became of a plan, or of the job.
PLAN_APPLIED, PLAN_REFUSED, PLAN_STOPPED, PLAN_UNCHECKED = 1, 2, 3, 4
PLAN_NONE, JOB_FAILED, PLAN_LEFT, PLAN_OTHER_LOAD = 5, 6, 7, 8


def _fields(kind: Any, names: str) -> list[tuple[str, Any]]:
    """Returns fields of one type, in the order of the header."""
    return [(name, kind) for name in names.split()]


class Sized(ctypes.Structure):
    """A struct that says its own size, by which the agent knows its version."""

    def __init__(self, **values: Any) -> None:
        super().__init__(struct_size=ctypes.sizeof(self), **values)


class Config(Sized):
    """`reprise_config`: what an agent is started with. Absent texts are null."""

    _fields_ = [
        *_fields(c_uint32, "struct_size abi ring_slots flags"),
        *_fields(c_char_p, "socket_path sink_path cupti_path run_id labels"),
    ]


class Caps(Sized):
    """`reprise_caps`: what the agent can do here, and its counters of records."""

    _fields_ = [
        *_fields(c_uint32, "struct_size cupti cupti_version driver_version"),
        *_fields(c_uint64, "pushed dropped untimed cupti_dropped cupti_device_bytes"),
        ("holder", c_char * 64),
        ("why", c_char * WHY_BYTES),
    ]


class Want(Sized):
    """`reprise_want`: a request for a plan; sizes in bytes, 0 where unknown."""

    _fields_ = [
        *_fields(c_uint32, "struct_size flags"),
        *_fields(c_char_p, "budget capabilities"),
        *_fields(c_uint64, "static_bytes device_bytes device_free_bytes reserve_bytes"),
        *_fields(c_uint64, "request_id replaces more_bytes"),
    ]


class PlanView(Sized):
    """`reprise_plan`: a mapped plan; `json` is valid until it is released."""

    _fields_ = [
        *_fields(c_uint32, "struct_size flags"),
        *_fields(c_uint64, "graph_id plan_id predicted_peak predicted_ns"),
        ("json", c_void_p),
        ("json_bytes", c_size_t),
        ("why", c_char * WHY_BYTES),
    ]


class StepReport(Sized):
    """`reprise_step_report`: what was measured of one training step; bytes and nanoseconds."""

    _fields_ = [
        *_fields(c_uint32, "struct_size flags"),
        *_fields(c_uint64, "step plan_id step_ns peak_bytes reserved_bytes device_bytes"),
        *_fields(c_uint32, "recomputed mismatches"),
    ]


class VerifyReport(Sized):
    """`reprise_verify_report`: how many recomputed values of a step were compared and differed."""

    _fields_ = [
        *_fields(c_uint32, "struct_size flags"),
        *_fields(c_uint64, "step plan_id"),
        *_fields(c_uint32, "checked differing first_name"),
    ]


_STATUS = c_int32

_QUICK: dict[str, tuple[Any, list[Any]]] = {
    "reprise_capabilities": (_STATUS, [POINTER(Caps)]),
    "reprise_window_begin": (_STATUS, [c_uint32]),
    "reprise_window_end": (_STATUS, []),
    "reprise_window_kinds": (c_uint32, []),
    "reprise_abi_version": (c_uint32, []),
    "reprise_python_bind": (_STATUS, [POINTER(PythonCalls)]),
    "reprise_intern": (c_uint32, [c_char_p, c_size_t]),
    "reprise_op_begin": (None, [c_uint64, c_uint32, c_uint32, c_uint64, c_int64, c_uint64]),
    "reprise_op_end": (None, [c_uint64]),
    "reprise_step": (None, [c_uint64]),
    "reprise_step_under": (None, [c_uint64, c_uint64]),
    "reprise_phase": (None, [c_uint32]),
    "reprise_at": (None, [c_uint64]),
    "reprise_alloc": (None, [c_uint64, c_int64, c_int32, c_uint64, c_uint32, c_uint64]),
    "reprise_oom": (None, [c_int32, c_uint64, c_uint64, c_uint64]),
    "reprise_plan_poll": (_STATUS, [c_uint64, c_uint64, POINTER(PlanView)]),
    "reprise_plan_release": (None, [POINTER(PlanView)]),
    "reprise_plan_state": (None, [c_uint64, c_uint32, c_uint32]),
    "reprise_plan_applied": (None, [c_uint64, c_uint64, c_uint64]),
    "reprise_step_done": (None, [POINTER(StepReport)]),
    "reprise_verify": (None, [POINTER(VerifyReport)]),
}

_BLOCKING: dict[str, tuple[Any, list[Any]]] = {
    "reprise_start": (_STATUS, [POINTER(Config)]),
    "reprise_stop": (_STATUS, []),
    "reprise_flush": (_STATUS, [c_uint32]),
    "reprise_snapshot": (_STATUS, [c_char_p, c_size_t]),
    "reprise_pause": (_STATUS, []),
    "reprise_resume": (_STATUS, []),
    "reprise_graph_submit": (_STATUS, [c_char_p, c_size_t, POINTER(Want), POINTER(c_uint64)]),
    "reprise_plan_wait": (_STATUS, [c_uint64, c_uint64, c_uint32, POINTER(PlanView)]),
}


@dataclass(frozen=True, slots=True)
class Library:
    """The loaded agent: each function by the way it has to be called."""

    path: Path
    quick: ctypes.PyDLL | _Nothing
    blocking: ctypes.CDLL | _Nothing
    op_begin: OpBegin
    op_end: OpEnd
    at: At


class _Nothing:
    """The functions of an agent that is not there. They do nothing, and say so where asked."""

    def __getattr__(self, name: str) -> Any:
        asking = name.endswith(("_capabilities", "_graph_submit", "_plan_poll", "_plan_wait"))
        return lambda *_: INERT if asking else OK


NOTHING = Library(Path(), _Nothing(), _Nothing(), _Nothing().op_begin, ignore_end, ignore_end)


def candidates() -> list[Path]:
    """Where the library may be, best first. The last one is left to the dynamic loader."""
    name = "libreprise_agent.so"
    named = os.environ.get("REPRISE_AGENT")
    if named:
        return [Path(named)]
    return [*(folder / name for folder in bundled.places("", "lib")), Path(name)]


def load() -> Library:
    """Loads the agent, or says in one sentence where it was looked for."""
    tried: list[str] = []
    for path in candidates():
        if len(path.parts) > 1 and not path.is_file():
            tried.append(str(path))
            continue
        try:
            return _bind(path)
        except OSError as error:
            tried.append(str(path) if len(path.parts) == 1 else f"{path}: {error}")
    raise RepriseError(
        f"{candidates()[-1].name}: not found (looked at {', '.join(tried)}); "
        "build it with scripts/build or name it with REPRISE_AGENT"
    )


def _bind(path: Path) -> Library:
    # RTLD_LOCAL is ctypes' default: the job's own symbols are never resolved by ours.
    quick, blocking = ctypes.PyDLL(str(path)), ctypes.CDLL(str(path))
    for dll, table in ((quick, _QUICK), (blocking, _BLOCKING)):
        for name, (result, arguments) in table.items():
            try:
                function = getattr(dll, name)
            except AttributeError:
                raise RepriseError(
                    f"{path}: has no {name}; it is not this version's agent"
                ) from None
            function.restype = result
            function.argtypes = arguments
    version = int(quick.reprise_abi_version())
    if version != ABI:
        raise RepriseError(
            f"{path}: speaks ABI {version}, this package needs {ABI}; install matching versions"
        )
    return Library(path, quick, blocking, *bind(quick))


@contextmanager
def pause() -> Iterator[None]:
    """Pauses Reprise's profiling inside the block. Does nothing if there is no agent."""
    # CUPTI has one subscriber per process. Outside a window Reprise does not subscribe, and nothing
    # needs to be paused. Inside one this unsubscribes at once, and subscribes again if it can.
    # Allocator events and op records pause too.
    try:
        library = load()
    except RepriseError:
        yield
        return
    library.blocking.reprise_pause()
    try:
        yield
    finally:
        library.blocking.reprise_resume()
