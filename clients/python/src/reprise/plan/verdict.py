# SPDX-License-Identifier: Apache-2.0
"""Predicted against measured: the verdict of one model, from what is reported of it.

    tally = Tally()
    tally.step(StepFacts(...)); tally.check(...); tally.applied(...)    # as the agent is told
    verdict = tally.verdict(plan)
    verdict.sentence, verdict.validated

The server makes the same of the same reports (server/service/runs/verdict.h and
formats/convert/sentence.h); a process has its own because it must be able to say how it goes
without a server. Both are held to tests/fixtures/verdicts.json, case by case.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field, replace
from statistics import median

from reprise.base.units import format_bytes, format_duration, format_percent
from reprise.plan import BoundProof, Plan

# Of a plan's steps so many times are kept, the newest.
TIMES = 10_001


@dataclass(slots=True)
class Verdict:
    """The figures of reprise.v1.Verdict, by its names; how the job ended, only the server knows."""

    validated: bool = False
    base_peak_bytes: int = 0
    budget_bytes: int = 0
    predicted_peak_bytes: int = 0
    measured_peak_bytes: int = 0
    base_step_ns: int = 0
    predicted_step_ns: int = 0
    measured_step_ns: int = 0
    overhead_bound: float = 0.0
    gradients_equal: bool = False
    gradients_checked: int = 0
    gradients_differing: int = 0
    planned_steps: int = 0
    mismatches: int = 0
    sentence: str = ""
    feasible: bool = False
    over_budget_steps: int = 0
    over_budget_bytes: int = 0
    unplanned_steps: int = 0
    unplanned_peak_bytes: int = 0
    checks: int = 0
    value_checks: int = 0
    checks_differing: int = 0
    value_checks_differing: int = 0
    unchecked: str = ""
    withdrawn: str = ""
    refused: str = ""
    left: str = ""
    values_checked: int = 0
    values_equal: bool = False
    other_load: str = ""
    kept_since: int = 0


@dataclass(slots=True)
class _Steps:
    peak_bytes: int = 0
    times_ns: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=TIMES))


class Tally:
    """What was reported so far. Plans are named by their id in hex, "" for none."""

    def __init__(self) -> None:
        self._sum = Verdict()
        self.plan_id = ""  # of the newest planned step
        self._planned: dict[str, _Steps] = {}
        # By plan: the time per step beyond its ops, and the peak.
        self._applied: dict[str, tuple[int, int]] = {}
        self._refused: dict[str, str] = {}
        self._checked: deque[int] = deque(maxlen=TIMES)  # steps

    def step(
        self,
        step: int,
        *,
        step_ns: int,
        peak_bytes: int,
        planned: bool = False,
        plan_id: str = "",
        budget_bytes: int = 0,
        kept_all: bool = False,
        mismatches: int = 0,
        window: bool = False,
    ) -> None:
        """Counts a step that ended. `budget_bytes`: that of its own plan; 0 if there is none or
        it is not known."""
        total = self._sum
        mismatches = max(mismatches, 1) if kept_all else mismatches
        total.mismatches += mismatches
        kept = planned and not mismatches and not 0 < budget_bytes < peak_bytes
        total.kept_since = (total.kept_since or step) if kept else 0
        if not planned:
            total.unplanned_steps += 1
            total.unplanned_peak_bytes = max(total.unplanned_peak_bytes, peak_bytes)
            return
        total.planned_steps += 1
        if 0 < budget_bytes < peak_bytes:
            total.over_budget_steps += 1
            total.over_budget_bytes = max(total.over_budget_bytes, peak_bytes - budget_bytes)
        if not plan_id:
            return  # its input is not the plan's
        self.plan_id = plan_id
        steps = self._planned.get(plan_id) or self._planned.setdefault(plan_id, _Steps())
        steps.peak_bytes = max(steps.peak_bytes, peak_bytes)
        if not window and not mismatches:
            steps.times_ns.append((step, step_ns))

    def check(
        self, step: int, *, checked: int, differing: int, equal: bool, values: bool = False
    ) -> None:
        """Counts a comparison of gradients or, if `values`, of recomputed values."""
        total, differs = self._sum, differing > 0 or not equal
        self._checked.append(step)
        total.checks += 1
        total.value_checks += values
        total.checks_differing += differs
        total.value_checks_differing += differs and values
        if values:
            total.values_checked += checked
        else:
            total.gradients_checked += checked
            total.gradients_differing += differing

    def applied(self, plan_id: str, own_ns: int, peak_bytes: int) -> None:
        """Notes that steps run under a plan, with this peak and this time per step beyond its
        ops."""
        self._applied[plan_id] = own_ns, peak_bytes

    def refused(self, plan_id: str, why: str) -> None:
        """Notes that the executor does not run a plan; without an id there is none to run."""
        self._refused[plan_id] = why

    def withdrawn(self, why: str) -> None:
        """Notes that the plan of the steps so far is not trusted any more."""
        self._sum.withdrawn = why

    def unchecked(self, why: str) -> None:
        """Notes that gradients are not compared, and why."""
        self._sum.unchecked = why

    def left(self, why: str) -> None:
        """Notes how steps that left the plan differ from the captured one."""
        self._sum.left = why

    def other_load(self, why: str) -> None:
        """Notes why step times are not comparable with those without a plan; "": they are."""
        self._sum.other_load = why

    @property
    def is_withdrawn(self) -> bool:
        """Whether a plan was withdrawn."""
        return bool(self._sum.withdrawn)

    def verdict(
        self, plan: Plan | None, measured_step_ns: int = 0, no_plan_fits: str = ""
    ) -> Verdict:
        """Returns the verdict about `plan`: that of the newest planned step, otherwise the
        newest one. `measured_step_ns`: the time of a step without a plan, as its graph says; 0
        if not known. `no_plan_fits`: the server's sentence in place of a plan."""
        total = self._sum
        answer = plan.sentence if plan is not None else no_plan_fits
        plan_id = plan.plan_id if plan is not None else ""
        refused = ""
        if not (total.planned_steps or plan_id in self._applied):
            refused = self._refused.get(plan_id) or self._refused.get("", "")
        if not answer and not refused:
            return Verdict()
        misses = (total.over_budget_steps or total.mismatches) and not total.withdrawn
        out = replace(
            total,
            gradients_equal=total.gradients_checked > 0
            and total.checks_differing == total.value_checks_differing,
            unchecked="" if total.checks else total.unchecked,
            refused=refused,
            left=total.left if total.mismatches else "",
            values_equal=total.values_checked > 0 and not total.value_checks_differing,
            other_load="",
            kept_since=total.kept_since if misses else 0,
        )
        if plan is not None:
            self._about(plan, measured_step_ns, out)
            if plan.feasible:
                answer = _fits(plan, out)
        out.validated = (
            out.feasible
            and out.planned_steps > 0
            and not out.over_budget_steps
            and out.checks > 0
            and not out.checks_differing
            and not out.mismatches
            and not out.withdrawn
        )
        as_it_is = plan is not None and _recomputes_nothing(plan)
        out.sentence = _sentence(answer, out, as_it_is)
        return out

    def prediction(self, plan: Plan, measured_step_ns: int = 0) -> str:
        """Returns the sentence of a plan with what this job's executor needs beside the ops, as the
        verdict about it begins."""
        out = Verdict()
        self._about(plan, measured_step_ns, out)
        return _fits(plan, out) if plan.feasible else plan.sentence

    def _about(self, plan: Plan, measured_step_ns: int, out: Verdict) -> None:
        out.feasible = plan.feasible
        out.base_peak_bytes = plan.base_peak_bytes
        out.budget_bytes = plan.budget_bytes
        out.base_step_ns = measured_step_ns or plan.base_time_ns
        out.overhead_bound = plan.bound
        if plan.feasible:
            own_ns, peak_bytes = self._applied.get(plan.plan_id, (0, 0))
            out.predicted_peak_bytes = peak_bytes or plan.peak_bytes
            out.predicted_step_ns = out.base_step_ns + plan.time_ns - plan.base_time_ns
            out.predicted_step_ns += own_ns
        steps = self._planned.get(plan.plan_id)
        if steps is not None:
            out.measured_peak_bytes = steps.peak_bytes
            checked = set(self._checked)
            times = [time_ns for step, time_ns in steps.times_ns if step not in checked]
            out.measured_step_ns = int(median(times)) if times else 0
            out.other_load = self._sum.other_load if times else ""


