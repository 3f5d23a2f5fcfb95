# SPDX-License-Identifier: Apache-2.0
"""A step graph as a message of reprise.v1.StepGraph. As in proto3, zero and empty fields are left
out."""

from __future__ import annotations

from typing import Any

from reprise.plan.step_graph import Op, StepGraph, Storage, filled

__all__ = ["graph_message"]

_GRAPH = (
    *("name", "source", "note", "flavour"),
    *("static_bytes", "measured_peak_bytes", "measured_step_ns"),
)
_STORAGE = ("bytes", "name", "saved_for_backward", "pinned")
_OP = (
    *("name", "time_ns", "workspace_bytes", "reads", "writes", "mutates", "module"),
    *("again_ns", "state_bytes", "replay_windows"),
)


def graph_message(graph: StepGraph) -> dict[str, Any]:
    """Returns the message of a graph. Raises RepriseError with the path of the first field that
    the planner would refuse."""
    graph.check()
    message = filled(graph, _GRAPH)
    message["storages"] = [_storage(s, made) for s, made in enumerate(graph.storages)]
    message["ops"] = [_op(o, made) for o, made in enumerate(graph.ops)]
    return {**message, "required": graph.required}


def _storage(s: int, made: Storage) -> dict[str, Any]:
    """Returns the message of a storage, whose id is `s`."""
    message = {"id": s or None, "category": f"CATEGORY_{made.category.upper()}"}
    if made.release_op is not None:  # op 0, too
        message["release_op"] = made.release_op
    return {**message, **filled(made, _STORAGE)}


def _op(o: int, made: Op) -> dict[str, Any]:
    """Returns the message of an op, whose id is `o`."""
    message: dict[str, Any] = {
        "id": o or None,
        "phase": f"PHASE_{made.phase.upper()}",
        "kind": f"OP_KIND_{made.kind.upper()}",
    }
    if not made.replay_point:  # true if it is absent
        message["replay_point"] = False
    return {**message, **filled(made, _OP)}
