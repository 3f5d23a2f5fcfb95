# SPDX-License-Identifier: Apache-2.0
"""The three calls of Reprise for PyTorch.

    model = reprise.auto(model, budget="0.5x")     # the same object; the loop stays as it is
    print(reprise.report(model))
    reprise.remove(model)

Environment: REPRISE_DISABLE=1 switches everything off, REPRISE_BUDGET replaces the budget,
REPRISE_PLAN_TIMEOUT is how many seconds to wait for a plan (default 60), REPRISE_FIRST how the
first steps run.
"""

from __future__ import annotations

import os
import sys
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from reprise.errors import RepriseError
from reprise.units import check_budget, format_bytes, format_duration, format_percent

if TYPE_CHECKING:
    from torch import nn

    from reprise.torch.session.session import Session

    M = TypeVar("M", bound=nn.Module)

__all__ = ["Report", "auto", "remove", "report"]

_sessions: weakref.WeakKeyDictionary[nn.Module, Session] = weakref.WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class Report:
    """Predicted against measured. Zero: not known (yet)."""

    stage: str
    why: str
    budget: str | None
    budget_bytes: int
    plan_id: str
    base_peak_bytes: int
    predicted_peak_bytes: int
    measured_peak_bytes: int
    base_step_ns: int
    predicted_step_ns: int
    measured_step_ns: int
    overhead_bound: float
    planned_steps: int
    mismatched_steps: int
    over_budget_steps: int
    unplanned_over_budget_steps: int
    rungs: int
    checks: int
    failed_checks: int
    verify_extra_bytes: int
    sentence: str
    gradient_checks: int = 0  # of the checks, those that compared gradients; the others: values
    verify_peak_bytes: int = 0  # the peak of unplanned runs for a comparison of gradients
    unchecked: str = ""  # why nothing has been checked yet

    @property
    def gradients_equal(self) -> bool:
        """Every check found the same bits."""
        return self.checks > 0 and self.failed_checks == 0

    @property
    def validated(self) -> bool:
        """The budget held in every planned step, the program never left the plan, and every
        check found equal gradients."""
        held = 0 < self.measured_peak_bytes <= self.budget_bytes and not self.over_budget_steps
        return held and self.mismatched_steps == 0 and self.gradients_equal

    def __str__(self) -> str:
        return self.sentence


def auto(
    model: M,
    budget: str | int | None = "0.5x",
    *,
    verify_every: int = 50,
    warmup: int = 4,
    name: str | None = None,
    first: str | None = None,
    verify: str = "values",
) -> M:
    """Arms a model: after a few plain steps and a captured one it trains under a plan that keeps
    the whole step within `budget`. Returns the same object.

    budget        "22GiB", "22GB", bytes, "90%", "fit", "0.5x"; None: only observe
    verify_every  check the first planned step and then every n-th one bit for bit; 0: never
    warmup        plain steps that are measured before one is captured
    first         how the first steps run: "plain" as they are; "host", saved tensors in host
                  memory; "shapes", under a plan made from shapes alone; "auto" (or what
                  REPRISE_FIRST says): plain, and another way when the job does not fit so
    verify        what is checked: "values", everything that is made again against what was given
                  up, in the memory of any planned step; "gradients", those of the parameters too,
                  against the same step run once more without a plan, in the memory of that one

    RepriseError: the budget cannot be read, or the model is armed already with another one.
    """
    if os.environ.get("REPRISE_DISABLE") == "1":
        return model
    override = os.environ.get("REPRISE_BUDGET")
    wanted = override if override else budget
    checked = None if wanted is None else check_budget(wanted)
    known = _sessions.get(model)
    if known is not None and known.attached:
        remove(model)  # `reprise run` was first; the program knows better
        known = None
    if known is not None:
        if known.budget != checked:
            raise RepriseError(
                f"budget {checked}: this model is armed already with {known.budget}; "
                "call reprise.remove(model) first"
            )
        return model
    from reprise.torch.session.start import start

    session = start(
        model,
        budget=checked,
        verify_every=verify_every,
        warmup=warmup,
        name=name or type(model).__name__,
        first=_first(first),
        verify=_verify(verify),
    )
    if session is not None:
        _sessions[model] = session
    return model


def _first(asked: str | None) -> str:
    ways = ("auto", "plain", "host", "shapes")
    way = asked or os.environ.get("REPRISE_FIRST") or "auto"
    if way not in ways:
        raise RepriseError(f'first "{way}": is none of {", ".join(ways)}')
    return way


def _verify(asked: str) -> str:
    if asked not in ("values", "gradients"):
        raise RepriseError(f'verify "{asked}": is none of values, gradients')
    return asked


def remove(model: nn.Module) -> None:
    """Takes everything out of a model again. Nothing happens if nothing is there."""
    session = _sessions.pop(model, None)
    if session is not None:
        session.remove()
    started = sys.modules.get("reprise.torch.session.start")
    joint = None if started is None else started.compiled.pop(model, None)
    if joint is not None:
        joint.remove()