def _sentence(plan_sentence: str, verdict: Verdict, as_it_is: bool) -> str:
    """Returns the plan's sentence, the measured part, and what else a reader would be misled
    about."""
    text = plan_sentence
    if not text:
        text = f"No plan: {verdict.refused.rstrip('.')}."
    elif verdict.feasible and verdict.planned_steps:
        text += _measured(verdict, as_it_is)
    more = _trouble(verdict, planned=bool(plan_sentence) and verdict.feasible)
    if more and not text.endswith("."):
        text += "."
    return text + more


def measured_part(text: str) -> str:
    """Returns the measured part of a sentence; "" if nothing was measured yet."""
    _, found, rest = text.partition(".  Measured ")
    return f"measured {rest}" if found else ""


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _difference(measured: int, predicted: int) -> str:
    if predicted <= 0:
        return ""
    return f" ({format_percent(measured / predicted - 1, sign=True)})"


def _checks(verdict: Verdict) -> str:
    values, checks = verdict.value_checks, verdict.checks
    if not checks:
        why = verdict.unchecked.rstrip(".")
        return f"not checked yet{': ' if why else ''}{why}"
    if verdict.checks_differing:
        differing = verdict.value_checks_differing
        what = "gradients and values made again"
        if not differing:
            what = "gradients"
        elif differing == verdict.checks_differing:
            what = "values made again"
        return f"{what} differ in {verdict.checks_differing} of {_count(checks, 'check')}"
    if values == checks:
        return f"values made again bit for bit equal in {_count(values, 'check')}"
    text = f"gradients bit for bit equal in {_count(checks - values, 'check')}"
    return text + (f", values made again in {_count(values, 'check')}" if values else "")


