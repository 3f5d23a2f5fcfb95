# SPDX-License-Identifier: Apache-2.0
"""The executor of compiled models: a plan is tags on the nodes of a joint graph.

    executor = JointExecutor()
    handle = executor.install(JointGraph(message, made), plan)      # while the graph is compiled
    handle.remove()

The partitioner of AOTAutograd saves what is tagged as saved, and lets the backward recompute what
is tagged as recomputed. Compiled code cannot be changed any more: after a handle was removed, the
job calls code that was compiled without a plan (`is_removed`).
"""

from __future__ import annotations

import json
import operator
from dataclasses import dataclass
from typing import Any

from reprise.base.errors import RepriseError
from reprise.plan import Decision, Plan
from reprise.torch.executor.protocol import StepStats
from reprise.torch.joint.joint_graph import LOSS, JointGraph, Made

# Random ops keep their masks.
CAPABILITIES = "joint"
# Any one constant: a larger id on a user would turn its input into a saved one.
_GROUP = 0


@dataclass(eq=False)
class JointPlan:
    """A plan of a compiled graph, or of several as one."""

    executor: JointExecutor
    message: dict[str, Any]  # the step graph, as it was sent to the planner
    plan: Plan
    recomputed: int = 0  # nodes that are tagged so
    number: int = 0  # of its graph, among those of the model that have a backward

    def stats(self) -> StepStats:
        """Returns what a step under the plan does. Compiled code never leaves its plan."""
        return StepStats(recomputed=self.recomputed)

    def graph_json(self) -> bytes:
        """Returns the step graph of the plan, as it was sent to the planner."""
        return json.dumps(self.message).encode()

    def remove(self) -> None:
        """Ends all plans of the model: its graphs are compiled together."""
        self.executor.is_removed = True


class JointExecutor:
    """Runs plans in what torch.compile makes of one model."""

    def __init__(self) -> None:
        self.handles: list[JointPlan] = []
        self.is_removed = False  # code that was compiled without a plan is to be called

    def capabilities(self, graph: JointGraph) -> str:
        """Returns the executor as the server reads it: each op runs once more at most."""
        return CAPABILITIES

    def install(self, graph: JointGraph, plan: Plan) -> JointPlan:
        """Tags the nodes of a graph that is about to be partitioned; none where several graphs,
        which are compiled after this, are one. Raises RepriseError if the plan is of another
        graph."""
        ops, storages = graph.message["ops"], graph.message["storages"]
        if len(plan.decisions) != len(storages) or any(
            not 0 <= op < len(ops) for op in plan.recomputed_ops
        ):
            raise RepriseError(
                f"plan {plan.plan_id} is of a graph with {len(plan.decisions)} storages, the "
                f"compiled graph has {len(storages)} and {len(ops)} ops"
            )
        handle = JointPlan(self, graph.message, plan)
        saved = {i for i, how in enumerate(plan.decisions) if how is Decision.SAVE}
        handle.recomputed = tag(graph.made, graph.message, set(plan.recomputed_ops), saved)
        self.handles.append(handle)
        return handle


def tag(made: Made, message: dict[str, Any], run_again: set[int], saved: set[int]) -> int:
    """Writes a plan into the nodes, and returns how many are recomputed. Every storage that
    crosses, or that what is recomputed reads, is decided here: the partitioner decides nothing."""
    from torch.utils.checkpoint import CheckpointPolicy

    recomputed = 0
    ops = message["ops"]
    again = {i for o in run_again for i in ops[o]["writes"]}
    # Nodes that only the backward wants run there, once.
    late = {i for op in ops if op["phase"] == "PHASE_BACKWARD" for i in op["writes"]}
    needed = {i for o in run_again for i in ops[o]["reads"]}
    needed |= {
        i
        for op in ops
        if op["phase"] == "PHASE_BACKWARD" and op["name"] != LOSS
        for i in op["reads"]
    }
    for node, storage in made:
        if storage in again:
            node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE
            recomputed += node.target is not operator.getitem
        elif storage in late:
            node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE
        elif storage in needed and storage in saved:
            node.meta["recompute"] = CheckpointPolicy.MUST_SAVE
        else:
            continue
        node.meta["ac_graph_id"] = _GROUP
    return recomputed
