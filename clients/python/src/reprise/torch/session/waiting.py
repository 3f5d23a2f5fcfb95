# SPDX-License-Identifier: Apache-2.0
"""Says what a job without a plan is waiting for, where nothing else has said why there is none, and
how many of its steps exceed the budget.

waiting.forward()             # a forward that trains, of the armed module
waiting.not_called()          # an optimizer of the model has stepped, and no step was under way:
                              # looks once which modules run instead
waiting.unplanned()           # a step has ended that had no plan
waiting.planned()             # one that had

A plan needs a forward through the armed module, an optimizer that steps, a few plain steps, one
that can be captured, and one that the plan is for. Each of them may never come, and each is counted
here.
"""

from __future__ import annotations

import os
import threading
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from reprise.base.units import format_bytes
from reprise.torch.internals.guard import quiet
from reprise.torch.job.job import EagerJob
from reprise.torch.meter.state import blocked
from reprise.torch.policy.policy import Action
from reprise.torch.policy.state import Stage

# Steps of an optimizer without a forward of the model, after which the modules that run instead are
# looked for: one may come from a loop that has not begun.
LOOKS = 2
# Steps in a row without a plan, beside the warm-up, after which the job is told why.
STEPS = 8
# Forwards without a step of an optimizer, after which the job is told: gradients may be accumulated
# over many.
FORWARDS = 64
# Bytes of a peak below which it is not said what malloc keeps of it.
MUCH = 64 << 20


