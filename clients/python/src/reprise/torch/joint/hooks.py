# SPDX-License-Identifier: Apache-2.0
"""Where this torch lets somebody look at a joint graph before it is partitioned.

    hooks = find_hooks()                 # empty: nowhere
    for hook in hooks: hook.install(visit)
    ...compile: visit(graph) is called once per joint graph...
    for hook in hooks: hook.remove()

| hook | sees the graphs of |
|---|---|
| `torch._functorch.config.joint_custom_pass` | every backend of AOTAutograd |
| `torch._inductor.config.joint_custom_post_pass` | Inductor, after its own joint passes |

contracts.py knows which release has which. Inductor rewrites the joint graph before it
partitions it (attention becomes one op, random ops become seeds), and a tag on what was replaced is
gone; so where both are there, the first one leaves the graphs of Inductor to the second. Its
partitioner makes one of ops that are equal, and then keeps what both halves of the step use: so it
is the graph with such ops as one that is shown.

A look that fails leaves the graph to whoever compiles it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from reprise.torch.internals.calls import chained, given, in_turn
from reprise.torch.internals.contracts import GRAPH_CSE, INDUCTOR_PASS, JOINT_PASS
from reprise.torch.internals.traces import frames

Visit = Callable[[Any], None]

# What the partitioner reads of a node, beside its values.
TAGS = ("recompute", "ac_graph_id")


class FunctorchHook:
    """The hook for joint graphs that AOTAutograd offers."""

    name = "joint_custom_pass"

    def __init__(self, config: Any, leave_inductor: bool) -> None:
        self._config = config
        self._leave_inductor = leave_inductor
        self._before: Any = None
        self._cached: Any = None
        self._pass: Any = None

    def install(self, visit: Visit) -> None:
        """Calls `visit` with every joint graph, after a pass that is there already."""
        before = self._before = self._config.joint_custom_pass

        def joint_pass(call: Callable[..., Any], gm: Any, inputs: Any) -> Any:
            gm = call(gm, inputs)
            if not (self._leave_inductor and _in_inductor()):
                visit(gm.graph)
            return gm

        self._pass = chained(before if callable(before) else given, [joint_pass])
        self._config.joint_custom_pass = self._pass
        # What AOTAutograd has on disk does not know this pass: a graph that was compiled before
        # would come without a plan, and one with a plan would come back where there is none.
        self._cached = getattr(self._config, "enable_autograd_cache", None)
        if self._cached is not None:
            self._config.enable_autograd_cache = False

    def remove(self) -> None:
        """Removes the hook. Idempotent; a pass that was installed later stays."""
        if self._pass is not None and self._config.joint_custom_pass is self._pass:
            self._config.joint_custom_pass = self._before
            if self._cached is not None:
                self._config.enable_autograd_cache = self._cached
        self._pass = None


class InductorHook:
    """The hook for joint graphs that Inductor offers, after its own passes."""

    name = "joint_custom_post_pass"

    def __init__(self, config: Any) -> None:
        self._config = config
        self._before: Any = None
        self._pass: Any = None

    def install(self, visit: Visit) -> None:
        """Calls `visit` with every joint graph, after passes that are there already."""
        before = self._before = self._config.joint_custom_post_pass
        earlier = before if isinstance(before, (list, tuple)) else [before]

        def post_pass(call: Callable[..., None], graph: Any) -> None:
            call(graph)
            own = {node.name: node for node in graph.nodes}
            merged = _merged(graph)
            if any(node.name not in own for node in merged.nodes):
                merged = graph
            visit(merged)
            for node in merged.nodes:
                own[node.name].meta |= {tag: node.meta[tag] for tag in TAGS if tag in node.meta}

        self._pass = _as_graph_pass(chained(in_turn([*earlier]), [post_pass]))
        self._config.joint_custom_post_pass = self._pass

    def remove(self) -> None:
        """Removes the hook. Idempotent; a pass that was installed later stays."""
        if self._pass is not None and self._config.joint_custom_post_pass is self._pass:
            self._config.joint_custom_post_pass = self._before
        self._pass = None


def find_hooks() -> list[FunctorchHook | InductorHook]:
    """Returns the hooks that the installed torch offers."""
    found: list[FunctorchHook | InductorHook] = []
    has_inductor = INDUCTOR_PASS.there()
    if JOINT_PASS.there():
        found.append(FunctorchHook(_functorch_config(), leave_inductor=has_inductor))
    if has_inductor:
        import torch._inductor.config as inductor

        found.append(InductorHook(inductor))
    return found


def _merged(graph: Any) -> Any:
    """Returns a copy of a graph in which ops that are equal are one; the graph itself where they
    stay several."""
    merge = GRAPH_CSE.get() if getattr(_functorch_config(), "cse", True) else None
    return graph if merge is None else merge(graph)


def _functorch_config() -> Any:
    import torch._functorch.config

    return torch._functorch.config


def _as_graph_pass(post_pass: Callable[..., Any]) -> Any:
    """Returns the pass in the form that Inductor asks for. Its `uuid` is None: what is compiled
    with a plan is not cached under the name of what is compiled without."""
    from torch._inductor.custom_graph_pass import CustomGraphPass

    class Pass(CustomGraphPass):
        __call__ = staticmethod(post_pass)

        def uuid(self) -> Any:
            return None

    return Pass()


def _in_inductor() -> bool:
    """Returns whether Inductor is compiling, which it does not tell a pass."""
    return any(f.f_globals.get("__name__") == "torch._inductor.compile_fx" for f in frames())
