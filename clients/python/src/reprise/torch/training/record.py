# SPDX-License-Identifier: Apache-2.0
"""All that is reported of one model: to the collector, and to the tally that its verdict is of.

    record.step(...), record.check(...)               # measured
    record.applied(plan, own_ns, step_ns), record.refused(...)   # what became of plans
    record.verdict()                                   # predicted against measured, so far
    record.failed(error)                               # how the program ends

One place, so that a report, the log and the page cannot say different things: the server makes its
verdict of the same reports.
"""

from __future__ import annotations

from reprise.agent import abi
from reprise.agent.agent import Agent
from reprise.base.saying import because
from reprise.plan import Plan
from reprise.plan.verdict import Tally, Verdict
from reprise.torch.check.result import CheckResult
from reprise.torch.training.load import Load


class Record:
    """Reports the steps, checks and plans of one session. `on_host`: its steps wait for processors,
    not for a device."""

    def __init__(self, agent: Agent, *, on_host: bool) -> None:
        self.agent = agent
        self._tally = Tally()
        self._load = Load() if on_host else None
        self._other_load = ""
        self._plan: Plan | None = None  # of the newest planned step, else the newest
        self._measured_step_ns: dict[str, int] = {}  # of a plain step, as the plan's graph says
        self._answer = ""  # the server's, where no plan fits

    # ---- Steps and checks -------------------------------------------------------

    def step(
        self,
        step: int,
        *,
        step_ns: int,
        peak_bytes: int,
        flags: int,
        plan: Plan | None = None,
        recomputed: int = 0,
        mismatches: int = 0,
        is_base: bool = False,
    ) -> None:
        """Reports a step that ended. `plan`: what it ran under, if its input is the plan's;
        `is_base`: what a step without a plan takes is known from it."""
        self.agent.step_done(
            step,
            step_ns=step_ns,
            peak_bytes=peak_bytes,
            plan_id=0 if plan is None else plan.plan_number,
            flags=flags,
            recomputed=recomputed,
            mismatches=mismatches,
        )
        if plan is not None:
            self._plan = plan
        self._tally.step(
            step,
            step_ns=step_ns,
            peak_bytes=peak_bytes,
            planned=bool(flags & abi.STEP_PLANNED),
            plan_id="" if plan is None else plan.plan_id,
            budget_bytes=0 if plan is None else plan.budget_bytes,
            kept_all=bool(flags & abi.STEP_KEPT_ALL),
            mismatches=mismatches,
            window=bool(flags & abi.STEP_WINDOW),
        )
        if self._load is not None:
            counts = not mismatches and (is_base or flags in (0, abi.STEP_PLANNED))
            under = None if is_base else plan
            self._load.step(step_ns, planned=under is not None, representative=counts)
            if under is not None:
                self._compare_loads(under, self._load.difference())

    def same_ops(self, then_ns: int, now_ns: int) -> None:
        """Notes what the ops of a forward took where the base was measured, and what the same ops
        take under the plan; zeros if that is not known yet."""
        if self._load is not None and then_ns and now_ns:
            self._load.same_ops = now_ns / then_ns

    def _compare_loads(self, plan: Plan, why: str) -> None:
        """Reports once that the times under a plan are not comparable, and once that they are."""
        if bool(why) != bool(self._other_load):
            self._other_load = why
            self.agent.plan_state(plan.plan_number, abi.PLAN_OTHER_LOAD, why)
            self._tally.other_load(why)

    def check(self, step: int, plan: Plan, result: CheckResult) -> None:
        """Reports the result of a comparison of gradients or of recomputed values."""
        equal = not result.differing
        self.agent.verify(
            step,
            plan_id=plan.plan_number,
            checked=result.checked,
            differing=len(result.differing),
            flags=(abi.VERIFY_BITWISE if equal else abi.VERIFY_FAILED)
            | (abi.VERIFY_VALUES if result.values else 0),
            first_name=0 if equal else self.agent.intern(result.differing[0]),
        )
        self._tally.check(
            step,
            checked=result.checked,
            differing=len(result.differing),
            equal=equal,
            values=result.values,
        )

    def left(self, plan: Plan, why: str) -> None:
        """Reports how steps that left the plan differ from the captured one."""
        self.agent.plan_state(plan.plan_number, abi.PLAN_LEFT, why)
        self._tally.left(why)

    def unchecked(self, plan: Plan, why: str) -> None:
        """Reports that a check was due and not made, and why."""
        self.agent.plan_state(plan.plan_number, abi.PLAN_UNCHECKED, why)
        self._tally.unchecked(why)

    # ---- Plans ------------------------------------------------------------------

    def applied(self, plan: Plan, own_ns: int, measured_step_ns: int) -> None:
        """Reports that the next steps run under a plan, at `plan.peak_bytes`, for `own_ns` per
        step beyond its ops. `measured_step_ns`: the time of a plain step, as its graph says."""
        self._measured_step_ns[plan.plan_id] = measured_step_ns
        if not self._tally.plan_id:
            self._plan = plan
        self.agent.plan_applied(plan.plan_number, own_ns, plan.peak_bytes)
        self._tally.applied(plan.plan_id, own_ns, plan.peak_bytes)

    def refused(self, plan: Plan, why: str) -> None:
        """Reports that this process does not run a plan."""
        self.agent.plan_state(plan.plan_number, abi.PLAN_REFUSED, why)
        self._tally.refused(plan.plan_id, why)
        if self._plan is None:
            self._plan = plan

    def answered(self, sentence: str) -> None:
        """Notes that the server says that no plan fits; it stores its answer itself."""
        if self._plan is None:
            self._answer = sentence

    def withdrawn(self, plan: Plan, why: str = "") -> None:
        """Reports that a plan is withdrawn: it is not trusted, or cannot run any more. Without a
        reason: the program does not want it any more."""
        self.agent.plan_state(plan.plan_number, abi.PLAN_STOPPED, why)
        if why:
            self._tally.withdrawn(why)

    def without(self, why: str) -> None:
        """Reports that the job trains without a plan from here on, and why."""
        why = because(why)
        if self._tally.is_withdrawn:
            return
        if self._tally.plan_id and self._plan is not None:
            self.withdrawn(self._plan, why)
            return
        self.agent.plan_state(0, abi.PLAN_NONE, why)
        self._tally.refused("", why)

    # ---- The verdict ------------------------------------------------------------

    def verdict(self) -> Verdict:
        """Returns the verdict so far: predicted against measured."""
        plan = self._plan
        step_ns = 0 if plan is None else self._measured_step_ns.get(plan.plan_id, 0)
        return self._tally.verdict(plan, step_ns, self._answer)

    def prediction(self, plan: Plan) -> str:
        """Returns the sentence of a plan that is applied, with the prediction for this job."""
        return self._tally.prediction(plan, self._measured_step_ns.get(plan.plan_id, 0))

    def failed(self, error: BaseException) -> None:
        """Reports an error that ends the program."""
        first = (str(error).strip().splitlines() or [""])[0][:300]
        text = f"{type(error).__name__}: {first}" if first else type(error).__name__
        self.agent.plan_state(0, abi.JOB_FAILED, text)