def report(model: nn.Module) -> Report:
    """What was predicted and what was measured so far."""
    session = _sessions.get(model)
    if session is None:
        return _empty()
    session.step.times.read(wait=True)
    plan, measured = session.plan, session.measured
    predicted_step = 0
    if plan is not None and plan.feasible:
        predicted_step = measured.base_step_ns + plan.time_ns - plan.base_time_ns
        predicted_step += session.armed_ns
    return Report(
        stage=session.stage.value,
        why=session.why,
        budget=session.budget,
        budget_bytes=plan.budget_bytes if plan else 0,
        plan_id=plan.plan_id if plan else "",
        base_peak_bytes=measured.base_peak_bytes,
        predicted_peak_bytes=plan.peak_bytes if plan and plan.feasible else 0,
        measured_peak_bytes=measured.planned_peak_bytes,
        base_step_ns=measured.base_step_ns,
        predicted_step_ns=predicted_step,
        measured_step_ns=measured.planned_step_ns,
        overhead_bound=plan.bound if plan else 0.0,
        planned_steps=measured.planned_steps,
        mismatched_steps=measured.mismatched_steps,
        over_budget_steps=measured.over_budget_steps,
        unplanned_over_budget_steps=session.unplanned.over_budget,
        rungs=len(session.ladder.rungs),
        checks=measured.checks,
        failed_checks=measured.failed_checks,
        verify_extra_bytes=measured.verify_extra_bytes,
        sentence=_sentence(session, predicted_step),
        gradient_checks=measured.gradient_checks,
        verify_peak_bytes=measured.verify_peak_bytes,
        unchecked="" if measured.checks else _unchecked(session),
    )


def _sentence(session: Session, predicted_step: int) -> str:
    plan, measured = session.plan, session.measured
    if plan is None or not plan.sentence:
        where = f" ({session.why})" if session.why else ""
        peak = f"  Peak {format_bytes(measured.base_peak_bytes)}" if measured.plain_steps else ""
        return f"No plan: {session.stage.value}{where}.{peak}"
    text = plan.sentence
    if plan.feasible and measured.planned_peak_bytes and plan.peak_bytes and predicted_step:
        over = measured.planned_peak_bytes / plan.peak_bytes - 1
        text += (
            f".  Measured {format_bytes(measured.planned_peak_bytes)} "
            f"({format_percent(over, sign=True)})"
        )
        if measured.planned_step_ns:
            slower = measured.planned_step_ns / predicted_step - 1
            text += (
                f", {format_duration(measured.planned_step_ns)} "
                f"({format_percent(slower, sign=True)})"
            )
        if measured.checks:
            checks = f"{measured.checks} check{'s' if measured.checks != 1 else ''}"
            equal = measured.failed_checks == 0
            what = _compared(session)
            text += f", {what} {'bit for bit equal' if equal else 'NOT equal'} in {checks}"
        else:
            text += f", not checked yet: {_unchecked(session)}"
        unplanned = session.unplanned.over_budget
        if unplanned:
            text += f"; {unplanned} unplanned step{'s' if unplanned > 1 else ''} over the budget"
        text += "."
    return text


def status_line(session: Session) -> str:
    """Predicted against measured in a line of a log."""
    plan, measured = session.plan, session.measured
    if plan is None or not plan.feasible or not plan.peak_bytes:
        return f"{session.stage.value}: {session.why}"
    peak = measured.planned_peak_bytes / plan.peak_bytes - 1
    text = (
        f"{format_bytes(measured.base_peak_bytes)} -> {format_bytes(plan.peak_bytes)} predicted, "
        f"{format_bytes(measured.planned_peak_bytes)} measured "
        f"({format_percent(peak, sign=True)}), "
        f"step {format_duration(measured.base_step_ns)}"
    )
    if measured.planned_step_ns and measured.base_step_ns:
        slower = measured.planned_step_ns / measured.base_step_ns - 1
        text += (
            f" -> {format_duration(measured.planned_step_ns)} ({format_percent(slower, sign=True)})"
        )
    if measured.checks:
        equal = "bitwise equal" if not measured.failed_checks else "NOT EQUAL"
        text += f", {_compared(session)} {equal} on {measured.checks} sampled step"
        text += "s" if measured.checks > 1 else ""
    else:
        text += f", not checked yet: {_unchecked(session)}"
    return text


def _compared(session: Session) -> str:
    measured = session.measured
    if measured.gradient_checks == measured.checks:
        return "gradients"
    return "gradients and values made again" if measured.gradient_checks else "values made again"


def _unchecked(session: Session) -> str:
    if not session.judge.every:
        return "verify_every is 0"
    return session.measured.unchecked or "no step under a plan has ended"


def _empty() -> Report:
    disabled = os.environ.get("REPRISE_DISABLE") == "1"
    why = "REPRISE_DISABLE=1" if disabled else "reprise.auto was not called on this model"
    return Report(
        "off", why, None, 0, "", 0, 0, 0, 0, 0, 0, 0.0, 0, 0, 0, 0, 0, 0, 0, 0, f"No plan: {why}."
    )
