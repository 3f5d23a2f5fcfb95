# SPDX-License-Identifier: Apache-2.0
"""What the parts of a session see of it, and of each other.

A part (check_schedule.py, peaks.py, ...) is given a `Job` and imports this file, not session.py. So
the arrows lead one way: session.py imports its parts, and they import what they are promised
here. A part that needs more of another one writes it down here; a type checker then holds the
session to it.

Those that are named as classes of their own (`Measured`, `Record`, ...) need nothing of a session.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch import nn
from torch.optim import Optimizer

from reprise.plan import Plan
from reprise.torch.capture.capture import Capture
from reprise.torch.capture.captured import CapturedStep
from reprise.torch.capture.step_graph import CapturedGraph
from reprise.torch.check.result import CheckResult
from reprise.torch.executor.protocol import Handle
from reprise.torch.internals.forward import ArmedForward
from reprise.torch.internals.host import HostSaves
from reprise.torch.ladder.ladder import Ladder
from reprise.torch.ladder.rung import Rung
from reprise.torch.policy.events import State
from reprise.torch.recovery import job
from reprise.torch.session.tracing import Tracing
from reprise.torch.tape.executor import TapeExecutor
from reprise.torch.training.measure import Measured
from reprise.torch.training.record import Record

__all__ = ["Job", "Planning", "Startup", "Step"]


class Step(job.Step, Protocol):
    """The step under way."""

    ended: int  # how many steps are over
    under_way: bool
    in_forward: bool
    in_optimizer: bool
    out_of_memory: bool
    capture: Capture | None  # None: it is not captured
    tracing: Tracing
    live_begin: int  # bytes alive when it began

    @property
    def optimizers(self) -> list[Optimizer]:
        """Returns the optimizers that have stepped for the model."""

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, again: bool = False) -> None:
        """Begins a step with the arguments of its first forward."""

    def forward(
        self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Runs one forward of the model and returns its output."""

    def drop(self) -> None:
        """Forgets the step; the next forward begins another one."""


class Startup(job.Startup, Protocol):
    """The steps before the first plan."""

    host: HostSaves | None  # None: saved tensors stay on the device


class Together(Protocol):
    """Knows the models that are trained in the same steps."""

    @property
    def planned(self) -> bool:
        """Returns whether one of them runs under a plan."""

    def ended(self) -> bool:
        """Notes that a step has ended; returns whether the models are to be planned as one."""

    def join(self) -> None:
        """Plans them as one."""


class Planning(job.Planning, Protocol):
    """Asks for plans and applies them."""

    @property
    def together(self) -> Together:
        """Returns what knows the models that are trained in the same steps."""

    def stopped(self, why: str = "") -> None:
        """Removes all plans."""

    @property
    def meets(self) -> bool:
        """Returns whether the other ranks are met at the end of this step."""

    def meet(self) -> None:
        """Meets the other ranks at the end of a step, if it is time to."""

    def ask(self) -> None:
        """Asks for plans that are due, and takes those that have arrived."""

    def captured(self, step: CapturedStep) -> None:
        """Makes a graph of a captured step and asks for its plan."""

    def announce(self, rung: Rung) -> None:
        """Reports that a step ran under the plan of a rung."""

    def tighten(self) -> None:
        """Asks for plans with less memory, because it ran out."""

    def recapture(self, why: str) -> None:
        """Drops all plans and captures the step again."""

    def begin_again(self) -> None:
        """Starts over, as if no step had been captured."""

    def stop(self, why: str) -> None:
        """Ends planning for good."""


class Job(job.Job, Protocol):
    """The session of a model, as its parts see it."""

    name: str
    warmup: int
    executor: TapeExecutor
    forward: ArmedForward
    measured: Measured
    record: Record
    # Plans another module instead, or what torch.compile made of this one (None); returns whether
    # there is one.
    hand_over: Callable[[nn.Module | None], bool] | None

    @property
    def state(self) -> State:
        """Returns where the model is, as the policy sees it."""

    @property
    def alone(self) -> bool:
        """Returns whether no other model of this process is armed."""

    @property
    def plan(self) -> Plan | None:
        """Returns the plan of the last planned step, or the refusal."""

    @property
    def graph(self) -> CapturedGraph | None:
        """Returns the step graph behind `plan`."""

    @property
    def ladder(self) -> Ladder:
        """Returns the plans by input size."""

    @property
    def handles(self) -> Sequence[Handle]:
        """Returns the plans that are installed."""

    @property
    def broken(self) -> bool:
        """Returns whether there was an internal error."""

    def remove(self) -> None:
        """Takes every hook out of the model."""

    def withdraw(self, why: str = "") -> None:
        """Removes the plans that are installed, and reports it."""

    def checked(self, step: int, handle: Handle, result: CheckResult) -> None:
        """Reports what a check found of a step under a plan."""

    def condemn(self, step: int, handle: Handle, result: CheckResult) -> None:
        """Puts a plan that was found wrong into quarantine."""

    @property
    def step(self) -> Step:
        """Returns the step under way."""

    @property
    def startup(self) -> Startup:
        """Returns what runs the steps before the first plan."""

    @property
    def planning(self) -> Planning:
        """Returns what asks for plans."""
