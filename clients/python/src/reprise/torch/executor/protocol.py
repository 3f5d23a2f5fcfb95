# SPDX-License-Identifier: Apache-2.0
"""What a training loop needs of whatever runs the steps of a model under plans.

    text = executor.capabilities(graph)      # what it can do, for the planner
    handle = installed(executor, graph, plan)
    if isinstance(handle, str): ...          # why it cannot run this plan
    handle.stats()                           # of the newest step under the plan
    handle.remove()                          # the next steps run without it

| executor | graph | runs a plan |
|---|---|---|
| `TapeExecutor` (tape/executor.py) | a captured step | op by op, in eager mode |
| `JointExecutor` (joint/executor.py) | a joint graph of torch.compile | by the tags of its nodes |

An executor neither repairs a plan nor evaluates it, and asks nobody for another one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

from reprise.base.errors import RepriseError
from reprise.plan import Plan
from reprise.torch.check import quarantine

Graph = TypeVar("Graph", contravariant=True)
Installed = TypeVar("Installed", bound="Handle", covariant=True)


@dataclass(frozen=True, slots=True)
class StepStats:
    """What one step under a plan did."""

    recomputed: int = 0  # ops that ran again
    mismatches: int = 0  # 1 if its ops were others than those of the plan's graph
    kept_all: bool = False  # it discarded nothing, or no more after some op


@runtime_checkable
class Handle(Protocol):
    """A plan under which the next steps run."""

    @property
    def plan(self) -> Plan:
        """Returns the plan, also after it was removed."""

    def stats(self) -> StepStats:
        """Returns what the newest step under the plan did."""

    def graph_json(self) -> bytes:
        """Returns the step graph of the plan, as it was sent to the planner."""

    def remove(self) -> None:
        """Makes the steps that begin from now on run without the plan. Calling it again does
        nothing."""


class Executor(Protocol[Graph, Installed]):
    """Runs the steps of one model under plans."""

    def capabilities(self, graph: Graph) -> str:
        """Returns what it can do with a step like this one, as the planner reads it."""

    def install(self, graph: Graph, plan: Plan) -> Installed:
        """Makes the next steps that are like `graph` run under `plan`, and returns its handle.
        Raises RepriseError if it cannot run the plan; then nothing has changed."""


def installed(executor: Executor[Graph, Installed], graph: Graph, plan: Plan) -> Installed | str:
    """Installs a plan and returns its handle, or returns why it is not used: the executor cannot
    run it, or gradients differed under it before."""
    if quarantine.holds(plan):
        return f"plan {plan.plan_id} was found earlier to change gradients"
    try:
        return executor.install(graph, plan)
    except RepriseError as error:
        return str(error)
