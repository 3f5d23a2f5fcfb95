# SPDX-License-Identifier: Apache-2.0
"""Runs a planned step again, under a tighter plan, when memory runs out in it.

    retry = PlannedRetry(job, progress)
    retry.before(call, args, kwargs); out = ...; retry.after(out)     # a planned forward
    retry.close()

The state before every planned forward is remembered, and the gradients that come to its outputs in
the backward. When memory runs out, the rest of the graph is released, a tighter plan is asked for
and awaited, and the forward runs again, then the backward from its outputs on. Gradients that the
failed backward has added to stay as they are.

A step runs again only if that gives the same bits:

- one process, and an ordinary `loss.backward()` through outputs of the last forward of one armed
  model and of nothing else that has parameters;
- no hooks on parameters; each gradient is at the version from before the backward, or one further;
- no parameter was written since the forward, and no input was written or freed;
- the forward can run again without the program noticing (rerun/repeatable.py), as seen in the first
  planned step;
- the gradients of its outputs take at most SMALL bytes, or memory has run out before;
- the step takes at least LITTLE of the memory there is, or memory has run out before.

Otherwise the program gets its error, one sentence says why, and the next step waits for the tighter
plan. Remembering costs some 0.5 ms per step, which is measured in the first planned forward and is
part of the announced time. If remembering fails, no step runs again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from reprise.torch.internals import guard
from reprise.torch.internals.engine import around, leaves, no_longer
from reprise.torch.internals.guard import is_oom
from reprise.torch.job.job import EagerJob
from reprise.torch.meter.room import room_on
from reprise.torch.recovery.planned_forward import PlannedForward, rehearsed, release_graph
from reprise.torch.recovery.progress import Progress
from reprise.torch.rerun.repeatable import Remembered
from reprise.torch.rerun.restart import Entry, OutputGradients, Outputs, is_ordinary
from reprise.torch.rerun.snapshot import Generators, Untouched, WatchedState

if TYPE_CHECKING:
    from reprise.plan import Plan
    from reprise.torch.ladder.rung import Rung


# Bytes of the gradients of outputs that are copied in every step: a copy of more would take longer
# than all else that is remembered.
SMALL = 1 << 20
# Share of the free memory that a step takes at least to be remembered. Smaller steps run out of it
# only if another process fills it, and many of them are as short as remembering them takes.
LITTLE = 1 / 8

_open: list[PlannedRetry] = []
_running = False


class _Attempt:
    """One call of the engine, as far as one armed model has to do with it."""

    def __init__(self, retry: PlannedRetry, heads: Any, rest: tuple[Any, ...]) -> None:
        self.retry = retry
        self._heads = heads
        self._forward = retry.forward
        self._entry: Entry | None = None
        self._untouched: Untouched | None = None
        self.why = self._prepare(heads, rest)

    @property
    def concerned(self) -> bool:
        """Whether the backward reaches outputs of the model."""
        return self._entry is not None and self._entry.concerned

    def _prepare(self, heads: Any, rest: tuple[Any, ...]) -> str:
        forward, job = self._forward, self.retry.job
        if not is_ordinary(rest):
            return "its graph is retained, or it is not an ordinary backward"
        if forward is None or forward.outputs is None:
            return "its forward used little memory and was not recorded"
        # Nothing of this object: in a cycle it would keep the loss and copies of the inputs until
        # the garbage collector comes.
        entry = self._entry = Entry(forward.outputs, heads, self.retry.gradients.keep)
        if not entry.concerned:
            return "it does not reach the outputs of the last forward"
        if not entry.alone:
            return "something outside the model also has parameters"
        if self.retry.taking:
            return "it has already been run again"
        if forward.outputs.bytes > SMALL and not job.short_of_memory:
            return "the gradients of the model's outputs are kept only once memory has run out"
        entry.watch()
        self._untouched = forward.state.gradients()
        return ""

    def over(self) -> None:
        """Removes the hooks after the backward has run or failed."""
        if self._entry is not None:
            self._entry.stop()

    def obstacle(self) -> str:
        """Returns why the backward cannot run again, or "" if it can."""
        forward, job = self._forward, self.retry.job
        if self.why or forward is None or self._entry is None:
            return self.why
        if not self._entry.complete:
            return "memory ran out before it reached the model"
        own = {id(p) for p in job.model.parameters()}
        if any(id(leaf) not in own for leaf in leaves(self._heads)):
            return "something other than the model's parameters has gradients"
        return forward.obstacle(job)

    def again(self, why: str) -> None:
        """Runs the forward and the backward again."""
        forward, entry = self._forward, self._entry
        assert forward is not None
        assert entry is not None
        arguments = forward.inputs.again()
        assert arguments is not None
        left = self._left()
        release_graph(self._heads)
        if (run := self.retry.job.step.run) is not None:
            run.let_go()
        after = Generators()
        self.retry.taking = True
        try:
            why = f"out of memory in a backward ({why})"
            out = self.retry.retake(forward, arguments, why)
            after.restore()
            entry.restart(out, left)
        finally:
            self.retry.taking = False

    def _left(self) -> list[Tensor] | None:
        """Returns the parameters to which the failed backward has added nothing; None for all, if
        their gradients were new, and removes those."""
        assert self._forward is not None
        parameters = self._forward.state.parameters
        if self._untouched is None:
            for parameter in parameters:
                parameter.grad = None
            return None
        untouched = self._untouched()
        return [
            p for p, same in zip(parameters, untouched, strict=True) if same and p.requires_grad
        ]


class PlannedRetry:
    """Runs planned steps of one session again if their backward runs out of memory."""

    def __init__(self, job: EagerJob, progress: Progress) -> None:
        self.job = job
        self.progress = progress
        # Set by what runs steps (attempts.py): runs a forward again under a tighter plan; says that
        # a step cannot run again.
        self.retake: Callable[[PlannedForward, tuple[Any, Any], str], Any]
        self.gave_up: Callable[[str, str], None]
        self.forward: PlannedForward | None = None  # the last one
        self.taking = False  # something is being taken again
        self._state: Remembered | None = None
        self._parts: WatchedState | None = None
        self.gradients = OutputGradients(SMALL)
        self._priced = False
        self._plan: Plan | None = None  # the one of which it is known
        self._wanted = False

    def before(self, call: Any, args: Any, kwargs: Any) -> None:
        """Remembers the state before a planned forward."""
        if self not in _open:
            around(_run)
            _open.append(self)
        self.forward = self._state = None
        try:
            self._remember(call, args, kwargs)
        except Exception as error:
            self._lost(error)

    def _lost(self, error: Exception) -> None:
        self.forget()
        what = guard.described(error)
        self.job.say(f"planned steps are not run again when memory runs out ({what})")

    def _remember(self, call: Any, args: Any, kwargs: Any) -> None:
        rung = self.job.plans.rung
        if rung is None or rung.tape is None or not rung.tape.program.replays:
            return
        if not self._wants(rung):
            self.job.remembering_ns = 0
            return
        if self._parts is None or not self._parts.same:
            self._parts = WatchedState(self.job.model)
            self._priced = False
        self.forward = PlannedForward(self._parts, call, args, kwargs)
        if rung.repeats is None:
            self._state = Remembered(self.job.model)

    def _wants(self, rung: Rung) -> bool:
        """Returns whether memory might run out under the plan."""
        job = self.job
        if rung.plan is not self._plan and rung.plan is not None:
            self._plan, self._priced = rung.plan, False
            room = room_on(job.device)
            takes = rung.plan.peak_bytes - job.meter.live()
            self._wanted = room is None or takes >= LITTLE * room.bytes
        return self._wanted or job.short_of_memory

    def forget(self) -> None:
        """Forgets the last forward, because another step begins."""
        self.forward = self._state = None

    def after(self, out: Any) -> None:
        """Notes the outputs of a forward that has run."""
        if self.forward is None and self._state is None:
            return
        try:
            self._ended(out)
        except Exception as error:
            self._lost(error)

    def _ended(self, out: Any) -> None:
        if self.forward is not None:
            self.forward.outputs = Outputs(out)
            if not self._priced:
                self._priced = True
                self.job.remembering_ns = rehearsed(self.job.model, self.forward, SMALL)
        if (rung := self.job.plans.rung) is not None:
            self._note_repeats(rung)

    def _note_repeats(self, rung: Rung) -> None:
        """Notes whether the forward that is over has left something behind in Python."""
        if self._state is not None:
            rung.repeats = not self._state.differs(Remembered(self.job.model))
            self._state = None

    def failed(self) -> tuple[PlannedForward, tuple[Any, Any]] | None:
        """Notes that memory ran out in the forward. Returns the forward and its arguments if it can
        run again, otherwise None."""
        forward, self.forward = self.forward, None
        rung = self.job.plans.rung
        if forward is None or rung is None or self.taking:
            return None
        self._note_repeats(rung)
        arguments = forward.inputs.again()
        return None if arguments is None or forward.obstacle(self.job) else (forward, arguments)

    def close(self) -> None:
        """Stops watching backwards. Idempotent."""
        self.forget()
        self._parts = None
        self.gradients.clear()
        if self in _open:
            _open.remove(self)
            if not _open:
                no_longer(_run)


def _run(engine: Any, heads: Any, *rest: Any, **options: Any) -> Any:
    """Runs a call of autograd's engine, while a session of this process is planned, and runs the
    step again if the call runs out of memory."""
    global _running
    under_way = [later for later in _open if later.job.step.run is not None]
    if _running or not under_way or any(later.job.busy for later in _open):
        return engine(heads, *rest, **options)
    tries = []
    if options.get("accumulate_grad"):
        try:
            tries = [_Attempt(later, heads, rest) for later in under_way]
        except Exception as error:
            under_way[0]._lost(error)
    _running = True
    try:
        return engine(heads, *rest, **options)
    except BaseException as error:
        if not is_oom(error):
            raise
        text = (str(error).splitlines() or [type(error).__name__])[0]
        attempt, obstacle = _which(tries)
        retry = attempt.retry if attempt else under_way[-1]
        guard.quietly(retry.progress.ran_out, error)
        if attempt is None or obstacle:
            retry.gave_up(f"out of memory in a backward ({text})", obstacle)
            raise
    finally:
        _running = False
        for one in tries:
            one.over()
    # Outside the handler: its traceback would keep what the failed backward held.
    attempt.again(text)
    return ()


def _which(tries: list[_Attempt]) -> tuple[_Attempt | None, str]:
    """Returns the attempt whose forward must run again, and why it cannot."""
    concerned = [attempt for attempt in tries if attempt.concerned]
    if not concerned:
        outside = "torch.autograd.grad returns its gradients to the program"
        return None, tries[0].why if tries else outside
    if len(concerned) > 1:
        return concerned[0], "it goes through two models that are armed"
    try:
        return concerned[0], concerned[0].obstacle()
    except Exception as error:
        return concerned[0], guard.described(error)
