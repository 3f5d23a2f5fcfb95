# SPDX-License-Identifier: Apache-2.0
"""What an executor can do: the planner hands out no plan that it cannot run.

    Capabilities.of("free:seeded_ok=1")      # a name, and keys that refine it, as for the command

The fields are those of reprise.v1.Capabilities; what they mean for a schedule is in evaluate.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from reprise.agent.received import FreePolicy
from reprise.base.errors import RepriseError
from reprise.plan.step_graph import filled

# As in formats/convert/capabilities.cc: numbers of the runs, and of nanoseconds.
MOST = {"max_runs": (1 << 31) - 1, "ns_per_op": 1 << 50}
FLAGS = (
    "recompute_in_backward_only",
    "seeded_ok",
    "collective_ok",
    "duplicate_outputs",
)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """One executor. The default runs any valid schedule."""

    executor: str = ""
    # Runs of one op, its first included; 0: no limit.
    max_runs: int = 0
    recompute_in_backward_only: bool = False
    seeded_ok: bool = False
    collective_ok: bool = False
    # A re-run allocates all outputs again, present or not.
    duplicate_outputs: bool = False
    free_policy: FreePolicy = FreePolicy.EAGER
    # Added to the time of every re-run.
    ns_per_op: int = 0
    # "free" (any schedule) or "once"; docs/formats.md, Once.
    execution: str = "free"

    @classmethod
    def of(cls, executor: str | Capabilities) -> Capabilities:
        """Returns the capabilities that "NAME:key=value:..." names. `RepriseError` names the part
        that is not known."""
        if isinstance(executor, Capabilities):
            return executor
        if not isinstance(executor, str):
            raise RepriseError(
                f"executor: must be text, such as free or once, got {executor!r}"[:120]
            )
        name, *pairs = executor.split(":")
        if name not in EXECUTORS:
            known = ", ".join(sorted(filter(None, EXECUTORS)))
            raise RepriseError(f"executor: there is no {name[:80]!r}; known are {known}")
        made = EXECUTORS[name]
        for pair in pairs:
            key, _, value = pair.partition("=")
            made = replace(made, **{key: _value(key, value)})
        return made

    def in_effect(self) -> Capabilities:
        """Returns these capabilities with what `execution` implies written into the other
        fields."""
        if self.execution == "free":
            return self
        most = self.max_runs if 0 < self.max_runs <= 2 else 2
        return replace(self, recompute_in_backward_only=True, max_runs=most)

    def to_message(self) -> dict[str, Any]:
        """Returns these capabilities as proto3 JSON of reprise.v1.Capabilities."""
        return {
            "freePolicy": f"FREE_POLICY_{self.free_policy.name}",
            "execution": f"EXECUTION_{self.execution.upper()}",
            **filled(self, ("executor", *FLAGS, *MOST)),
        }


def _value(key: str, value: str) -> Any:
    if key in MOST:
        if value.isdecimal() and value.isascii() and int(value) <= MOST[key]:
            return int(value)
        wanted = f"an integer from 0 to {MOST[key]}"
    elif key in FLAGS or key == "free_policy":
        words = {"0": False, "1": True} if key in FLAGS else _POLICIES
        if value in words:
            return words[value]
        wanted = " or ".join(words)
    else:
        raise RepriseError(f"executor: unknown key {key[:40]!r}")
    raise RepriseError(f"executor: {key}={value[:40]}: must be {wanted}")


_POLICIES = {"eager": FreePolicy.EAGER, "program": FreePolicy.PROGRAM}
_ONCE = Capabilities(recompute_in_backward_only=True, execution="once")

EXECUTORS: dict[str, Capabilities] = {
    "": Capabilities(),
    "free": Capabilities(),
    "once": replace(_ONCE, executor="once"),
    "joint": replace(_ONCE, executor="joint"),
    "tape": Capabilities(
        executor="tape",
        recompute_in_backward_only=True,
        duplicate_outputs=True,
        free_policy=FreePolicy.PROGRAM,
    ),
    "graph": Capabilities(executor="graph", seeded_ok=True, duplicate_outputs=True),
    # A TensorFlow graph, rewritten: a copy makes all of its outputs anew.
    "tf-graph": Capabilities(executor="tf-graph", duplicate_outputs=True),
}
