# SPDX-License-Identifier: Apache-2.0
"""A forward, and once more where memory runs out in it or in its backward.

tries.forward(call, args, kwargs)        # of the step under way
tries.forward_again(...)                 # of a plain first step (plain_retry.py)
tries.retake(forward, arguments, why)    # of a planned step (planned_retry.py)
tries.gave_up(what, why)                 # where nothing can be taken again
tries.ran_out(asked)                     # an allocator gives up, wherever that is
tries.settle()                           # a forward begins: of the step before it, what is left?
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from reprise.torch.internals import guard
from reprise.torch.ladder.rung import key_of
from reprise.torch.meter.room import advice
from reprise.torch.policy.events import ForwardRanOut, RanOutElsewhere
from reprise.torch.policy.policy import Action, decide
from reprise.torch.recovery import oom
from reprise.torch.recovery.planned_forward import PlannedForward
from reprise.torch.rerun.snapshot import Snapshot
from reprise.torch.session.parts import Parts
from reprise.units import format_bytes

__all__ = ["Attempts"]


class Attempts:
    """Runs forwards of one session, and runs them again if memory runs out."""

    def __init__(self, session: Parts) -> None:
        self._session = session
        self.short_of_memory = False  # it has run out before
        self._number = 0  # of the last step
        self._outside: tuple[str, int] | None = None  # where it did, past forward and backward

    def forward(
        self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Runs a forward of the step under way and returns its output; runs it again if it runs
        out of memory and can."""
        session, step = self._session, self._session.step
        self._widen(args, kwargs)
        first = session.startup.plain
        rare = (first and session.startup.near) or step.capture is not None
        before = oom.Before(session.model, rare) if self.short_of_memory or rare else None
        planned = None
        try:
            return step.forward(call, args, kwargs)
        except BaseException as error:
            if not oom.is_oom(error):
                step.abandon()
                raise
            # While all that filled the memory is still there.
            guard.quietly(session.progress.ran_out, error)
            planned = session.planned_retry.failed()
            text = (str(error).splitlines() or [type(error).__name__])[0]
            event = ForwardRanOut(
                can_rerun=planned is not None,
                is_restorable=before is not None and before.again,
                was_captured=step.capture is not None,
            )
            actions = decide(session.state, event)
            if planned is None:
                step.out_of_memory = self.short_of_memory = True
                self._ask_for_less(actions)
                step.drop()
                if Action.NOTE_FAILED_START in actions:
                    session.startup.failed("the forward", text)
                elsewhere = Action.RUN_ELSEWHERE in actions
                if not (elsewhere or Action.RUN_AGAIN in actions):
                    raise
                if elsewhere and not session.startup.gave_up(error, args, kwargs):
                    raise
        # Outside the handler: its traceback would keep the failed forward's tensors.
        if planned is not None:
            return self.retake(*planned, f"out of memory in the forward ({text})")
        assert before is not None
        before.restore()
        step.begin(args, kwargs, again=True)
        return step.forward(call, args, kwargs)

    def _widen(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Makes the key of a step that of the largest of its micro-batches so far."""
        session, step = self._session, self._session.step
        if self._number != step.number:
            self._number = step.number  # whose key is that of its first forward
            return
        dtype = next((p.dtype for p in session.model.parameters()), None)
        step.key = step.key.widened(key_of(args, kwargs, session.device.type, dtype))

    def forward_again(
        self,
        call: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        before: Snapshot,
        why: str,
    ) -> Any:
        """Runs a plain first forward again, whose backward does not fit, in a way that needs
        less memory."""
        session = self._session
        session.step.abandon()
        session.startup.gave_up_late(why, args, kwargs)
        before.rewind()
        session.step.begin(args, kwargs)
        with before.settings():
            return session.step.forward(call, args, kwargs)

    def retake(self, forward: PlannedForward, arguments: tuple[Any, Any], why: str) -> Any:
        """Runs a planned forward again under a tighter plan, from its state, and returns its
        output."""
        session, step = self._session, self._session.step
        session.say(
            f"step {step.number}: {why}; the step runs again under a tighter plan"
            f"{advice(session.device)}"
        )
        self._tighten()
        step.drop()
        oom.make_room()
        forward.before.rewind()
        step.begin(*arguments, again=True)
        step.out_of_memory = True
        try:
            with forward.before.settings():
                return step.forward(forward.call, *arguments)
        except BaseException as error:
            if oom.is_oom(error):
                guard.quietly(session.progress.ran_out, error)
                self.gave_up("out of memory again", "it has already been run again")
            raise

    def gave_up(self, what: str, why: str) -> None:
        """Says that a step cannot run again; the next step requests less memory."""
        session = self._session
        alone = session.planning.coordinator is None
        follows = (
            "the next step runs under a tighter plan"
            if alone
            else "the next start requests less memory"
        )
        session.say(
            f"step {session.step.number}: {what}, which cannot be run again: {why}; {follows}"
            f"{advice(session.device)}"
        )
        self._tighten()
        session.step.drop()

    def ran_out(self, asked: int) -> None:
        """Notes that an allocator gave up, asked for `asked` bytes. Errors of a forward or a
        backward come by where they can run again. Elsewhere, as in the loss, the error is the
        program's: what follows from it waits until the program has gone on, which may do with
        less."""
        session, step = self._session, self._session.step
        if step.in_forward or session.busy or torch._C._current_graph_task_id() != -1:
            return
        where = "the optimizer" if step.in_optimizer else "the program's code beside the model"
        self._outside = where, asked

    def settle(self) -> None:
        """Gives up the last step if memory ran out in it and it has not ended, because another
        forward begins."""
        found, self._outside = self._outside, None
        session, step = self._session, self._session.step
        if found is None or not step.under_way or step.in_forward:
            return
        where, asked = found
        what = f"{format_bytes(asked)} were asked for"
        event = RanOutElsewhere(was_planned=step.run is not None)
        for action in decide(session.state, event):
            if action is Action.NOTE_FAILED_START:
                session.startup.failed(where, what)
            elif action is Action.SAY_TIGHTER:
                self.gave_up(f"out of memory in {where} ({what})", "it is not the model's")
        step.drop()

    def _ask_for_less(self, actions: tuple[Action, ...]) -> None:
        """Sees to it that later steps take less, after a forward that ran out of memory."""
        session = self._session
        if Action.TOO_LARGE in actions:
            # Without a plan, and that was ours: it runs under one of those there are.
            session.ladder.too_large(session.step.key)
            session.say(
                f"step {session.step.number}: out of memory while an input of its size is new"
            )
        elif Action.TIGHTEN in actions:
            alone = session.planning.coordinator is None
            what = "later plans use less memory"
            if not alone:
                what = "the next start requests a tighter plan"
            session.say(f"step {session.step.number}: out of memory in the forward; {what}")
            session.planning.tighten()

    def _tighten(self) -> None:
        session = self._session
        session.step.out_of_memory = self.short_of_memory = True
        session.planning.tighten()
