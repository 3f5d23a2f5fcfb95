# SPDX-License-Identifier: Apache-2.0
"""The agent's calls that run for every op, as cheap as Python allows: two in a traced step, and one
in a planned step that reports its position.

    begin, end, at = bind(library)
    begin(op, name); ...; end(op)
    at(1 + op)

A foreign-function call through ctypes costs several times what the agent does in it, so the agent
offers them in CPython's own calling convention; `PyCFunction_NewEx` makes builtin functions of
them. Ids are 64-bit numbers and are never truncated: what is larger raises OverflowError, and
nothing is recorded.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from ctypes import POINTER, c_char_p, c_int, c_void_p, py_object
from typing import Any, Protocol

from reprise.base.errors import RepriseError

_FASTCALL = 0x0080
_ONE_ARGUMENT = 0x0008


class OpBegin(Protocol):
    """Records that an op begins on this thread; `name` and `shapes` are ids of interned texts."""

    def __call__(
        self,
        op: int,
        name: int = 0,
        shapes: int = 0,
        parent: int = 0,
        seq_nr: int = -1,
        forward_thread: int = 0,
        /,
    ) -> None: ...


OpEnd = Callable[[int], None]
# Takes 1 + the op of the step graph that begins; 0 if it is no longer known.
At = Callable[[int], None]


class PythonCalls(ctypes.Structure):
    """The struct `reprise_python`: what the agent needs of Python's stable ABI."""

    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        *((name, c_void_p) for name in ("as_u64", "as_i64", "occurred", "raise", "retain", "none")),
        *((name, c_void_p) for name in ("type_error", "overflow_error")),
    ]


class _MethodDef(ctypes.Structure):
    _fields_ = [
        ("name", c_char_p),
        ("function", c_void_p),
        ("flags", c_int),
        ("doc", c_char_p),
    ]


# A builtin function refers to its definition for as long as it lives.
_definitions: list[_MethodDef] = []


def bind(quick: ctypes.PyDLL) -> tuple[OpBegin, OpEnd, At]:
    """Returns the calls `op_begin`, `op_end` and `at` of the loaded agent. Raises RepriseError if
    this Python has no such functions, or if the agent does not take them."""
    if sys.implementation.name != "cpython":
        raise RepriseError(f"the agent needs CPython, not {sys.implementation.name}")
    calls = PythonCalls(
        struct_size=ctypes.sizeof(PythonCalls),
        as_u64=_address(ctypes.pythonapi.PyLong_AsUnsignedLongLong),
        as_i64=_address(ctypes.pythonapi.PyLong_AsLongLong),
        occurred=_address(ctypes.pythonapi.PyErr_Occurred),
        retain=_address(ctypes.pythonapi.Py_IncRef),
        none=id(None),
        type_error=id(TypeError),
        overflow_error=id(OverflowError),
    )
    setattr(calls, "raise", _address(ctypes.pythonapi.PyErr_SetString))
    if quick.reprise_python_bind(ctypes.byref(calls)) != 0:
        raise RepriseError("the agent is not this version's; install matching versions")
    begin = _builtin("op_begin", quick.reprise_python_op_begin, _FASTCALL)
    end = _builtin("op_end", quick.reprise_python_op_end, _ONE_ARGUMENT)
    at = _builtin("at", quick.reprise_python_at, _ONE_ARGUMENT)
    return begin, end, at


def ignore_end(op: int, /) -> None:
    """Does nothing; replaces the agent's call if there is no agent."""


def _address(function: Any) -> int | None:
    return ctypes.cast(function, c_void_p).value


def _builtin(name: str, function: Any, flags: int) -> Any:
    definition = _MethodDef(name.encode(), _address(function), flags, None)
    _definitions.append(definition)
    make = ctypes.PYFUNCTYPE(py_object, POINTER(_MethodDef), c_void_p, c_void_p)
    return make(("PyCFunction_NewEx", ctypes.pythonapi))(ctypes.byref(definition), None, None)
