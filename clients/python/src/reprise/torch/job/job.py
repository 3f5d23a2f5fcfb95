# SPDX-License-Identifier: Apache-2.0
"""One eager model under Reprise, as its parts see it: a job with its step, its plans and its meter.

job = EagerJob(model, agent, meter, options)
job.step.number, job.plans.rung, job.step.tracing

Data, all of it: what acts on it are the parts of a session.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import nn
from torch.optim import Optimizer

from reprise.agent.agent import Agent
from reprise.base.budget import Budget
from reprise.plan import Plan
from reprise.plan.wish import OnInfeasible
from reprise.torch.capture.capture import Capture
from reprise.torch.capture.step_graph import CapturedGraph
from reprise.torch.check.result import VALUES
from reprise.torch.check.verify import Check
from reprise.torch.internals.forward import ArmedForward
from reprise.torch.internals.host import HostSaves
from reprise.torch.internals.optimizers import Cycle
from reprise.torch.job.stages import ArmedStages
from reprise.torch.ladder.ladder import Ladder
from reprise.torch.ladder.rung import Key, Rung
from reprise.torch.meter.meter import Meter
from reprise.torch.meter.state import blocked
from reprise.torch.meter.step_times import StepTimes
from reprise.torch.meter.windows import OpWindow
from reprise.torch.tape.executor import TapePlan
from reprise.torch.tape.tape_run import Run
from reprise.torch.training.job import Job


class EagerJob(Job):
    """What the parts of one eager model share."""

    def __init__(self, model: nn.Module, agent: Agent, meter: Meter, options: Options) -> None:
        super().__init__(model, agent, options.budget)
        self.options = options
        self.meter = meter
        self.step = Step(StepTimes(self.device), Tracing(agent, meter))
        self.plans = Plans()
        # Not None: the job does not fit without a plan, and no step is taken without either.
        self.host: HostSaves | None = None
        self.short_of_memory = False  # it has run out before
        self.remembering_ns = 0  # what it takes to remember a planned forward and its backward
        self.forward: ArmedForward | ArmedStages | None = None  # None: not armed yet
        # Puts another module in this one's place, or what torch.compile made of this one (None).
        # False: there is none.
        self.hand_over: Callable[[nn.Module | None], bool] | None = None


@dataclass(frozen=True, slots=True)
class Options:
    """How a model is armed."""

    budget: Budget | None  # None: it is only observed
    verify_every: int  # steps from one check to the next; 0: none is checked
    warmup: int = 1  # plain steps before one is captured
    name: str = ""  # of the model, for people
    first: str = "auto"  # how the first step is taken
    verify: str = VALUES  # what is compared
    on_infeasible: OnInfeasible = "plain"  # what happens where no plan fits
    max_overhead: float | None = None  # the most extra time of a plan, as a fraction; None: any
    host_bytes: int = 0  # how much host memory plans may use


@dataclass(slots=True)
class Plans:
    """The plans of one model by input size."""

    ladder: Ladder = field(default_factory=Ladder)
    rung: Rung | None = None  # of the last planned step
    refused: Plan | None = None  # the server's "no plan fits"

    @property
    def plan(self) -> Plan | None:
        """The plan of the last planned step; the refusal if that is what came."""
        return self.refused if self.rung is None else self.rung.plan

    @property
    def graph(self) -> CapturedGraph | None:
        """The step graph behind `plan`."""
        rungs = self.ladder.rungs
        return self.rung.graph if self.rung else rungs[-1].graph if rungs else None

    @property
    def handles(self) -> list[TapePlan]:
        """The plans that are installed: of each rung that has one."""
        rungs = [r for rung in self.ladder.rungs for r in (rung, rung.roomier) if r is not None]
        planned = [rung.planned for rung in rungs]
        return [handle for handle in planned if handle is not None and handle.tape is not None]

    @property
    def current(self) -> TapePlan:
        """The installed plan of the last planned step, of which there must be one."""
        assert self.rung is not None
        assert self.rung.planned is not None
        return self.rung.planned


class Step:
    """The newest step of one model. Its session moves it on (session/steps.py); others read it."""

    def __init__(self, times: StepTimes, tracing: Tracing) -> None:
        self.number = 0
        self.ended = 0  # how many steps are over
        self.key = Key((), ())  # of its largest micro-batch so far
        self.under_way = False
        self.in_forward = False
        self.in_optimizer = False
        self.out_of_memory = False  # memory ran out in it
        self.capture: Capture | None = None  # None: it is not captured
        self.run: Run | None = None  # None: it is not planned
        self.check: Check | None = None  # of its gradients; None: they are not compared
        self.live_begin = 0  # bytes alive when it began
        self.missing = 0  # bytes of gradients that were not there; of several ranks, else 0
        self.peak = 0  # bytes, before the meter was last reset
        self.forwards = 0
        self.cycle = Cycle()
        self.times = times
        self.tracing = tracing

    def stop_check(self) -> None:
        """Ends the comparison of this step's gradients."""
        check, self.check = self.check, None
        if check is not None:
            check.stop()

    @property
    def optimizers(self) -> list[Optimizer]:
        """The optimizers that have stepped for this model."""
        return self.cycle.optimizers


class Tracing:
    """What is traced of the step under way."""

    def __init__(self, agent: Agent, meter: Meter) -> None:
        self._agent = agent
        self._meter = meter
        self._op_window: OpWindow | None = None
        self.on = False  # in this step; stays until the next begins
        self.ops = True  # may be recorded

    def begin(self, run: Run | None) -> None:
        """Begins to record op events; those of the replays of the run, too."""
        self.events()
        if self._op_window is None and self.ops and not blocked():
            self._op_window = OpWindow(self._agent)
            self._op_window.open()
            if run is not None:
                run.trace(self._op_window.recorder)

    def events(self) -> None:
        """Begins to record allocator events alone: a capture sends op records itself."""
        self.on = True
        self._meter.events_begin(self._agent)

    def end_ops(self) -> None:
        """Stops recording ops; allocations go on being recorded."""
        if self._op_window is not None:
            self._op_window.close()
            self._op_window = None

    def end(self) -> None:
        """Stops recording ops and allocations."""
        self.end_ops()
        if self.on:
            self._meter.events_end()
