# SPDX-License-Identifier: Apache-2.0
"""What the planned steps of all backends do alike: stand in the place of methods of the model, and
report the steps of `fit` to the run of their plan."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from reprise.base.errors import RepriseError
from reprise.plan import Plan, report_step
from reprise.plan.reporting import report_unchecked
from reprise.plan.wish import Wish


class Step:
    """A planned step of one model."""

    def __init__(self, model: Any, wish: Wish | None, batch: int | None, name: str) -> None:
        self._model, self._batch = model, batch
        # What the backend's `auto` takes beside the step.
        self._how: dict[str, Any] = {"budget": None, "name": name}
        self._how |= wish.keywords() if wish else {}

    def replaced(self) -> dict[str, Any]:
        """Returns the methods of the model that are the step's."""
        return {"make_train_function": self._make_train_function}

    def close(self) -> None:
        """Takes out what the step has put elsewhere than into the model."""

    def _make_train_function(self, force: bool = False) -> None:
        if self._model.train_function is None or force:
            self._model.train_function = self._made()

    def _made(self) -> Callable[..., Any]:
        """Returns what Keras calls for a step of `fit`."""
        raise NotImplementedError

    @contextlib.contextmanager
    def _uncompiled(self) -> Iterator[None]:
        """Makes the function of a step without XLA inside the context."""
        compiled, self._model.jit_compile = self._model.jit_compile, False
        try:
            yield
        finally:
            self._model.jit_compile = compiled


class StepReports:
    """Counts and reports the steps of one model. If nobody takes the reports, it stops."""

    def __init__(self, unchecked: str) -> None:
        """Takes why no check compares gradients, for the verdict; empty if one does."""
        self._unchecked = unchecked
        self._step = 0
        self._told = ""
        self._taken = True

    @property
    def newest(self) -> int:
        """The number of the newest step; -1 before the first."""
        return self._step - 1

    def unchecked(self, plan: Plan, why: str) -> None:
        """Reports why no step under a plan is compared. Never raises."""
        with contextlib.suppress(RepriseError, OSError):
            if self._taken:
                report_unchecked(plan, why)

    def step(
        self,
        plan: Plan | None,
        step_ns: int = 0,
        peak_bytes: int = 0,
        predicted_peak_bytes: int = 0,
    ) -> None:
        """Reports a step that has ended, under `plan` or without one; zero: not measured, or
        predicted as by the plan. Never raises."""
        number, self._step = self._step, self._step + 1
        if not self._taken or (plan is None and not self._told):
            return
        try:
            self._taken = report_step(
                plan,
                step=number,
                peak_bytes=peak_bytes,
                step_ns=step_ns,
                predicted_peak_bytes=predicted_peak_bytes,
                recomputed=len(plan.recomputed_ops) if plan else 0,
                wait=False,
            )
            if self._taken and plan is not None and plan.plan_id != self._told:
                if self._unchecked:
                    report_unchecked(plan, self._unchecked)
                self._told = plan.plan_id
        except (RepriseError, OSError):
            self._taken = False