def _recomputes_nothing(plan: Plan) -> bool:
    moves = plan.recomputed_ops or plan.host_peak_bytes
    return plan.feasible and not moves and plan.time_ns <= plan.base_time_ns


def _fits(plan: Plan, verdict: Verdict) -> str:
    """Returns the plan's sentence with the prediction of this job: what its executor adds was not
    known to the planner."""
    as_it_is = _recomputes_nothing(plan)
    text = f"It fits in {format_bytes(plan.budget_bytes)}"
    text += " as it is: nothing is recomputed." if as_it_is else "."
    text += f"  Peak {format_bytes(verdict.predicted_peak_bytes)}"
    text += "" if as_it_is else f" (was {format_bytes(plan.base_peak_bytes)})"
    text += f"   Step {format_duration(verdict.predicted_step_ns)}"
    text += _difference(verdict.predicted_step_ns, verdict.base_step_ns)
    text += "" if as_it_is else f"   {_optimality(plan, verdict.base_step_ns)}"
    if plan.link is not None:
        text += (
            f"   On the host {format_bytes(plan.host_peak_bytes)}, with copies at most "
            f"{format_bytes(plan.link.out_bytes_per_s)}/s out and "
            f"{format_bytes(plan.link.in_bytes_per_s)}/s in"
        )
    return text + (f" (an estimate: {plan.inferred})" if plan.inferred else "")


def _optimality(plan: Plan, base_step_ns: int) -> str:
    if plan.inferred:
        return "not proven of the step"
    if plan.proven_optimal:
        return "proven optimal"
    claimed = ""
    gap = plan.overhead - plan.bound
    if plan.bound_proof is BoundProof.SOLVER:
        claimed = " by the solver's word, not checked"
        if gap <= plan.overhead * 2e-6 + 1e-8:  # its tolerance
            return f"optimal{claimed}"
    if plan.base_time_ns > 0 and base_step_ns > 0:
        gap *= plan.base_time_ns / base_step_ns
    # Rounded up, so that "at most" is true; the epsilon keeps 0.8 % from becoming 0.9.
    shown = max(1.0, math.ceil(max(0.0, gap) * 1000 - 1e-6)) / 1000
    return f"at most {format_percent(shown)} above optimal{claimed}"


def _measured(verdict: Verdict, as_it_is: bool) -> str:
    figures = []
    if verdict.measured_peak_bytes > 0:
        off = _difference(verdict.measured_peak_bytes, verdict.predicted_peak_bytes)
        figures.append(format_bytes(verdict.measured_peak_bytes) + off)
    if verdict.measured_step_ns > 0:
        off = _difference(verdict.measured_step_ns, verdict.predicted_step_ns)
        if verdict.other_load:
            off = f" (time not comparable: {verdict.other_load.rstrip('.')})"
        figures.append(format_duration(verdict.measured_step_ns) + off)
    # "Not measured": other inputs than the plan's.
    text = f".  Measured {', '.join(figures)}" if figures else ".  Not measured"
    # That no value differs says nothing where none was made again.
    if as_it_is and verdict.checks <= verdict.value_checks and not verdict.checks_differing:
        return text + "."
    return f"{text}, {_checks(verdict)}."


def _unplanned(verdict: Verdict, planned: bool) -> str:
    """Returns what is said of steps without a plan that a reader would take to have kept the
    budget."""
    over = verdict.unplanned_peak_bytes - verdict.budget_bytes
    if not verdict.unplanned_steps or (planned and over <= 0):
        return ""
    plan = "the plan" if planned else "a plan"
    # Beside what a refused step needs, which is rounded up, too.
    peak = format_bytes(verdict.unplanned_peak_bytes, up=not verdict.feasible)
    text = f" {_count(verdict.unplanned_steps, 'step')} ran without {plan}, at up to {peak}"
    if verdict.feasible and over > 0:
        text += f", {format_bytes(over)} over the budget"
    return text + "."


def _trouble(verdict: Verdict, planned: bool) -> str:
    text = ""
    if planned and verdict.refused:
        text += f" It was not run: {verdict.refused.rstrip('.')}."
    if verdict.over_budget_steps:
        text += (
            f" {verdict.over_budget_steps} of {_count(verdict.planned_steps, 'planned step')} "
            f"exceeded the budget, by up to {format_bytes(verdict.over_budget_bytes)}."
        )
    if verdict.mismatches:
        times = _count(verdict.mismatches, "time")
        why = f": {verdict.left.rstrip('.')}" if verdict.left else ""
        text += f" The program left the plan {times} and kept everything then{why}."
    if verdict.kept_since:
        text += f" Every step since step {verdict.kept_since} kept to its plan and its budget."
    if verdict.withdrawn:
        text += f" The plan was withdrawn: {verdict.withdrawn.rstrip('.')}."
    # A plan that no step has run under yet says nothing of those before it.
    fresh = planned and not (verdict.planned_steps or verdict.refused or text)
    if not fresh:
        text += _unplanned(verdict, planned and verdict.planned_steps > 0)
    return text
