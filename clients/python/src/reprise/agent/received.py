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

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from reprise.base.errors import RepriseError
from reprise.base.proto_json import Fields

MAX_PLAN_BYTES = 16 << 20
# In a schedule, codes of one kind of entry: free, send, sent, fetch, fetched.
_STORAGES = 1 << 24


class Decision(IntEnum):
    """What a plan does with a storage."""

    UNSPECIFIED = 0
    SAVE = 1
    RECOMPUTE = 2
    OFFLOAD = 4


class BoundScope(IntEnum):
    """The set of schedules for which a bound holds."""

    UNSPECIFIED = 0
    ORDER = 1


class BoundProof(IntEnum):
    """Whose word the bound, or the refusal, is: the solver's, or also that of the verifier."""

    UNSPECIFIED = 0
    NONE = 1
    SOLVER = 2
    CHECKED = 3


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
class Link:
    """Copies to host memory and back, as the plan was made for them."""

    out_bytes_per_s: int
    in_bytes_per_s: int
    latency_ns: int
    host_bytes: int


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
    # Extra time as a fraction of base_time_ns, and the lower bound of it.
    overhead: float
    bound: float
    bound_scope: BoundScope
    bound_proof: BoundProof
    # The overhead equals the bound, and the bound was checked.
    proven_optimal: bool
    solver: str
    solve_ms: float
    executor: str
    free_policy: FreePolicy
    # e >= 0 runs op e; e < 0 frees storage -e-1. Only where the executor has a link to host
    # memory: with n = -e-1, n / 2^24 is 1 to send storage n modulo 2^24, 2 to let it go once it is
    # there, 3 to fetch it, 4 to wait until it is back.
    schedule: tuple[int, ...]
    # One per storage, by storage id.
    decisions: tuple[Decision, ...]
    # Storages kept across the end of the forward pass; ops that run again, with repeats.
    saved: tuple[int, ...]
    recomputed_ops: tuple[int, ...]
    # What the evaluator says is alive while each op of the schedule runs.
    predicted_bytes: tuple[int, ...]
    # The verdict in one sentence; printed verbatim.
    sentence: str
    # 0 for a first plan, n for the nth re-plan after a measured peak.
    replan: int
    interrupted: bool
    # Why the graph is not the step itself, so that nothing is proven of the step; empty: it is.
    inferred: str = ""
    # To host memory, if the plan could use any; and the most bytes there at once.
    link: Link | None = None
    host_peak_bytes: int = 0

    @property
    def plan_number(self) -> int:
        """The id of the plan as the C ABI wants it."""
        return int(self.plan_id, 16)

    @classmethod
    def from_json(cls, text: bytes | str) -> Plan:
        """Reads and checks a plan; `RepriseError` names the field that is wrong."""
        import json

        if len(text) > MAX_PLAN_BYTES:
            raise RepriseError(f"plan: {len(text)} bytes, more than the {MAX_PLAN_BYTES} allowed")
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise RepriseError(f"plan: not JSON ({str(error)[:80]})") from None
        return cls.from_message(value)

    @classmethod
    def from_message(cls, value: object) -> Plan:
        """Returns a plan from JSON that was read already, as a part of a larger message. Raises as
        `from_json`."""
        f = Fields(value, "plan")
        predicted = f.message("predicted")
        special: dict[str, Any] = {
            "plan_id": f.hex_id("plan_id"),
            "graph_id": f.hex_id("graph_id"),
            "infeasible": f.made("infeasible", Infeasible),
            "link": f.made("link", Link),
            "bound_scope": f.enum("bound_scope", BoundScope, "BOUND_SCOPE_"),
            "bound_proof": f.enum("bound_proof", BoundProof, "BOUND_PROOF_"),
            "free_policy": f.enum("free_policy", FreePolicy, "FREE_POLICY_"),
            "schedule": f.integers("schedule", -(2**63)),
            "decisions": f.enums("decisions", Decision, "DECISION_"),
            "predicted_bytes": () if predicted is None else predicted.integers("bytes"),
        }
        plan = cls(**special, **f.plain(cls, but=special))
        plan._check_ranges()
        return plan

    def _check_ranges(self) -> None:
        """Ids that point outside what the plan itself describes are refused."""
        if self.feasible and not self.schedule:
            raise RepriseError("plan.schedule: is empty in a plan that claims to be feasible")
        storages, kinds = len(self.decisions), 5 if self.link else 1
        for i, entry in enumerate(self.schedule):
            kind, storage = divmod(-entry - 1, _STORAGES)
            if kind >= kinds:
                storage += kind * _STORAGES
            if entry < 0 and (kind >= kinds or storage >= storages):
                raise RepriseError(
                    f"plan.schedule[{i}]: frees storage {storage}, "
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


class InfeasibleBudget(RepriseError):
    """No plan fits the budget.

    `smallest_bytes` is the smallest budget that is not ruled out. `plan` is the planner's answer,
    if it gave one: it names the op that needs more, and says whether the refusal was checked."""

    def __init__(
        self, sentence: str, smallest_bytes: int | None = None, plan: Plan | None = None
    ) -> None:
        super().__init__(sentence)
        self.smallest_bytes = smallest_bytes
        self.plan = plan

    @property
    def proven(self) -> bool:
        """Whether it was proven, and checked, that nothing fits. Else the search ended without an
        answer, or the graph was not the step itself."""
        plan = self.plan
        return (
            plan is not None
            and plan.infeasible is not None
            and plan.infeasible.smallest_budget_bytes > plan.budget_bytes
            and plan.bound_proof is BoundProof.CHECKED
            and not plan.inferred
        )
