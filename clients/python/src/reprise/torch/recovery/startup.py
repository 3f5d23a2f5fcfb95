# SPDX-License-Identifier: Apache-2.0
"""How a job takes its first steps, before one of them has been captured.

    shapes   a plan is made from shapes alone (estimation/sketch.py), while the first batch waits;
             the first steps run under it, and one of them is captured under it
    plain    as if nobody watched, and measured: by their shapes the steps fit without a plan
    host     saved tensors wait in host memory (internals/host.py) until a step is captured

"auto" asks for a plan from shapes. Where the step fits without, or where shapes do not tell what it
does, the first steps are plain; on a GPU whose memory may not do for that, their saved tensors are
on the host. Which it is, and why, is said in one line.

What is alive when a step begins may grow after the first one: the program keeps outputs, or
gradients that are not reset before the forward. The first plan from shapes holds back what
gradients take, if there is one that does. Where a backward adds to gradients that are there, as
those of micro-batches do, the next step is planned as one that does, and the first one, too, where
DistributedDataParallel is told not to sync; whatever else is found to be alive, the next plan holds
back, too.

A plain forward that runs out of memory is tried once more on the host, where that is memory
elsewhere. With several ranks nothing is tried again. Each of them has a plan from shapes of its
own: what a plan changes runs no collective, so none waits for another that has none. What
fully_shard makes in a first forward alone is hidden from the first planned step.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch

from reprise.base.errors import RepriseError
from reprise.torch.estimation.sketch import Sketch, sketched
from reprise.torch.estimation.workspaces import COARSE
from reprise.torch.internals.distributed import (
    adds_up,
    copies_output,
    halves_backwards,
    several_ranks,
    wrapper_around,
)
from reprise.torch.internals.host import HostSaves
from reprise.torch.internals.sharding import FirstGathers
from reprise.torch.job.job import EagerJob
from reprise.torch.job.stages import Stages
from reprise.torch.ladder.ranks import coming, in_pipeline
from reprise.torch.ladder.rung import Rung
from reprise.torch.meter.room import room_on
from reprise.torch.meter.state import blocked, missing_gradients
from reprise.torch.planning.planning import Planning
from reprise.torch.policy.events import Fact, StartStepEnded
from reprise.torch.policy.policy import Action
from reprise.torch.policy.state import Stage

# Share of the room that the allocator needs.
LEFT_FREE = 0.1
# Inputs of so many sizes are planned from shapes while no step has been captured.
SIZES = 4
# Where the margin of a plan from shapes leaves none, one with so much less is tried before none.
LESS = 4
# Share of the budget by which more may be alive than was foreseen.
MORE = 0.01

ZERO_BUBBLE = (
    "training without a plan: this pipeline's schedule runs each backward in two halves (zero "
    "bubble), and autograd keeps what lies between them, which a plan cannot look into; GPipe, "
    "1F1B and interleaved 1F1B are planned"
)


class Startup:
    """Runs the steps before the first captured one of one session."""

    def __init__(self, job: EagerJob, planning: Planning) -> None:
        self._job = job
        self._planning = planning
        self._over = job.budget is None
        self._begun = False
        self._sizes = 0  # of inputs that were planned from shapes
        self._needs = 0  # what the last of them needs without a plan, in bytes; 0: not known
        self._gathers = FirstGathers()
        job.carry_out({Action.END_START: lambda _: self._fits()})

    def skip(self) -> None:
        """Takes the first steps plainly, because the job is not to be planned."""
        self._fits()
        self._job.happened(Fact.START_SETTLED)

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Decides how the step that begins will run."""
        job, first = self._job, not self._begun
        if self._over:
            return
        if first:
            self._begun = True
            if halves_backwards():
                self.skip()
                self._planning.stop(ZERO_BUBBLE)
                return
            job.happened(Fact.START_BEGINS)
        if job.stage is Stage.PLAIN:
            return
        way = job.options.first
        if way == "host" and first:
            self._to_host("as requested")
        elif way == "auto":
            self._from_shapes(args, kwargs, first)

    @property
    def retries(self) -> bool:
        """Whether a plain first step that runs out of memory is tried again."""
        room = room_on(self._job.device)
        has_host = room is not None and room.host_apart  # other memory than that of the model
        return self._job.options.first == "auto" and has_host and not several_ranks()

    def gave_up(self, error: str) -> bool:
        """Notes that a plain forward ran out of memory; returns whether it can run another way."""
        if not self._job.state.starting or not self.retries:
            return False
        self._to_host(f"the unplanned step does not fit ({error})")
        return True

    def end(self) -> None:
        """Notes that a step has ended. Under plans from shapes the start lasts until one of a
        captured step takes their place."""
        self._gathers.show()
        if not self._begun or self._over or self._known:
            return
        self._job.happened(StartStepEnded(on_host=self._job.host is not None))

    def _fits(self) -> None:
        """Notes that the start is over: a step was captured, or nothing will be."""
        self._over = True
        self._gathers.show()

    # ---- Ways -------------------------------------------------------------------------

    def _to_host(self, why: str) -> None:
        job = self._job
        job.host = HostSaves(job.model)
        job.happened(Fact.START_SETTLED)
        job.say(f"the first steps keep their saved tensors in host memory: {why}")

    def _from_shapes(self, args: tuple[Any, ...], kwargs: dict[str, Any], first: bool) -> None:
        """Takes the step under a plan made from its shapes, if it needs one."""
        job = self._job
        covering = [rung for rung in self._known if rung.covers(job.step.key)]
        adds = self._adds()
        if covering:
            if adds and not covering[0].adds:
                self._plan_again(covering[0], args, kwargs)
            else:
                self._hold_back(covering[0])
            return
        if not (first or self._known) or self._sizes == SIZES:
            return
        self._sizes += 1
        why = self._plan(args, kwargs, adds=adds)
        if why and first and self.retries and not self._fits_plainly():
            self._to_host(f"no plan from shapes: {why}")
        elif why:
            job.say(f"the first steps run without a plan: {why}")

    def _plan_again(self, rung: Rung, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Requests a plan of a step that adds to gradients in the place of one that makes them."""
        rung.adds = True  # not tried again
        why = self._plan(args, kwargs, adds=True)
        if why:
            rung.exceeds = True
            self._job.say(
                f"{why.rstrip('.')}. Steps that add to gradients run under the previous plan, and "
                "may exceed the budget"
            )
        else:
            self._job.plans.ladder.rungs.remove(rung)
            # The same forward: a step that keeps to the one plan keeps to the other.
            for other in self._known:
                other.matched |= rung.matched and other.covers(rung.key)

    def _adds(self) -> bool:
        """Returns whether the backward of the step that begins is known to add to gradients: some
        are there, the last step had several forwards, or this one keeps its gradients for more."""
        job = self._job
        return (
            job.step.forwards > 1
            or adds_up(wrapper_around(job.model))
            or any(p.is_leaf and p.grad is not None for p in job.model.parameters())
        )

    def _plan(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, adds: bool) -> str:
        """Requests a plan made from shapes; returns why there is none, or "" if there is one, or if
        none is needed. `adds`: of a step whose backward adds to gradients."""
        job, known = self._job, bool(self._known)
        if job.agent.status == "inert":
            return job.agent.why
        if blocked():
            return blocked()
        if isinstance(job.model, Stages) or in_pipeline():
            return "how many forwards a pipeline runs before a backward is not known yet"
        if several_ranks():
            coming()  # the others may be at their next meeting before this one is
        _allocate_workspace(job.device)
        # In a step that adds they are static memory, in another one they may become it.
        without = missing_gradients(job.model)
        missing, later = (without, 0) if adds else (0, without)
        live = job.meter.live() + missing
        copies = copies_output(wrapper_around(job.model))
        try:
            sketch = sketched(job.model, args, kwargs, live, adds=adds, copies=copies)
            found = self._planned_from(sketch.with_larger_loss(), later, missing)
        except RepriseError as error:
            return str(error)
        if isinstance(found, str):
            return found
        found.adds = adds
        self._gathers.hide()
        if found.tape is not None and not known:
            job.happened(Fact.START_SETTLED)
            job.say("the first steps run under a plan made from their shapes alone")
        return ""

    def _planned_from(self, sketch: Sketch, later: int, missing: int) -> Rung | str:
        """Requests plans of a step that hold back ever less, at first `later` bytes for what may
        become alive beside it; returns the first there is, or why there is none. Each has room for
        a loss that takes more than the one which stands for it: shapes do not tell which it is."""
        graph = sketch.graph
        self._needs = graph.measured_peak_bytes
        margin = int(COARSE * max(0, graph.measured_peak_bytes - graph.static_bytes))
        found: Rung | str = ""
        ways = [(later, margin), (0, margin), (0, margin // LESS), (0, 0)]
        for held, spare in dict.fromkeys(ways):
            found = self._planning.sketched(sketch, held + spare, missing)
            if isinstance(found, Rung):
                found.held_bytes = held
                break
        return found

    @property
    def _known(self) -> list[Rung]:
        """The rungs with a plan made from shapes."""
        rungs = self._job.plans.ladder.rungs
        return [rung for rung in rungs if rung.sketch and rung.tape is not None]

    def _fits_plainly(self) -> bool:
        """Returns whether the step is known to fit without a plan."""
        room, job = room_on(self._job.device), self._job
        there = 0 if room is None else job.meter.live() + int(room.bytes * (1 - LEFT_FREE))
        return 0 < self._needs < there

    def _hold_back(self, rung: Rung) -> None:
        """Takes another plan from shapes, if there is one, where more is alive than the plan of a
        step foresees."""
        job, plan = self._job, rung.plan
        if plan is None or not rung.may_tighten:
            return
        missing = missing_gradients(job.model) if rung.adds else 0
        more = job.meter.live() + missing - rung.graph.static_bytes - rung.held_bytes
        if more > MORE * plan.budget_bytes and self._planning.needs_more(rung, more):
            rung.spare_bytes += more
            rung.held_bytes += more
            rung.awaited = True
            self._planning.take_awaited(rung)


def _allocate_workspace(device: torch.device) -> None:
    """Has cuBLAS allocate its workspaces, which the first multiplications of the step would, and
    which stay: 8 to 32 MiB for this thread and as much for that of backwards, told by no shape."""
    if device.type == "cuda":
        # Without room for it the step itself finds out.
        with suppress(RuntimeError), torch._C._DisableTorchDispatch(), torch.enable_grad():
            one = torch.ones(1, 1, device=device, requires_grad=True)
            torch.autograd.grad(torch.mm(one, one), one)
