# SPDX-License-Identifier: Apache-2.0
"""A plan as it arrives from the planner: proto3 JSON of `reprise.v1.Plan`.

    plan = Plan.from_json(reply_bytes)
    if plan.feasible:
        for entry in plan.schedule: ...      # e >= 0 runs op e, e < 0 frees storage -e-1

The text is treated as hostile until it is a `Plan`: its size, every type and
every range is checked, and what is wrong is named by its field
(`plan.schedule[7]: must be an integer, got 'x'`). Unknown fields are ignored,
so that an older client reads a newer server. Field names are accepted in
lowerCamelCase and as written in the proto, 64-bit integers as numbers and as
strings, enums by name and by number.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeVar

from reprise.errors import RepriseError

__all__ = ["BoundScope", "Decision", "FreePolicy", "Infeasible", "Plan"]

MAX_PLAN_BYTES = 16 << 20
# More entries than any step has; keeps a hostile plan from eating the job's memory.
MAX_ENTRIES = 4_000_000

_INT64_MAX = 2**63 - 1


class Decision(IntEnum):
    """What a plan does with a storage."""

    UNSPECIFIED = 0
    SAVE = 1
    RECOMPUTE = 2
    OFFLOAD = 3


class BoundScope(IntEnum):
    """For which schedules the bound holds."""

    UNSPECIFIED = 0
    ORDER = 1
    ANY_ORDER = 2


class FreePolicy(IntEnum):
    """When storages are freed: after their last reader, or also not before the program lets go."""

    UNSPECIFIED = 0
    EAGER = 1
    PROGRAM = 2


@dataclass(frozen=True, slots=True)
class Infeasible:
    """Why a budget is impossible, and the op that needs more."""

    smallest_budget_bytes: int
    blocking_op: int
    blocking_op_name: str
    blocking_module: str
    smallest_known_bytes: int
    storages: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """One plan: what is saved, what runs again and when, with its prediction."""

    plan_id: str
    graph_id: str
    budget: str
    budget_bytes: int
    feasible: bool
    infeasible: Infeasible | None
    # Predicted with this plan and without, in bytes and ns.
    peak_bytes: int
    base_peak_bytes: int
    time_ns: int
    base_time_ns: int
    # The op at which the peak is reached first.
    peak_op: int
    # Extra time as a fraction of base_time_ns, and the proven lower bound of it.
    overhead: float
    bound: float
    bound_scope: BoundScope
    proven_optimal: bool
    solver: str
    solve_ms: float
    executor: str
    free_policy: FreePolicy
    # e >= 0 runs op e; e < 0 frees storage -e-1.
    schedule: tuple[int, ...]
    # One per storage, by storage id.
    decisions: tuple[Decision, ...]
    # Storages kept across the end of the forward pass; ops that run again, with repeats.
    saved: tuple[int, ...]
    recomputed_ops: tuple[int, ...]
    # The verdict in one sentence; printed verbatim.
    sentence: str
    # 0 for a first plan, n for the nth re-plan after a measured peak.
    replan: int
    interrupted: bool

    @property
    def plan_number(self) -> int:
        """The plan id as the C ABI wants it."""
        return int(self.plan_id, 16)

    @property
    def graph_number(self) -> int:
        """The graph id as the C ABI wants it."""
        return int(self.graph_id, 16)

    @classmethod
    def from_json(cls, text: bytes | str) -> Plan:
        """Reads and checks a plan; `RepriseError` names the field that is wrong."""
        if len(text) > MAX_PLAN_BYTES:
            raise RepriseError(f"plan: {len(text)} bytes, more than the {MAX_PLAN_BYTES} allowed")
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise RepriseError(f"plan: not JSON ({_short(str(error))})") from None
        return cls._from_fields(_Fields(value, "plan"))

    @classmethod
    def _from_fields(cls, f: _Fields) -> Plan:
        infeasible = f.message("infeasible")
        plan = cls(
            plan_id=f.hex_id("plan_id"),
            graph_id=f.hex_id("graph_id"),
            budget=f.text("budget"),
            budget_bytes=f.size("budget_bytes"),
            feasible=f.flag("feasible"),
            infeasible=None if infeasible is None else _read_infeasible(infeasible),
            peak_bytes=f.size("peak_bytes"),
            base_peak_bytes=f.size("base_peak_bytes"),
            time_ns=f.size("time_ns"),
            base_time_ns=f.size("base_time_ns"),
            peak_op=f.size("peak_op"),
            overhead=f.number("overhead"),
            bound=f.number("bound"),
            bound_scope=f.enum("bound_scope", BoundScope, "BOUND_SCOPE_"),
            proven_optimal=f.flag("proven_optimal"),
            solver=f.text("solver"),
            solve_ms=f.number("solve_ms"),
            executor=f.text("executor"),
            free_policy=f.enum("free_policy", FreePolicy, "FREE_POLICY_"),
            schedule=f.integers("schedule", -_INT64_MAX - 1),
            decisions=f.enums("decisions", Decision, "DECISION_"),
            saved=f.integers("saved"),
            recomputed_ops=f.integers("recomputed_ops"),
            sentence=f.text("sentence"),
            replan=f.size("replan"),
            interrupted=f.flag("interrupted"),
        )
        plan._check_ranges()
        return plan

    def _check_ranges(self) -> None:
        """Ids that point outside what the plan itself describes are refused."""
        if self.feasible and not self.schedule:
            raise RepriseError("plan.schedule: is empty in a plan that claims to be feasible")
        storages = len(self.decisions)
        for i, entry in enumerate(self.schedule):
            if entry < 0 and -entry - 1 >= storages:
                raise RepriseError(
                    f"plan.schedule[{i}]: frees storage {-entry - 1}, "
                    f"but there are decisions for {storages} storages only"
                )
        for i, storage in enumerate(self.saved):
            if storage >= storages:
                raise RepriseError(
                    f"plan.saved[{i}]: storage {storage}, "
                    f"but there are decisions for {storages} storages only"
                )
        run = {entry for entry in self.schedule if entry >= 0}
        for i, op in enumerate(self.recomputed_ops):
            if op not in run:
                raise RepriseError(f"plan.recomputed_ops[{i}]: op {op} is not in the schedule")


def _read_infeasible(f: _Fields) -> Infeasible:
    return Infeasible(
        smallest_budget_bytes=f.size("smallest_budget_bytes"),
        blocking_op=f.size("blocking_op"),
        blocking_op_name=f.text("blocking_op_name"),
        blocking_module=f.text("blocking_module"),
        smallest_known_bytes=f.size("smallest_known_bytes"),
        storages=f.integers("storages"),
    )


# ---- Reading proto3 JSON ----------------------------------------------------

E_ = TypeVar("E_", bound=IntEnum)
T = TypeVar("T")


def _short(value: object) -> str:
    """A value as an error shows it: never longer than a few words."""
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)


class _Fields:
    """One JSON object as a message: typed getters that name the field they refuse."""

    def __init__(self, value: object, where: str) -> None:
        if not isinstance(value, Mapping):
            raise RepriseError(f"{where}: must be an object, got {_short(value)}")
        self._value: Mapping[str, Any] = value
        self._where = where

    def _raw(self, name: str) -> Any:
        """The value under either spelling; None where absent (proto3's null is absent too)."""
        value = self._value.get(_camel(name))
        return self._value.get(name) if value is None else value

    def _path(self, name: str) -> str:
        return f"{self._where}.{name}"

    def text(self, name: str) -> str:
        value = self._raw(name)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise RepriseError(f"{self._path(name)}: must be text, got {_short(value)}")
        return value

    def hex_id(self, name: str) -> str:
        value = self.text(name)
        if len(value) != 16 or set(value) - set("0123456789abcdef"):
            raise RepriseError(
                f"{self._path(name)}: must be 16 lower-case hex digits, got {_short(repr(value))}"
            )
        return value

    def flag(self, name: str) -> bool:
        value = self._raw(name)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise RepriseError(f"{self._path(name)}: must be true or false, got {_short(value)}")
        return value

    def number(self, name: str) -> float:
        value = self._raw(name)
        if value is None:
            return 0.0
        if isinstance(value, str):
            try:
                value = float(value)
            except ValueError:
                pass
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise RepriseError(f"{self._path(name)}: must be a number, got {_short(value)}")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise RepriseError(f"{self._path(name)}: must be finite, got {_short(value)}")
        return number

    def size(self, name: str) -> int:
        value = self._raw(name)
        return 0 if value is None else _integer(value, self._path(name), 0)

    def integers(self, name: str, least: int = 0) -> tuple[int, ...]:
        return self._list(name, lambda value, where: _integer(value, where, least))

    def enum(self, name: str, kind: type[E_], prefix: str) -> E_:
        value = self._raw(name)
        return kind(0) if value is None else _enum(value, self._path(name), kind, prefix)

    def enums(self, name: str, kind: type[E_], prefix: str) -> tuple[E_, ...]:
        return self._list(name, lambda value, where: _enum(value, where, kind, prefix))

    def message(self, name: str) -> _Fields | None:
        value = self._raw(name)
        return None if value is None else _Fields(value, self._path(name))

    def _list(self, name: str, read: Callable[[object, str], T]) -> tuple[T, ...]:
        value = self._raw(name)
        if value is None:
            return ()
        if not isinstance(value, list):
            raise RepriseError(f"{self._path(name)}: must be a list, got {_short(value)}")
        if len(value) > MAX_ENTRIES:
            raise RepriseError(
                f"{self._path(name)}: {len(value)} entries, more than the {MAX_ENTRIES} allowed"
            )
        path = self._path(name)
        return tuple(read(item, f"{path}[{i}]") for i, item in enumerate(value))


def _integer(value: object, where: str, least: int) -> int:
    number: int | None = None
    if isinstance(value, int) and not isinstance(value, bool):
        number = value
    elif isinstance(value, float) and value.is_integer():
        number = int(value)
    elif isinstance(value, str) and len(value) <= 20:
        # int() alone would also take "1_000", " 7 " and other alphabets' digits.
        digits = value[1:] if value.startswith("-") else value
        if digits.isascii() and digits.isdigit():
            number = int(value)
    if number is None:
        raise RepriseError(f"{where}: must be an integer, got {_short(repr(value))}")
    if not least <= number <= _INT64_MAX:
        fact = "must not be negative" if least == 0 and number < 0 else "does not fit in 64 bits"
        raise RepriseError(f"{where}: {fact}, got {_short(repr(value))}")
    return number


def _enum(value: object, where: str, kind: type[E_], prefix: str) -> E_:
    if isinstance(value, str) and value.startswith(prefix):
        name = value[len(prefix) :]
        if name in kind.__members__:
            return kind[name]
    elif isinstance(value, int) and not isinstance(value, bool):
        if value in kind._value2member_map_:
            return kind(value)
    names = ", ".join(prefix + member for member in kind.__members__)
    raise RepriseError(f"{where}: must be one of {names}, got {_short(repr(value))}")
