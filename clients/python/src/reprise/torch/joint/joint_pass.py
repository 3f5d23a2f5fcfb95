# SPDX-License-Identifier: Apache-2.0
"""Plans for torch.compile: every op of the joint graph tagged as saved or recomputed.

    joint = JointPass(Budget("0.5x"))
    joint.install()
    with joint.told(True): ...           # each graph that is compiled here is planned
    joint.remove()

AOTAutograd traces forward and backward into one graph, and its partitioner decides what crosses
from one to the other; nodes with `meta["recompute"]` are decided beforehand. The pass turns the
joint graph into a step graph (joint_graph.py), asks the planner for a plan in which every op runs
once more at most, and writes the tags. So profile and plan are of the very graph that the plan is
applied to: the ops are measured as they stand in it (costs.py), and no plan outlives its graph. The
hooks are those the installed torch has (hooks.py).

The graph is functional, so statistics are updated once, and random ops are never tagged for
recomputation. No plan, no hook in this torch, no answer in time: the graph is left as it is.

A budget is of all that is alive, as in an eager job: parameters, gradients, the optimizer's state,
buckets of gradients, what the graphs make. No graph shows it all, so a job collects its graphs
while it runs a step without a plan, which it measures, and plans them as one after it (whole.py,
job.py). A graph is planned while it is compiled, with what is alive by then, if nobody collects, if
the device has no room for it without a plan, or if it comes later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from reprise.base.budget import Budget
from reprise.base.saying import say
from reprise.base.units import format_bytes
from reprise.plan import Plan
from reprise.torch.estimation.planner import asked, replacement
from reprise.torch.executor.protocol import installed
from reprise.torch.internals.contracts import INDUCTOR_PASS, JOINT_PASS, missing
from reprise.torch.internals.guard import described
from reprise.torch.internals.ops import tensors_in
from reprise.torch.joint.executor import CAPABILITIES, JointExecutor, tag
from reprise.torch.joint.hooks import find_hooks
from reprise.torch.joint.joint_graph import (
    JointGraph,
    Made,
    alike,
    has_backward,
    joint_graph,
    peak_under,
)
from reprise.torch.meter.room import in_bytes, room_on
from reprise.torch.meter.state import alive_bytes

Ask = Callable[[dict[str, Any], str], tuple[Plan | None, str]]


def supported() -> str:
    """Returns why this torch cannot be planned when it compiles; empty if it can."""
    if not find_hooks():
        return f"this torch has neither {JOINT_PASS.name} nor {INDUCTOR_PASS.name}"
    return missing()


class JointPass:
    """Plans the joint graphs that its hooks show it."""

    def __init__(
        self,
        budget: Budget,
        planner: Ask | None = None,
        *,
        collects: bool = False,
    ) -> None:
        """`collects`: graphs are read and not planned until all of them are planned as one."""
        self.budget = budget
        self.collects = collects
        self.executor = JointExecutor()
        self.why: list[str] = []
        self.seen = 0  # graphs, planned or not
        self.at: int | None = None  # the number of the last one among those with a backward
        self.graphs: list[dict[str, Any]] = []  # those with a backward, in order
        # By compiled graph, where one plan is for all of them: which graph it is, and which of its
        # ops run again.
        self._decided: list[tuple[int, set[int]]] = []
        self._next = 0
        self.budget_bytes = 0  # of the first plan, whatever was reserved later
        self.beside_bytes = 0  # in use in every step, and in no graph
        self._told = False
        # Returns a plan for any graph that this can carry out, and "", or None and why there is
        # none.
        self.ask = planner or _ask
        self._replace = replacement
        self._hooks = find_hooks()

    @property
    def plans(self) -> list[Plan]:
        """The plans of the graphs, or the one for all of them."""
        return [handle.plan for handle in self.executor.handles]

    @contextmanager
    def told(self, on: bool) -> Iterator[None]:
        """Plans what is compiled inside the context, or does not."""
        before, self._told = self._told, on
        try:
            yield
        finally:
            self._told = before

    def replacement(
        self, message: dict[str, Any], plan: Plan, more_bytes: int
    ) -> tuple[Plan | None, str]:
        """Returns a plan within the budget in the place of one that needs `more_bytes` more than it
        says, and "", or None and why there is none."""
        other, why = self._replace(message, plan, more_bytes)
        if other is None:
            return None, why.rstrip(".")
        left_bytes = other.budget_bytes - more_bytes
        least = other.budget_bytes > plan.budget_bytes  # nothing fits
        if least or peak_under(message, set(other.recomputed_ops)) > left_bytes:
            within, more = format_bytes(plan.budget_bytes), format_bytes(more_bytes)
            return None, f"no plan leaves {more} more of {within}"
        return other, ""

    def decide_whole(
        self,
        plan: Plan,
        message: dict[str, Any],
        decided: list[tuple[int, set[int]]],
        budget_bytes: int,
    ) -> str:
        """Takes one plan for all graphs, which are about to be compiled again; returns "", or why
        it is not used. `decided`: in the order in which they are compiled, which graph each is,
        and its ops that run again."""
        before, self.executor.handles = self.executor.handles, []
        handle = installed(self.executor, JointGraph(message, []), plan)
        if isinstance(handle, str):
            self.executor.handles = before
            return handle
        self._decided = decided
        self._next, self.budget_bytes = 0, budget_bytes
        self.collects = False
        return ""

    def install(self) -> None:
        """Installs the pass. Other passes that are there run first."""
        for hook in self._hooks:
            hook.install(self.visit)

    def remove(self) -> None:
        """Removes the pass; compiled graphs stay as they are. Idempotent."""
        for hook in self._hooks:
            hook.remove()

    def visit(self, graph: Any) -> None:
        """Plans one graph. Whatever happens, it can be compiled."""
        self.seen += 1
        if not self._told:
            return
        try:
            if self._decided and self._carry_out(*joint_graph(graph, measured=False)):
                return
            message, made = joint_graph(graph)
            if not has_backward(message):
                return
            self.at = len(self.graphs)
            self.graphs.append({**message})
            tensors = (t for node in graph.nodes for t in tensors_in(node.meta.get("val")))
            device = next((tensor.device for tensor in tensors), torch.device("cpu"))
            alive = alive_bytes(device)
            # Once: what is free is less when the next graph is compiled.
            self.budget = in_bytes(self.budget, device, alive)
            message["static_bytes"] = max(alive, message["static_bytes"]) + self.beside_bytes
            room = room_on(device)
            fits = room is None or peak_under(message, set()) - alive <= room.bytes
            if self.collects and fits:
                return
            self._plan_alone(message, made)
        except Exception as error:
            self.why.append(str(error))
            say(f"a graph is compiled without a plan: {described(error)}")

    def _plan_alone(self, message: dict[str, Any], made: Made) -> None:
        """Plans a graph that is being compiled, and tags it."""
        budget = str(self.budget_bytes) if self.budget_bytes else self.budget
        plan, why = self.ask(message, budget)
        if plan is not None:
            handle = installed(self.executor, JointGraph(message, made), plan)
            if isinstance(handle, str):
                why = handle
            else:
                handle.number = len(self.graphs) - 1
        if plan is None or why:
            self.why.append(why)
            say(f"a graph is compiled without a plan: {why}")
        else:
            self.budget_bytes = self.budget_bytes or plan.budget_bytes
            say(plan.sentence)

    def _carry_out(self, message: dict[str, Any], made: Made) -> bool:
        """Tags a graph as was decided for it. Returns whether it is one that is planned, or that
        needs no plan."""
        if not has_backward(message):
            return True
        number, self._next = self._next, self._next + 1
        likely = self._decided[number : number + 1] + self._decided
        found = next((one for one in likely if alike(message, self.graphs[one[0]])), None)
        if found is None:
            return False
        self.at, again = found
        dropped = {i for op in again for i in message["ops"][op]["writes"]}
        kept = {s["id"] for s in message["storages"]} - dropped
        self.executor.handles[0].recomputed += tag(made, message, again, kept)
        return True


def _ask(message: dict[str, Any], budget: str) -> tuple[Plan | None, str]:
    plan, why, _ = asked(message, budget, CAPABILITIES)
    return plan, why
