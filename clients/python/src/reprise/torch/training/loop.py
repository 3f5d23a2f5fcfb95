# SPDX-License-Identifier: Apache-2.0
"""The training loop of one model under Reprise, however its steps are run.

    class Session(TrainingLoop): ...       # an eager model (session/session.py)
    class CompiledJob(TrainingLoop): ...   # a model compiled by torch.compile (joint/job.py)

`TrainingLoop` owns what both need: the hooks around the optimizers of the process, which of those
optimizers update the model, what is measured and reported, what happens after an internal error,
and how the loop ends: with the model, with the program, or when the program calls `reprise.remove`.
"""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist
from torch.optim import Optimizer

from reprise.base.units import format_bytes
from reprise.plan import Plan
from reprise.torch.executor.protocol import Handle
from reprise.torch.internals import guard, optimizers
from reprise.torch.internals.distributed import ranks_have_met
from reprise.torch.policy.state import Stage
from reprise.torch.training.job import Job

# A flat copy of all parameters may be so much longer than they are.
PADDED = 1.25
# The loops of this process that have not ended, in the order in which they began.
open_loops: dict[TrainingLoop, None] = {}


class TrainingLoop:
    """The hooks of one model that is trained, and the state that they share."""

    def __init__(self, job: Job) -> None:
        """Installs nothing; `_observe` does."""
        self.job = job
        self.attached = False  # by `reprise run`, not by the program
        self._cleared_up = False  # after an internal error
        self._reports = True  # to the agent
        self._pid = os.getpid()
        self._parameters = {id(p) for p in job.model.parameters()}
        self._foreign: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._has_own = False  # an optimizer of the model's own parameters has stepped
        self._close = guard.quiet(self.close)

    def _observe(self) -> None:
        """Begins to observe optimizers, internal errors, and the end of the model and of the
        program."""
        weakref.finalize(self.job.model, guard.quiet(self.gone)).atexit = False
        guard.listen(self._broke)
        atexit.register(self._close)
        optimizers.observe(self)
        open_loops[self] = None

    def _leave(self) -> None:
        """Ends what `_observe` began, but for internal errors. Calling it again does nothing."""
        open_loops.pop(self, None)
        optimizers.leave(self)
        atexit.unregister(self._close)

    def _end_reports(self) -> None:
        """Ends this loop's part of the agent's session; the last loop of the process ends the
        session, so that what was reported arrives and the run is seen to end and not to die.
        Reports the error that ends the program, if one does. Calling it again does nothing."""
        if not self._reports:
            return
        self._reports = False
        if (error := fatal_error()) is not None:
            guard.quietly(self.job.record.failed, error)
        if not open_loops and os.getpid() == self._pid:
            self.job.agent.stop()

    def remove(self) -> None:
        """Takes every hook out; the model is as it was. Calling it again does nothing."""
        raise NotImplementedError

    def close(self) -> None:
        """Ends the reports of the loop, because it or the program ends."""
        raise NotImplementedError

    def gone(self) -> None:
        """Ends the loop because its model has died, maybe in the middle of a step."""
        raise NotImplementedError

    @property
    def in_forward(self) -> bool:
        """Whether a forward of the model is running that the loop knows of."""
        return self.job.busy

    # ---- Plans ------------------------------------------------------------------------

    @property
    def handles(self) -> Sequence[Handle]:
        """The plans that are installed and not removed."""
        raise NotImplementedError

    # ---- The report -------------------------------------------------------------------

    @property
    def plan(self) -> Plan | None:
        """The plan of the newest planned step; a refusal if that is what came last."""
        raise NotImplementedError

    @property
    def standing(self) -> tuple[str, str]:
        """How the model is trained at present, in words, and why; "" if there is no reason."""
        raise NotImplementedError

    def figures(self) -> dict[str, Any]:
        """Returns what was predicted and measured so far: the fields of `reprise.Report`."""
        plan, measured, verdict = self.plan, self.job.measured, self.job.record.verdict()
        stage, why = self.standing
        return {
            "stage": stage,
            "why": why,
            "budget": self.job.budget,
            "budget_bytes": plan.budget_bytes if plan else 0,
            "plan_id": plan.plan_id if plan else "",
            "base_peak_bytes": measured.base_peak_bytes,
            "predicted_peak_bytes": verdict.predicted_peak_bytes,
            "measured_peak_bytes": verdict.measured_peak_bytes,
            "base_step_ns": verdict.base_step_ns or measured.base_step_ns,
            "predicted_step_ns": verdict.predicted_step_ns,
            "measured_step_ns": verdict.measured_step_ns,
            "overhead_bound": verdict.overhead_bound,
            "planned_steps": verdict.planned_steps,
            "mismatched_steps": measured.mismatched_steps,
            "over_budget_steps": verdict.over_budget_steps,
            "unplanned_steps": verdict.unplanned_steps,
            "unplanned_peak_bytes": verdict.unplanned_peak_bytes,
            "checks": verdict.checks,
            "failed_checks": verdict.checks_differing,
            "gradients_equal": verdict.gradients_equal,
            "values_equal": verdict.values_equal,
            "gradient_checks": verdict.checks - verdict.value_checks,
            "buffers_checked": measured.buffers_checked,
            "unchecked": verdict.unchecked,
            "verify_extra_bytes": measured.verify_extra_bytes,
            "verify_peak_bytes": measured.verify_peak_bytes,
            "validated": verdict.validated,
            "sentence": verdict.sentence or self._no_plan_yet(stage, why),
            "plan": plan if self.job.stage is Stage.PLANNED else None,
        }

    def _no_plan_yet(self, stage: str, why: str) -> str:
        """Returns the sentence of a report before there is a plan or a refusal."""
        measured, reason = self.job.measured, f" ({why})" if why else ""
        peak = f"  Peak {format_bytes(measured.base_peak_bytes)}" if measured.plain_steps else ""
        return f"No plan: {stage}{reason}.{peak}"

    # ---- Internal errors --------------------------------------------------------------

    def _broke(self, error: Exception) -> bool:
        """Keeps the first internal error, maybe in the middle of an op. Removes nothing: that
        waits for the next call of the model or of a hook. Returns whether the error was said."""
        self.job.fault = self.job.fault or guard.failure(error)
        return False

    def _clear_up(self) -> None:
        """Removes what is in the way of the program after an internal error."""
        raise NotImplementedError

    def _between(self) -> None:
        """Clears up after an internal error while no forward or backward of the model runs."""
        if not self._cleared_up:
            guard.quietly(self._clear_up)

    def _safely(self, do: Callable[[Optimizer], None], optimizer: Optimizer) -> None:
        """Calls `do` unless there was an internal error; an error in it is not raised. Clears up
        if there was one, now or before."""
        try:
            if not self.job.fault:
                do(optimizer)
        except Exception as error:
            guard.fault(error)
        if self.job.fault:
            self._between()

    # ---- Optimizers -------------------------------------------------------------------

    def before_optimizer(self, optimizer: Optimizer) -> None:
        """Notes that an optimizer of the process is about to step."""
        self._safely(self._before_optimizer, optimizer)

    def after_optimizer(self, optimizer: Optimizer) -> None:
        """Notes that an optimizer of the process has stepped, which may end the step."""
        self._safely(self._after_optimizer, optimizer)

    def _before_optimizer(self, optimizer: Optimizer) -> None:
        raise NotImplementedError

    def _after_optimizer(self, optimizer: Optimizer) -> None:
        raise NotImplementedError

    def _owns(self, optimizer: Optimizer) -> bool:
        """Returns whether an optimizer updates parameters of the model: its own, or, in a job in
        which none does that, copies of them."""
        if optimizer in self._foreign:
            return False
        for again in (False, True):
            if again:  # parameters may have been replaced: a new head, a lazy module
                model = self.job.alive()
                self._parameters = {id(p) for p in model.parameters()} if model else set()
            if self._updates(optimizer):
                if not self._has_own:
                    self._has_own = True
                    self._has_own_optimizer()
                return True
        if not self._has_own:
            return self._copies(optimizer)
        self._foreign.add(optimizer)
        return False

    def _copies(self, optimizer: Optimizer) -> bool:
        """Returns whether an optimizer evidently updates copies of the model's parameters (master
        weights in another precision, flat or not, maybe of one rank's share), from which the
        program copies them back: it has about as many elements, and no other model has them."""
        model = self.job.alive()
        if model is None or any(loop._updates(optimizer) for loop in open_loops):
            return False
        trained = [p for p in model.parameters() if p.requires_grad]
        mine = sum(p.numel() for p in trained)
        theirs = sum(p.numel() for group in optimizer.param_groups for p in group["params"])
        world = dist.get_world_size() if ranks_have_met() else 1
        enough = mine <= theirs * world and theirs <= mine * PADDED
        return bool(mine) and enough

    def _has_own_optimizer(self) -> None:
        """Notes that an optimizer of the model's own parameters has stepped: no other one counts
        from here on."""

    def _updates(self, optimizer: Optimizer) -> bool:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if id(parameter) in self._parameters:
                    return True
        return False


def forward_runs() -> bool:
    """Returns whether a forward of an armed model is running: the program's, or one that Reprise
    runs again to recover or to compare gradients."""
    return any(loop.in_forward for loop in tuple(open_loops))


def fatal_error() -> BaseException | None:
    """Returns the exception that ends the program; None if there is none. In an interactive
    session an exception ends nothing."""
    if hasattr(sys, "ps1") or "ipykernel" in sys.modules:
        return None
    error = getattr(sys, "last_value", None)
    return error if isinstance(error, BaseException) else None
