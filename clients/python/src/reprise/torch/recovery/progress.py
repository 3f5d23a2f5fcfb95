# SPDX-License-Identifier: Apache-2.0
"""Where the step under way is, for whoever asks after the job was killed or ran out of memory.

    where.begin(run)          # a step has begun, under this run's plan or none
    where.enter(FORWARD)      # its forward; BACKWARD, OPTIMIZER; 0: it has ended
    tape.begin(None, *where.position())    # the run says op by op where it is
    where.ran_out(error)      # memory: says so, and what fills it

All but the last are stores in shared memory, some times a step and once an op of a planned forward
(profiler/README.md has the cost), so nobody has to ask for them.
"""

from __future__ import annotations

import mmap
from contextlib import suppress
from typing import Any

import torch

from reprise.agent.marks import At, ignore_end
from reprise.torch.job.job import EagerJob
from reprise.torch.recovery import moment
from reprise.torch.tape.tape_run import Run
from reprise.torch.training.loop import open_loops

# Reports of what fills the memory per job: one takes up to half a second.
MOMENTS_AT_MOST = 16
# Address space on a CPU, not memory, that is given up to look at what fills it.
RESERVE = 8 << 20


class Progress:
    """Tells the agent where the steps of one session are."""

    def __init__(self, job: EagerJob) -> None:
        self._job = job
        self._phase = 0
        self._moments = 0
        self._announced = False  # by the allocator; its error comes next
        self._reserve: mmap.mmap | None = None
        if job.device.type == "cpu":
            with suppress(OSError):
                self._reserve = mmap.mmap(-1, RESERVE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

    def begin(self, run: Run | None) -> None:
        """Tells the agent that a step has begun."""
        plan = None if run is None else self._job.plans.plan
        if plan is not None and self._is_captured(run):
            self._job.agent.step_under(int(plan.graph_id or "0", 16), plan.plan_number)

    def _is_captured(self, run: Run | None) -> bool:
        """Returns whether the step under way is the one that its plan was made of. A plan runs
        steps with inputs of other sizes, too, to which none of its bytes belong."""
        rung = self._job.plans.rung
        return run is not None and rung is not None and rung.key == self._job.step.key

    def enter(self, phase: int) -> None:
        """Notes the phase of the step, numbered as reprise.v1.Phase; 0: between two steps."""
        self._phase = phase
        self._job.agent.phase(phase)

    def position(self) -> tuple[At, int]:
        """Returns a function that is called with 1 + op, and its address for the native engine.
        With several eager models it does nothing: their ops would be mixed up."""
        agent, loops = self._job.agent, tuple(open_loops)
        if len(loops) > 1 and sum(isinstance(loop.job, EagerJob) for loop in loops) > 1:
            return ignore_end, 0
        return agent.at, agent.address("reprise_at")

    def ran_out(self, error: BaseException | None, asked: int = 0) -> None:
        """Says that memory ran out, and what fills it, once per error. `asked` without an error
        is the allocator's own word, just before it raises."""
        if getattr(error, "_reprise_told", False):
            return
        job = self._job
        if self._reserve is not None:
            self._reserve.close()
        announced, self._announced = self._announced, error is None
        if error is not None:
            error._reprise_told = True  # type: ignore[attr-defined]
            if announced:
                return
            asked = moment.asked_bytes(error)
        device, free, total = -1, 0, 0
        if job.device.type == "cuda":
            device = job.device.index or 0
            with suppress(RuntimeError):
                free, total = torch.cuda.mem_get_info(job.device)
        job.agent.oom(device, asked, total, free)
        self._moments += 1
        if self._moments > MOMENTS_AT_MOST:
            return
        facts: dict[str, Any] = {"step": job.step.number, "phase": self._phase}
        facts |= {"device": device, "asked_bytes": asked}
        facts |= {"free_bytes": free, "total_bytes": total}
        facts["module"] = moment.module_of(job.model, error)
        run, plan = job.step.run, job.plans.plan
        if run is not None and plan is not None and self._is_captured(run):
            facts |= {"graph_id": plan.graph_id, "plan_id": plan.plan_id}
            if run.armed and run.op is not None:
                facts["op"] = run.op
        try:
            job.agent.snapshot(moment.Finder(job).moment(**facts))
        except Exception as trouble:  # ours, and at the worst of times
            job.say(
                f"could not find out what filled the memory: {type(trouble).__name__}: {trouble}"
            )
