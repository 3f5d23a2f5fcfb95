# SPDX-License-Identifier: Apache-2.0
"""How a job takes its first steps when it may not fit before it is planned.

    plain    as if nobody watched, and measured: the job fits
    host     saved tensors wait in host memory (host.py) for a step or two; the capture is exact
    shapes   the first step runs under a plan made from shapes alone (sketch.py); the next one is
             captured with its saved tensors on the host, and planned anew

"auto" begins plainly and looks at the room there is (room.py) whenever autograd saves something in
the first step. When what is alive comes near the limit, or an allocator gives up, the forward is
taken back (generators, buffers) and tried once more in one of the other ways: on the host where
that is memory elsewhere, from shapes where host and device are the same.

The steps after it, up to the captured one, are measured, so nothing is asked for every saved
tensor. But the optimizer has made its state by then, and the second step may not fit where the
first one did: each of them begins with a look at the room, and what the last one took says whether
it is taken plainly. One that takes half of the room or more is taken again as the first one is.

A start that ran out of memory before it had a plan is remembered (notes.py), and the next one does
not try plainly at all.

With several ranks nothing is tried again: those that meet begin alike, on the host if any of them
says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from reprise.base.errors import RepriseError
from reprise.base.units import format_bytes
from reprise.torch.internals.distributed import several_ranks
from reprise.torch.internals.host import HostSaves
from reprise.torch.internals.open_hooks import Hooks
from reprise.torch.internals.pipelines import halves_backwards
from reprise.torch.job.job import EagerJob
from reprise.torch.meter.room import Room, room_on
from reprise.torch.meter.state import blocked
from reprise.torch.planning.planning import Planning
from reprise.torch.policy.events import MovedToHost, StartBegins, StartSkipped, StartStepEnded
from reprise.torch.policy.state import Stage
from reprise.torch.recovery.plain_retry import KeptTensor, PlainRetry
from reprise.torch.recovery.progress import Progress
from reprise.torch.recovery.sketch import sketched

__all__ = ["DoesNotFit", "Startup"]

# Share of the room that the backward and the allocator need besides gradients.
LEFT_FREE = 0.1
# Share of the room below which a step does not run out of it.
NEAR = 0.5
FINER = 0.9  # of the budget, for a plan that has not seen the job


class DoesNotFit(torch.OutOfMemoryError):
    """The plain first step comes near the limit: given up before the system ends the process."""


ZERO_BUBBLE = (
    "training without a plan: this pipeline's schedule runs each backward in two halves (zero "
    "bubble), and autograd keeps what lies between them, which a plan cannot look into; GPipe, "
    "1F1B and interleaved 1F1B are planned"
)


class Startup:
    """Runs the steps before the first plan of one session."""

    def __init__(self, job: EagerJob, planning: Planning, progress: Progress) -> None:
        self._job = job
        self._planning = planning
        self._progress = progress
        self.notes = planning.notes
        self._asked = job.options.first
        # Set by what runs steps (attempts.py), and called as PlainRetry says.
        self.forward_again: Callable[..., Any]
        self.failed_in: Callable[[str, str], None]
        self._over = job.budget is None
        self._begun = self._second = False  # a step has begun, has ended
        self._took = 0  # bytes of the last plain step, above what was alive when it began
        # When the first step began: the room, and what was alive; while it is watched, and after.
        self._watches: tuple[Room, int] | None = None
        self._before: tuple[Room, int] | None = None
        self._again: PlainRetry | None = None
        self._failed = ""  # the error of the last step, which the program has caught
        self.near = False  # the step under way may run out of memory, and is taken again if it does

    def skip(self) -> None:
        """Takes the first steps plainly, because the job is not to be planned."""
        self._over = True
        self._job.happened(StartSkipped())

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Decides how the step that begins will run."""
        if self._over or self._begun:
            if self._job.state.starting:
                self._next(args, kwargs)
            return
        self._begun = True
        job, way, why = self._job, self._asked, "as requested"
        if job.budget is not None and halves_backwards():
            self.skip()
            self._planning.stop(ZERO_BUBBLE)
            return
        job.happened(StartBegins())
        if way == "auto" and self.notes.died:
            way, why = (
                self._elsewhere(),
                "the last start of this job ran out of memory before it had a plan",
            )
        if job.stage is Stage.PLAIN:
            return
        if way == "shapes" and several_ranks():
            way = "host"  # shapes are those of one rank
        self.notes.begins()
        if way in ("host", "shapes"):
            self._careful(way, why, args, kwargs)
        elif way == "auto" and not several_ranks():
            room = room_on(job.device)
            self._watches = None if room is None else (room, job.meter.live())
            self._before = self._watches
            self._look(near=True)

    def _next(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Decides how a step after the first one runs, still without a plan."""
        job = self._job
        if self._failed:
            self._careful(self._elsewhere(), self._failed, args, kwargs)
            return
        if self._asked != "auto" or several_ranks():
            return
        room = room_on(job.device)
        parameters = job.model.parameters()
        takes = self._took - sum(p.grad.nbytes for p in parameters if p.grad is not None)
        left = 0 if room is None else room.bytes
        if self._before is not None and job.device.type == "cpu":
            # What was freed since stays with malloc, and is used again.
            there, alive = self._before
            left = max(left, there.bytes - (job.meter.live() - alive))
        if room is not None and takes > left * (1 - LEFT_FREE):
            why = f"the last step needed {format_bytes(takes)}, and {room.what} has less left"
            self._careful(self._elsewhere(), why, args, kwargs)
            return
        self._look(near=room is None or takes > left * NEAR)

    def _look(self, near: bool) -> None:
        """Watches the backward of the plain step under way. `near`: the step runs again if its
        backward runs out of memory."""
        self.stop_watching()
        self.near = near
        self._again = PlainRetry(self._job, self._progress, self.forward_again, self.failed_in)
        self._again.open()

    def failed(self, where: str, why: str) -> None:
        """Notes that memory ran out in a plain step that cannot run again."""
        self._failed = f"memory ran out in {where} ({why})"
        self.notes.ran_out_unplanned()

    def gave_up_late(self, why: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Takes another way from the forward on, after memory ran out in its backward."""
        self._careful(self._elsewhere(), f"the unplanned step does not fit ({why})", args, kwargs)

    def gave_up(self, error: BaseException, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Notes that a plain forward ran out of memory; returns whether it can run another way."""
        way = self._elsewhere() if self._asked == "auto" else "plain"
        if not self._job.state.starting or way == "plain" or several_ranks():
            return False
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        self._careful(way, f"the unplanned step does not fit ({text})", args, kwargs)
        return self._job.host is not None

    def end(self, took: int = 0) -> None:
        """Notes that a step has ended, which took `took` bytes above what was alive when it
        began."""
        if not self._begun or self._over:
            return
        self._watches, self._took, self._failed, self._second = None, took, "", True
        self.stop_watching()
        self._job.happened(StartStepEnded(on_host=self._job.host is not None))

    def fits(self) -> None:
        """Notes that the start is over: a step was captured, or nothing will be."""
        self._over = True
        self.notes.fits()

    def ended(self, out_of_memory: bool) -> None:
        """Notes that the program or the session ends."""
        self.stop_watching()
        if self._begun and not self._over:
            if out_of_memory:
                self.notes.ran_out_unplanned()
            elif not self._failed:
                self.notes.fits()

    def _elsewhere(self) -> str:
        if several_ranks():
            return "host"  # shapes are those of one rank
        room = room_on(self._job.device)
        return "host" if room is None or room.host_apart else "shapes"

    def _careful(self, way: str, why: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        job = self._job
        self.stop_watching()
        self._watches, self._failed, job.host = None, "", HostSaves(job.model)
        job.happened(MovedToHost())
        number = job.step.number
        if way == "shapes":
            failed = self._plan_from_shapes(args, kwargs)
            if not failed:
                which = f"step {number}" if self._second else "the first step"
                job.say(f"{which} runs under a plan made from shapes alone: {why}")
                return
            why = f"{why}; no plan from shapes: {failed}"
        which = f"step {number} and the next" if self._second else "the first"
        job.say(f"{which} steps keep their saved tensors in host memory: {why}")

    def _plan_from_shapes(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Requests a plan made from shapes; returns why there is none, or ""."""
        job = self._job
        if job.agent.status == "inert":
            return job.agent.why
        if blocked():
            return blocked()
        try:
            graph = sketched(job.model, args, kwargs, job.meter.live())
        except RepriseError as error:
            return str(error)
        return self._planning.sketched(graph, FINER)

    # ---- While the plain first step runs ------------------------------------------------

    def stop_watching(self) -> None:
        """Stops watching the step, which is over or is taken in another way."""
        self.near = False
        if self._again is not None:
            self._again.close()
            self._again = None

    def forward(
        self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Runs a plain forward and returns its output. Raises `DoesNotFit` if what autograd
        saves comes near the limit, or later if what the backward makes does."""
        again = self._again
        if again is None or not self.near or not self._job.state.starting or blocked():
            return call(*args, **kwargs)
        if self._watches is None:
            return again.forward(call, args, kwargs, kept=False)
        room, before = self._watches
        job = self._job
        meter = job.meter
        gradients = sum(
            p.nbytes
            for p in job.model.parameters()
            if p.is_leaf and p.requires_grad and p.grad is None
        )
        most = before + int(room.bytes * (1 - LEFT_FREE))

        def pack(tensor: Tensor) -> KeptTensor:
            if meter.live() > most - gradients:
                raise DoesNotFit(f"it comes close to {room.what}")
            kept = KeptTensor(tensor)
            again.keep(kept)
            return kept

        def unpack(kept: KeptTensor) -> Tensor:
            found = kept.plainly()
            if meter.live() > most and again.would_help:
                raise DoesNotFit(f"its backward comes close to {room.what}")
            return found

        with Hooks(pack, unpack):
            return again.forward(call, args, kwargs, kept=True)
