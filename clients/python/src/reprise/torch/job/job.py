# SPDX-License-Identifier: Apache-2.0
"""One eager model under Reprise, as its parts see it: a job with its step, its plans and its meter.

job = EagerJob(model, agent, meter, options)
job.step.number, job.plans.rung
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from reprise.agent.agent import Agent
from reprise.torch.internals.forward import ArmedForward
from reprise.torch.internals.host import HostSaves
from reprise.torch.job.options import Options
from reprise.torch.job.plans import Plans
from reprise.torch.job.stages import ArmedStages
from reprise.torch.job.step import Step
from reprise.torch.job.tracing import Tracing
from reprise.torch.meter.meter import Meter
from reprise.torch.meter.step_times import StepTimes
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
