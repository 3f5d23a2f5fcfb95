# SPDX-License-Identifier: Apache-2.0
"""One armed model as a value: where it is, what was measured of it, and what is done about events.

    job = Job(model, agent, Budget("0.5x"))
    job.carry_out({Action.SAY_STATUS: lambda _: ...})     # once for each action: its function
    job.happened(StepEnded(plain_steps=3))                # the only way to another state
    job.stage, job.why                                    # to read

The parts of a session are given a job and the parts that they use, never the session: so what a
part may change is what its constructor takes. `happened` asks the policy, keeps the new state, and
calls the function of each action with the subject of the event: whatever its sender passes along.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from reprise.agent.agent import Agent
from reprise.base.budget import Budget
from reprise.base.errors import RepriseError
from reprise.base.saying import say
from reprise.torch.check import quarantine
from reprise.torch.check.result import CheckResult
from reprise.torch.executor.protocol import Handle
from reprise.torch.internals.distributed import rank_here
from reprise.torch.meter.state import model_device
from reprise.torch.policy.events import Event
from reprise.torch.policy.policy import Action, Actions, decide
from reprise.torch.policy.state import JobState, Stage
from reprise.torch.training.measure import Measured
from reprise.torch.training.record import Record


class Job:
    """What is known of one armed model, however its steps are run."""

    def __init__(self, model: nn.Module, agent: Agent, budget: Budget | None) -> None:
        """`agent`: takes what is reported; `budget`: None if the model is only observed."""
        # Weak: an armed model dies with its last user, not with the process.
        self._model = weakref.ref(model)
        self.agent = agent
        self.budget = budget
        self.device = model_device(model)
        self.measured = Measured()
        self.record = Record(agent, on_host=self.device.type == "cpu")
        self.busy = False  # a forward of Reprise's own is running
        self.fault = ""  # the first internal error, in words: nothing is planned after it
        self._keep(JobState(has_budget=budget is not None))
        self._effects: dict[Action, Callable[[Any], object]] = {}
        self._said: set[str] = set()

    @property
    def model(self) -> nn.Module:
        """The model that is trained. Raises RepriseError once it has died."""
        model = self.alive()
        if model is None:
            raise RepriseError("the model no longer exists")
        return model

    def alive(self) -> nn.Module | None:
        """Returns the model, or None if it has died."""
        return self._model()

    @property
    def broken(self) -> bool:
        """Whether there was an internal error: from then on the model trains on unobserved."""
        return bool(self.fault)

    # ---- What happens -----------------------------------------------------------------

    def carry_out(self, effects: Mapping[Action, Callable[[Any], object]]) -> None:
        """Names the functions that carry out some actions; each is called with the subject of the
        event."""
        self._effects |= effects

    def happened(self, event: Event, subject: Any = None) -> Actions:
        """Moves the job on, and carries out what is to be done about an event. Returns the actions,
        which have no other function where they are questions of the sender."""
        state, actions = decide(self.state, event)
        if state is not self.state:
            self._keep(state)
        for action in actions:
            if (effect := self._effects.get(action)) is not None:
                effect(subject)
        return actions

    def _keep(self, state: JobState) -> None:
        self.state = state  # where the job is, as the policy left it
        self.stage: Stage = state.stage
        self.why: str = state.why  # it is there, in words; empty if nothing is to be said

    # ---- What is said and reported ----------------------------------------------------

    def say(self, text: str) -> None:
        """Says a line to the person who trains, once."""
        if text not in self._said:
            self._said.add(text)
            rank = rank_here()
            say(f"rank {rank}: {text}" if rank else text)

    def checked(self, step: int, handle: Handle, result: CheckResult) -> None:
        """Counts and reports what a check found of a step under a plan."""
        self.measured.checked(result)
        self.record.check(step, handle.plan, result)

    def withdraw(self, handles: Sequence[Handle], why: str = "") -> None:
        """Removes plans that are installed, and reports it. Without a reason: the program wants
        none."""
        for handle in handles:
            self.record.withdrawn(handle.plan, why)
            handle.remove()

    def condemn(self, step: int, handle: Handle, result: CheckResult) -> None:
        """Puts a plan that was found wrong into quarantine, with its graph and what was found: it
        is never installed again."""
        report = {"step": step, "differing": result.differing, "torch": torch.__version__}
        quarantine.put(handle.plan, handle.graph_json(), report)
