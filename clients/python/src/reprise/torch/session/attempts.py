# SPDX-License-Identifier: Apache-2.0
"""A forward, and once more where memory runs out in it or in its backward.

tries.forward(call, args, kwargs)        # of the step under way
tries.retake(forward, arguments, why)    # of a planned step (planned_retry.py)
tries.gave_up(what, why)                 # where nothing can be taken again
tries.ran_out(asked)                     # an allocator gives up, wherever that is
tries.settle()                           # a forward begins: of the step before it, what is left?
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from reprise.base.units import format_bytes
from reprise.torch.internals import guard
from reprise.torch.job.job import EagerJob
from reprise.torch.ladder.rung import key_of
from reprise.torch.meter.room import advice
from reprise.torch.policy.events import ForwardRanOut, RanOutElsewhere
from reprise.torch.policy.policy import Action
from reprise.torch.recovery import oom
from reprise.torch.recovery.planned_forward import PlannedForward
from reprise.torch.session.parts import Parts
from reprise.torch.session.steps import Steps


class Attempts:
    """Runs forwards of one session, and runs them again if memory runs out."""

    def __init__(self, job: EagerJob, steps: Steps, parts: Parts) -> None:
        self._job = job
        self._steps = steps
        self._parts = parts
        parts.planned_retry.retake, parts.planned_retry.gave_up = self.retake, self.gave_up
        self._outside: tuple[str, int] | None = None  # where it did, past forward and backward
        job.carry_out(
            {
                Action.SAY_TIGHTER: lambda found: self.gave_up(
                    "out of memory in {} ({})".format(*found), "it is not the model's"
                ),
                Action.TOO_LARGE: self._too_large,
                Action.TIGHTEN: self._tighten_later,
            }
        )

    def forward(
        self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Runs a forward of the step under way and returns its output; runs it again if it runs
        out of memory and can."""
        job, step, steps, parts = self._job, self._job.step, self._steps, self._parts
        if step.forwards:  # its key is that of the largest of its micro-batches so far
            step.key = step.key.widened(key_of(args, kwargs, job.device.type, job.model))
        parts.answer.calls(args, kwargs)
        rare = step.capture is not None or (job.state.starting and parts.startup.retries)
        before = oom.Before(job.model, rare) if job.short_of_memory or rare else None
        planned = None
        try:
            return steps.forward(call, args, kwargs)
        except BaseException as error:
            if not guard.is_oom(error):
                steps.abandon()
                raise
            # While all that filled the memory is still there.
            guard.quietly(parts.progress.ran_out, error)
            guard.quietly(parts.answer.ran_out)
            planned = parts.planned_retry.failed()
            text = (str(error).splitlines() or [type(error).__name__])[0]
            event = ForwardRanOut(
                can_rerun=planned is not None,
                is_restorable=before is not None and before.again,
                was_captured=step.capture is not None,
            )
            step.out_of_memory = job.short_of_memory = True
            actions = job.happened(event, ("the forward", text))
            if planned is None:
                steps.drop()
                elsewhere = Action.RUN_ELSEWHERE in actions
                if not (elsewhere or Action.RUN_AGAIN in actions):
                    raise
                if elsewhere and not parts.startup.gave_up(text):
                    raise
        # Outside the handler: its traceback would keep the failed forward's tensors.
        if planned is not None:
            return self.retake(*planned, f"out of memory in the forward ({text})")
        assert before is not None
        oom.make_room()
        before.rewind()
        steps.begin(args, kwargs, again=True)
        return steps.forward(call, args, kwargs)

    def retake(self, forward: PlannedForward, arguments: tuple[Any, Any], why: str) -> Any:
        """Runs a planned forward again under a tighter plan, from its state, and returns its
        output."""
        job, step, steps = self._job, self._job.step, self._steps
        job.say(
            f"step {step.number}: {why}; the step runs again under a tighter plan"
            f"{advice(job.device)}"
        )
        self._tighten()
        steps.drop()
        oom.make_room()
        forward.before.rewind()
        steps.begin(*arguments, again=True)
        try:
            with forward.before.settings():
                return steps.forward(forward.call, *arguments)
        except BaseException as error:
            if guard.is_oom(error):
                guard.quietly(self._parts.progress.ran_out, error)
                self.gave_up("out of memory again", "it has already been run again")
            raise

    def gave_up(self, what: str, why: str) -> None:
        """Says that a step cannot run again; the next step requests less memory."""
        job = self._job
        alone = not job.state.several_ranks
        follows = (
            "the next step runs under a tighter plan"
            if alone
            else "the next start requests less memory"
        )
        job.say(
            f"step {job.step.number}: {what}, which cannot be run again: {why}; {follows}"
            f"{advice(job.device)}"
        )
        self._tighten()
        self._steps.drop()

    def ran_out(self, asked: int) -> None:
        """Notes that an allocator gave up, asked for `asked` bytes. Errors of a forward or a
        backward come by where they can run again. Elsewhere, as in the loss, the error is the
        program's: what follows from it waits until the program has gone on, which may do with
        less."""
        job, step = self._job, self._job.step
        if step.in_forward or job.busy or torch._C._current_graph_task_id() != -1:
            return
        where = "the optimizer" if step.in_optimizer else "the program's code beside the model"
        self._outside = where, asked

    def settle(self) -> None:
        """Gives up the last step if memory ran out in it and it has not ended, because another
        forward begins."""
        found, self._outside = self._outside, None
        job, step = self._job, self._job.step
        if found is None or not step.under_way or step.in_forward:
            return
        where, asked = found
        event = RanOutElsewhere(was_planned=step.run is not None)
        job.happened(event, (where, f"{format_bytes(asked)} were asked for"))
        self._steps.drop()

    def _too_large(self, _: tuple[str, str]) -> None:
        # It ran without a plan, which was ours: it runs under one of those there are.
        job = self._job
        job.plans.ladder.too_large(job.step.key)
        job.say(f"step {job.step.number}: out of memory while an input of its size is new")

    def _tighten_later(self, _: tuple[str, str]) -> None:
        if self._job.budget is None:
            return  # answered when the program has ended (answer.py)
        what = "later plans use less memory"
        if self._job.state.several_ranks:
            what = "the next start requests a tighter plan"
        self._job.say(f"step {self._job.step.number}: out of memory in the forward; {what}")
        self._parts.planning.tighten()

    def _tighten(self) -> None:
        job = self._job
        job.step.out_of_memory = job.short_of_memory = True
        self._parts.planning.tighten()
