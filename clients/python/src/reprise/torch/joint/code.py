# SPDX-License-Identifier: Apache-2.0
"""What torch.compile makes of one model: code with plans, and code without one, as a reference.

    code = Code(site, joint, aside)
    code.planned(x); code.plain(x)
    code.keep()                  # what `planned` is so far has no plan: it is `plain` from here on
    code.again()                 # the next call of `planned` compiles
    code.calls, code.parts       # graphs that the last forward has called, in order, and in which
                                 # part of the model
    code.check = GraphCheck(model, code.graphs, aside)    # their calls go through it

Both are compiled at their first call, by the program's own backend with the same settings. Compiled
code outlives the model in the caches of torch.compile, so it holds nothing of the job.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any

from reprise.torch.internals import calls, guard
from reprise.torch.joint.graph_check import GraphCheck
from reprise.torch.joint.joint_pass import JointPass
from reprise.torch.joint.site import Site
from reprise.torch.joint.step_memory import StepMemory


class Code:
    """The compiled code of one model."""

    def __init__(
        self, site: Site, joint: JointPass, aside: Callable[[], AbstractContextManager[None]]
    ) -> None:
        """`aside`: makes a context for what compiles, which is no part of the step's memory."""
        self._site = site
        self._joint = joint
        self._aside = aside
        self.calls: list[int] = []
        self.parts: list[int] = []
        self.is_asked = False  # the backend was given something
        self.is_planned = True  # what is compiled from now on by `planned` gets a plan
        self.is_ours = True  # False: what is compiled is none of Reprise's business any more
        self.check: GraphCheck | None = None
        self.watched: StepMemory | None = None  # told of the calls of graphs, if set
        self.graphs: dict[int, Callable[..., Any]] = {}  # compiled without a plan, by graph
        self._made: dict[int, Callable[..., Any]] = {}  # in the first turn, with plans or without
        self._turn = 0  # of what is compiled with plans
        self.plain = self._compiled(-1)
        self.planned = self._compiled(0)

    def begin(self) -> None:
        """Notes that a forward begins."""
        self.calls, self.parts = [], []

    def again(self, kinds: dict[int, int]) -> None:
        """Compiles the code with plans again at its next call. `kinds`: of the parts of the
        model."""
        self._site.kinds = kinds
        self._turn += 1
        self.planned = self._compiled(self._turn)

    def keep(self) -> None:
        """Takes what was compiled without a plan as the reference."""
        self._turn += 1
        self.plain, self.graphs = self.planned, self._made

    def _compiled(self, turn: int) -> Callable[..., Any]:
        """Returns the model compiled by a backend of its own: nothing is shared with another."""
        known = weakref.ref(self)

        def flavour(call: Callable[..., Any], gm: Any, inputs: Any, **more: Any) -> Any:
            code = known()
            if code is None or not code.is_ours:
                return call(gm, inputs, **more)
            code.is_asked = True
            joint = code._joint
            joint.at = None
            with joint.told(code.is_planned and turn == code._turn), code._aside():
                found = call(gm, inputs, **more)
            graph = joint.at
            if graph is None:
                return found
            if turn == 0:
                code._made[graph] = found
            return code._counted(found, graph)

        return self._site.compiled(lambda backend: calls.chained(backend, [flavour]))

    def _counted(self, compiled: Callable[..., Any], graph: int) -> Callable[..., Any]:
        """Returns the compiled code; each call notes which graph of the step it is."""
        known = weakref.ref(self)

        def called(call: Callable[..., Any], *args: Any) -> Any:
            code = known()
            if code is None:
                return call(*args)
            code.calls.append(graph)
            code.parts.append(code._site.part)
            check, memory = code.check, code.watched
            if memory is not None:
                guard.quietly(memory.entered)
            begun = None if check is None else guard.quiet(check.begin)(graph, args)
            out = call(*args)
            if check is not None and begun is not None:
                guard.quietly(check.end, begun, out, args)
            if memory is not None:
                guard.quietly(memory.handed, out, args)
            return out

        made = wraps(compiled)(calls.chained(compiled, [called]))
        # What this names is called in place of the function that has it, in torch 2.8.
        vars(made).pop("_torchdynamo_orig_callable", None)
        return made
