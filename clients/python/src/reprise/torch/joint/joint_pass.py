# SPDX-License-Identifier: Apache-2.0
"""Plans for torch.compile: every op of the joint graph tagged as saved or recomputed.

    joint = install("0.5x")              # before the first compile
    ...torch.compile(model)(x)...        # each graph is planned while it is compiled
    joint.remove()

AOTAutograd traces forward and backward into one graph, and its partitioner decides what crosses
from one to the other; nodes with `meta["recompute"]` are decided beforehand. The pass turns the
joint graph into a step graph (joint_graph.py), asks the planner for a plan in which every op runs
once more at most, and writes the tags. So profile and plan are of the very graph that the plan is
applied to: the ops are measured as they stand in it (costs.py), and no plan outlives its graph. The
hooks are those the installed torch has (hooks.py).

The graph is functional, so statistics are updated once, and random ops are never tagged for
recomputation. No plan, no hook in this torch, no answer in time: the graph is left as it is.

A share as 0.5x is of one graph: its inputs (parameters among them), what it makes, and what the
program makes of its outputs before the backward (assumed, joint_graph.py). Where graph breaks make
several of them, a job measures what they need together and plans them as one (whole.py).
Bytes are for the whole process: what else is alive when a graph is compiled counts. What neither
shows is measured when the job runs (job.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from reprise.errors import RepriseError
from reprise.plan import Plan
from reprise.saying import say
from reprise.torch.estimation.planner import ask, replacement
from reprise.torch.executor.protocol import installed
from reprise.torch.internals.guard import described
from reprise.torch.internals.ops import tensors_in
from reprise.torch.joint.executor import CAPABILITIES, JointExecutor, JointPlan, tag
from reprise.torch.joint.hooks import find_hooks
from reprise.torch.joint.joint_graph import JointGraph, alike, has_backward, joint_graph
from reprise.torch.joint.peak import peak_under
from reprise.torch.meter.room import in_bytes
from reprise.torch.meter.state import alive_bytes
from reprise.units import check_budget, format_bytes

__all__ = ["JointPass", "install", "supported"]

Ask = Callable[[dict[str, Any], str], tuple[Plan | None, str]]


def supported() -> str:
    """Returns why this torch cannot be planned when it compiles; empty if it can."""
    if not find_hooks():
        return (
            "this version of torch has neither torch._functorch.config.joint_custom_pass nor "
            "torch._inductor.config.joint_custom_post_pass"
        )
    try:
        from torch.utils.checkpoint import CheckpointPolicy  # noqa: F401
    except ImportError:
        return "this version of torch has no CheckpointPolicy"
    return ""


def install(budget: str | int, planner: Ask | None = None) -> JointPass:
    """Plans every graph that is compiled from now on. Returns the pass, whose `remove` ends
    that."""
    why = supported()
    if why:
        raise RepriseError(why)
    made = JointPass(check_budget(budget), planner)
    made.install()
    return made


class JointPass:
    """Plans the joint graphs that its hooks show it."""

    def __init__(
        self,
        budget: str,
        planner: Ask | None = None,
        *,
        only_when_told: bool = False,
        in_pieces: bool = False,
    ) -> None:
        self.budget = budget
        # Graphs are read and not planned, until all of them are planned as one.
        self.collects = self.in_pieces = in_pieces
        self.executor = JointExecutor()
        self.why: list[str] = []
        self.seen = 0  # graphs, planned or not
        self.graphs: list[dict[str, Any]] = []  # those with a backward, in order
        # By compiled graph, where that was decided for all of them at once: its plan, which graph
        # it is, and which of its ops run again; None if it has no plan.
        self._decided: list[tuple[JointPlan, int, set[int]] | None] = []
        self._as_one = False  # all graphs have one plan
        self._next = 0
        self.inputs_bytes = 0  # of the graphs that are planned
        self._budget_bytes = 0
        self._told = not only_when_told
        self._ask = planner or _ask
        self._replace = replacement
        self._hooks = find_hooks()

    @property
    def plans(self) -> list[Plan]:
        """The plans of the graphs, or the one for all of them."""
        return [handle.plan for handle in self.executor.handles]

    @property
    def planned(self) -> list[dict[str, Any]]:
        """The step graphs of the plans."""
        return [handle.message for handle in self.executor.handles]

    @property
    def absolute(self) -> bool:
        """Whether the budget is that of the process, and no share of a graph's memory."""
        return not self.budget.endswith("x")

    @property
    def budget_bytes(self) -> int:
        """The budget of the first plan in bytes, whatever was reserved later."""
        return self._budget_bytes

    @contextmanager
    def told(self, on: bool) -> Iterator[None]:
        """Plans what is compiled inside the context, or does not."""
        before, self._told = self._told, on
        try:
            yield
        finally:
            self._told = before

    def ask(self, message: dict[str, Any], budget: str) -> tuple[Plan | None, str]:
        """Returns a plan for any graph that this can carry out, and "", or None and why there is
        none."""
        return self._ask(message, budget)

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
        self._decided, self._as_one = [(handle, *one) for one in decided], True
        self._next, self._budget_bytes = 0, budget_bytes
        self.collects = False
        return ""

    def decide_each(self, plans: list[Plan]) -> str:
        """Takes other plans for the graphs that have one, in the same order; all are about to be
        compiled again. Returns "", or why they are not used."""
        before, self.executor.handles = self.executor.handles, []
        decided: list[tuple[JointPlan, int, set[int]] | None] = [None] * len(self.graphs)
        for old, plan in zip(before, plans, strict=True):
            handle = installed(self.executor, JointGraph(old.message, []), plan)
            if isinstance(handle, str):
                self.executor.handles = before
                return handle
            handle.number = old.number
            decided[old.number] = handle, old.number, set(plan.recomputed_ops)
        self._decided, self._next = decided, 0
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
            if self._as_one or self._next < len(self._decided):
                self._carry_out(graph)
                return
            message, made = joint_graph(graph)
            if not has_backward(message):
                return
            self.graphs.append({**message})
            inputs = message["static_bytes"]
            if self.absolute:
                device = _device_of(graph)
                alive = alive_bytes(device)
                # Once: what is free is less when the next graph is compiled.
                self.budget = in_bytes(self.budget, device, alive)
            if self.collects:
                return
            if self.absolute:
                message["static_bytes"] += max(0, alive - inputs)
            again = self._budget_bytes and not self.absolute
            plan, why = self.ask(message, str(self._budget_bytes) if again else self.budget)
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
                self.inputs_bytes += inputs
                self._budget_bytes = self._budget_bytes or plan.budget_bytes
                say(plan.sentence)
        except Exception as error:
            self.why.append(str(error))
            say(f"a graph is compiled without a plan: {described(error)}")

    def _carry_out(self, graph: Any) -> None:
        """Tags the next graph as was decided for it, if it is the one that this was decided for."""
        message, made = joint_graph(graph, measured=False)
        if not has_backward(message):
            return
        number, self._next = self._next, self._next + 1
        decided = self._decided[number] if number < len(self._decided) else None
        if number < len(self._decided) and decided is None:
            return  # it had no plan before
        if decided is None or not alike(message, self.graphs[decided[1]]):
            why = "it is not among the graphs that were planned together"
            self.why.append(why)
            say(f"a graph is compiled without a plan: {why}")
            return
        handle, _, again = decided
        dropped = {i for op in again for i in message["ops"][op]["writes"]}
        kept = {s["id"] for s in message["storages"]} - dropped
        handle.recomputed += tag(made, message, again, kept)


def _device_of(graph: Any) -> torch.device:
    found = (v for node in graph.nodes for v in tensors_in(node.meta.get("val")))
    return next((v.device for v in found), torch.device("cpu"))


def _ask(message: dict[str, Any], budget: str) -> tuple[Plan | None, str]:
    plan, why = ask(message, budget, CAPABILITIES[0])
    if plan is not None:
        return plan, why
    other, _ = ask(message, budget, CAPABILITIES[1])
    if other is not None and peak_under(message, set(other.recomputed_ops)) <= other.budget_bytes:
        return other, ""
    return None, why