class Waiting:
    """Says of one session what it waits for while it has no plan, and what its steps took."""

    def __init__(self, job: EagerJob) -> None:
        self._job = job
        self._forwards = 0
        self._not_called = 0
        self._elsewhere: _Elsewhere | None = None
        self._unplanned = 0  # in a row
        job.carry_out({Action.SAY_UNPLANNED: self._say_above})

    def forward(self) -> None:
        """Notes that a forward that trains is about to run."""
        job = self._job
        if job.budget is None or job.step.ended:
            return
        self._forwards += 1
        if self._forwards == FORWARDS and job.step.cycle.is_empty:
            job.say(
                f"no plan yet: {FORWARDS} forwards, and no optimizer of torch.optim has stepped "
                "for this model. A step ends when its optimizer has stepped"
            )

    def not_called(self) -> None:
        """Notes that an optimizer of the model has stepped although the model's forward was not
        called."""
        job = self._job
        # Where the program calls `model.forward` itself, nothing else notices that it is another.
        if job.forward is not None:
            job.forward.stay()
        if job.budget is None or job.step.number:
            return
        self._not_called += 1
        if self._not_called == LOOKS:
            if job.hand_over is not None and job.hand_over(None):
                return
            self._elsewhere = _Elsewhere(job.model)
        elif self._not_called == LOOKS + 1 and self._elsewhere is not None:
            parts = self._elsewhere.parts()
            names = ", ".join(list(parts)[:3])
            if len(parts) == 1 and job.hand_over is not None:
                job.say(
                    f"the model's own forward is never called, but that of its part {names} is: "
                    "that part is planned"
                )
                job.hand_over(next(iter(parts.values())))
                return
            job.say(
                "no plan yet: the forward of this model was never called with gradients"
                + (
                    f"; its parts {names} are. Call reprise.auto with each of them, or with one "
                    "module whose forward calls them"
                    if parts
                    else ", or only inside torch.compile or torch.func. Call reprise.auto with the "
                    "module that the training loop calls"
                )
            )

    def planned(self) -> None:
        """Notes that a step has run under a plan."""
        self._unplanned = 0

    def unplanned(self) -> None:
        """Counts a step that ran without a plan."""
        job = self._job
        self._unplanned += 1
        if job.budget is None or self._unplanned != STEPS + job.options.warmup:
            return
        why = self._why()
        if why:
            job.say(f"no plan in {self._unplanned} steps in a row: {why}")

    def _why(self) -> str:
        """Returns what a job without a plan waits for; "" if that was said when it was decided."""
        job = self._job
        if job.stage is Stage.PLAIN:
            return ""
        if job.agent.status == "inert":
            return job.agent.why or "no collector is running"
        if job.stage is Stage.CAPTURE:
            return (
                blocked() or "another model of this process is being captured until its step ends"
            )
        if job.stage is Stage.PLANNED:
            plans = sum(rung.tape is not None for rung in job.plans.ladder.rungs)
            if plans:
                return f"none of the {plans} plans is for this kind of step"
            return "no requested plan has arrived yet"
        return f"the model is still {job.stage.value}"

    # ---- Above the budget -----------------------------------------------------------------

    @property
    def over_budget(self) -> int:
        """The number of steps without a plan that peaked above the budget; 0 also if it is not
        known yet."""
        return self._job.measured.unplanned_over(self.budget_bytes)

    def _say_above(self, planned: bool) -> None:
        """Says how many such steps there were, before the first plan or in a job that gets none."""
        count, budget = self.over_budget, self.budget_bytes
        if not count:
            return
        steps = "1 step" if count == 1 else f"{count} steps"
        when = "before the plan" if planned else "without a plan"
        peak = max(self._job.measured.unplanned)
        self._job.say(
            f"{steps} ran {when} and peaked at {format_bytes(peak)}, over the budget "
            f"of {format_bytes(budget)}{'' if planned else ', as the next will'}"
            + (self._kept_by_malloc() if planned else "")
        )

    @property
    def budget_bytes(self) -> int:
        """The budget in bytes as the planner reads it; a share is of what is not alive during the
        whole step. 0 if not known."""
        plans, budget = self._job.plans, self._job.budget
        if plans.plan is not None and plans.plan.budget_bytes:
            return plans.plan.budget_bytes
        graph = plans.graph
        if budget is None or (budget.is_share and graph is None):
            return 0
        static, peak = (graph.static_bytes, graph.measured_peak_bytes) if graph else (0, 0)
        return budget.of_step(static, peak) or 0

    def _kept_by_malloc(self) -> str:
        """Says what the process itself holds after such steps, where it is not what its tensors
        need; "" where that is little, or malloc was told to give large blocks back."""
        told = "MALLOC_MMAP_THRESHOLD_" in os.environ
        told = told or "mmap_threshold" in os.environ.get("GLIBC_TUNABLES", "")
        if self._job.device.type != "cpu" or told or max(self._job.measured.unplanned) < MUCH:
            return ""
        return (
            ". The process's own memory hardly falls from there: malloc keeps what is freed "
            "(MALLOC_MMAP_THRESHOLD_=1000000 gives large blocks back)"
        )


class _Elsewhere:
    """Finds the parts of a model that the program calls instead of the model, as the training_step
    of a LightningModule does: watches calls until `parts` is read."""

    def __init__(self, model: nn.Module) -> None:
        self._inside = 0
        self._thread = threading.get_ident()
        self._names = {id(part): name for name, part in model.named_modules() if name}
        self._found: dict[str, nn.Module] = {}
        self._handles: list[Any] = [
            register_module_forward_pre_hook(quiet(self._before)),
            register_module_forward_hook(quiet(self._after), always_call=True),
        ]

    def _before(self, module: nn.Module, _: Any) -> None:
        if torch.compiler.is_compiling() or threading.get_ident() != self._thread:
            return
        self._inside += 1
        name = self._names.get(id(module))
        trains = module.training and torch.is_grad_enabled()
        if self._inside == 1 and name and trains and any(True for _ in module.parameters()):
            self._found[name] = module

    def _after(self, module: nn.Module, *_: Any) -> None:
        if not torch.compiler.is_compiling() and threading.get_ident() == self._thread:
            self._inside -= 1

    def parts(self) -> dict[str, nn.Module]:
        """Returns the modules, by name, that were called with gradients from outside any other
        module."""
        for handle in self._handles:
            handle.remove()
        self._handles, self._inside = [], 0
        return self._found
