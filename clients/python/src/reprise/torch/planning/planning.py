# SPDX-License-Identifier: Apache-2.0
"""From a captured step to the plan that the next steps run under.

    planning.captured(step)       # sends the step graph, unless ranks decide (coordination.py)
    planning.ask()                # between steps: waits for the first plan, takes newer ones
    job.plans                     # what has come of it

No call to the server is made inside a step. What is refused is said once, and training goes on.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from reprise.agent.agent import PlanReply
from reprise.agent.received import InfeasibleBudget
from reprise.base.budget import Budget
from reprise.base.errors import RepriseError
from reprise.base.units import format_bytes
from reprise.plan import Plan
from reprise.plan.wish import too_dear
from reprise.torch.capture.captured import CapturedStep
from reprise.torch.capture.step_graph import CapturedGraph
from reprise.torch.estimation.sketch import Sketch
from reprise.torch.executor.protocol import installed
from reprise.torch.internals.guard import told
from reprise.torch.job.job import EagerJob, Plans
from reprise.torch.ladder.host_terms import HostTerms, offered
from reprise.torch.ladder.ladder import Ladder
from reprise.torch.ladder.rung import Key, Rung, evened
from reprise.torch.planning import request
from reprise.torch.planning.graphs import Graphs, Made
from reprise.torch.planning.notes import Notes
from reprise.torch.planning.op_times import OpTimes
from reprise.torch.planning.page import Page
from reprise.torch.planning.together import Together
from reprise.torch.policy import events
from reprise.torch.policy.policy import Action
from reprise.torch.policy.state import Stage
from reprise.torch.tape.carried import own_frees
from reprise.torch.tape.compile_copies import uses_host
from reprise.torch.tape.executor import TapeExecutor, TapePlan

# Share of what the last plan takes within which the next one is asked for after memory ran out.
TIGHTER = 0.9


class Planning:
    """Asks for the plans of one job, and installs them."""

    def __init__(
        self,
        job: EagerJob,
        executor: TapeExecutor,
        op_times: OpTimes,
        *,
        page: Page,
        together: Together,
        wait_s: float,
    ) -> None:
        """`wait_s`: how long the first plan is waited for."""
        self._job = job
        self._executor = executor
        self._graphs = Graphs(job, op_times)
        self.notes = Notes(job.model, job.device)
        self._page = page
        self._together = together
        self.wait_s = wait_s
        self._announced: dict[int, tuple[str, int]] = {}  # by rung
        self._share = request.Share()
        job.carry_out({Action.FORGET_STEPS: lambda _: self._forget_steps()})

    @property
    def ladder(self) -> Ladder:
        """The plans by input size."""
        return self._job.plans.ladder

    @property
    def _alone(self) -> bool:
        return not self._job.state.several_ranks

    def _forget_steps(self) -> None:
        """Forgets all rungs and figures, because the steps are others than those whose budget was
        refused."""
        self._job.plans = Plans(Ladder(next_number=self.ladder.next_number))
        self._job.measured.begin_again()
        self._share = request.Share()

    # ---- Graphs -------------------------------------------------------------------

    def captured(self, step: CapturedStep) -> Made | None:
        """Makes a rung of a step that was captured, and asks for its plan. Where several ranks
        decide together, returns what they need of it instead."""
        self._together.captured()
        key = self._job.step.key
        stale = self.ladder.is_stale(key)
        before = self.ladder.captured
        known = {rung.graph.structure for rung in before}
        several = any(rung.key == key for rung in before)
        made = self._graphs.made(step, key, is_stale=stale, several=several)
        graph = evened(made.graph)
        uneven = graph is not made.graph
        made = made._replace(graph=graph)
        if not self._alone:
            return made
        first = not known and not graph.varies
        if first and self._job.measured.like(key).differ:
            self.ladder.expect_others()
        # Under a plan of another program it would leave it at once. Where the last one, of another
        # input, went as it came, as with sequences of many lengths, this one will, too.
        own = (rung for rung in before if not rung.fitted)
        last = max(own, key=lambda rung: rung.number, default=None)
        comes_back = last is not None and (last.matched or last.key == key)
        awaited = stale or (comes_back and graph.structure not in known)
        self.plan(key, made, awaited=awaited, uneven=uneven)
        return None

    def plan(self, key: Key, made: Made, *, awaited: bool = False, uneven: bool = False) -> None:
        """Makes a captured step a rung, and asks for its plan. `awaited`: its next step waits for
        that plan; `uneven`: its micro-batches have several sizes."""
        job = self._job
        rung = self.ladder.add(key, *made, uneven)
        if rung is None:
            if job.stage is Stage.CAPTURE:
                self.stop(next(r.refused for r in self.ladder.rungs if r.key == key))
            return
        rung.awaited = awaited
        if rung.varies:
            rung.spare_bytes = request.spared(rung.graph, job.measured.like(key).peak_bytes)
        job.happened(events.Fact.GRAPH_SENT)
        self.submit(rung)
        ahead = self.ladder.ahead(rung)
        if ahead is not None:
            self.submit(self.ladder.fit(rung, *ahead))

    def measure_costs(self, graph: CapturedGraph) -> None:
        """Measures what the tape costs here for ops as large as those of a step, and copies to host
        memory, once."""
        self._executor.capabilities(graph)
        self.host_offer(graph)

    def host_offer(self, graph: CapturedGraph) -> HostTerms | None:
        """Returns what this rank may send to host memory of a step; None if it has none."""
        executor = self._executor
        try:
            return offered(executor, graph) if executor.uses_host else None
        except RepriseError as error:
            self.no_host(str(error))
            return None

    def no_host(self, why: str) -> None:
        """Uses no host memory from now on."""
        if self._executor.uses_host:
            self._executor.no_host()
            self._job.say(f"{why}. Plans use no host memory")

    def submit(self, rung: Rung) -> None:
        """Asks for a plan of a captured step, or of one that nobody has seen."""
        job, message = self._job, rung.message()
        budget, largest = request.own_budget(job, self.notes), job.measured.largest_peak_bytes
        if self._alone:
            budget = self._share.within(
                budget, rung.number, message, largest, in_bytes=rung.spare_bytes > 0
            )
        elif rung.spare_bytes and budget.is_share:
            # Ranks have one share for each size, that of the rank with most static memory.
            static, peak = message["static_bytes"], message["measured_peak_bytes"]
            own = budget.of_step(static + rung.beside_bytes, peak + rung.beside_bytes)
            budget = Budget(own or 0)
        self.send(rung, message, budget)

    def sketched(self, sketch: Sketch, spare_bytes: int, missing_bytes: int = 0) -> Rung | str:
        """Asks for a plan of a step of which only the shapes are known and that is about to run,
        which holds back so many bytes, and waits for it. `missing_bytes`: of its static memory,
        what is not alive yet. Returns its rung, which has no plan where the step fits without; or
        why there is no plan."""
        job, graph = self._job, sketch.graph
        rung = self.ladder.sketched(job.step.key, graph)
        rung.spare_bytes = spare_bytes
        budget = request.own_budget(job, self.notes)
        if budget.is_share:
            # Of the smallest step that it may be: the budget does not shrink later.
            static = sketch.least_static_bytes - missing_bytes
            budget = Budget(budget.of_step(static, sketch.least_peak_bytes) or 0)
        self.send(rung, graph.message(), budget)
        found = self.wait_for(rung)
        if isinstance(found, TapePlan) and found.tape and found.tape.program.replays:
            self.apply(rung, found)
            return rung
        self.ladder.rungs.remove(rung)
        return rung if isinstance(found, TapePlan) else found or rung

    def wait_for(self, rung: Rung, budget_bytes: int = 0) -> TapePlan | str:
        """Waits for the plan of a rung that has none, and returns it; or why there is none.
        `budget_bytes`: what its steps may take, if not the budget that was asked for."""
        reply = self.reply(rung, self.wait_s)
        plan = reply.plan
        if plan is None:
            return rung.refused or reply.why or "no plan arrived in time"
        if not plan.feasible or too_dear(plan, self._job.options.max_overhead):
            return plan.sentence
        rung.answered = plan.plan_number
        return self.prepared(rung, replace(plan, budget_bytes=budget_bytes or plan.budget_bytes))

    def send(
        self, rung: Rung, message: dict[str, Any], budget: Budget, *, more_bytes: int = 0
    ) -> bool:
        """Asks for a plan of a graph within a budget; returns whether the request was accepted.
        With `more_bytes`: for one in the place of the rung's plan, which needs so much more than
        it says."""
        if self._alone:
            budget = request.within_device(self._job, message, budget)
        terms = None
        # A plan from shapes alone runs while its step is captured, where nothing may leave.
        if self._executor.uses_host and not rung.sketch and budget != request.LEAST:
            terms = self.host_offer(rung.graph) if self._alone else rung.terms
        why = request.sent(self._job, self._executor, rung, message, budget, terms, more_bytes)
        if not why:
            rung.answered, rung.refused = 0, ""
        elif rung.tape is None:
            rung.refused = f"training without a plan: {why}"
            self._nothing_left()
        return not why

    def needs_more(self, rung: Rung, more_bytes: int) -> bool:
        """Asks the server for a plan in the place of that of a rung, which needs `more_bytes` more
        than it says. Returns whether the request was accepted."""
        assert rung.plan is not None
        budget = Budget(rung.plan.budget_bytes)
        return self.send(rung, rung.message(), budget, more_bytes=more_bytes)

    def tighten(self) -> None:
        """Asks for a plan in less memory, because memory ran out under that of the last step. Its
        next step waits for it."""
        rung = self._job.plans.rung
        if not self._alone:
            # No rank decides alone; the next start requests less memory.
            self.notes.ran_out()
        elif rung is not None and rung.plan is not None:
            plan = rung.plan
            tighter = int(min(plan.budget_bytes, plan.peak_bytes) * TIGHTER)
            self._share.stays(rung.number)
            rung.awaited = self.needs_more(rung, plan.budget_bytes - tighter)

    # ---- Plans --------------------------------------------------------------------

    def ask(self) -> None:
        """Takes plans, between steps. Waits for the first one, and for one that the step which
        begins cannot do without if it is to keep its budget; takes any other when it is there."""
        self._together.begins()
        job = self._job
        if not self._alone:
            # Met the others when the last step ended; what is from shapes is this rank's own.
            for rung in [r for r in self.ladder.rungs if r.sketch and r.awaited]:
                self.take_awaited(rung)
            return
        if job.stage is Stage.WAITING and self._together.holds():
            return
        rungs = self.ladder.rungs
        needed = self.ladder.lacks(job.step.key)
        for rung in [r for r in rungs if r.open]:
            first = job.stage is Stage.WAITING and rung.plan is None
            waits = first or rung.awaited or (rung in needed and not rung.late)
            reply = self._await(rung) if waits else self._ask(rung, waits=False)
            if reply.kind == "pending" and waits:
                why = reply.why or f"no plan after {self.wait_s:.0f} s"
                goes_on = "without a plan" if rung.plan is None else "under the previous one"
                job.happened(
                    events.PlanIsLate(f"{why}; training continues {goes_on} until one arrives")
                )
                job.say(job.why)
                rung.late = True
            rung.awaited = False
        waited = job.stage is Stage.WAITING
        if len(rungs) != 1 or rungs[0].tape is None:
            self._nothing_left()
        if waited and job.stage is Stage.PLAIN and job.options.on_infeasible == "raise":
            smallest = job.measured.smallest_budget or None
            raise told(InfeasibleBudget(job.why, smallest, job.plans.refused))

    def _await(self, rung: Rung) -> PlanReply:
        """Waits for a plan; where the answer leads to another request, for the answer to that."""
        asked = rung.request_id
        reply = self._ask(rung, waits=True)
        return reply if rung.request_id == asked else self._ask(rung, waits=True)

    def take_awaited(self, rung: Rung) -> None:
        """Waits for the next plan of a rung whose step cannot do without, and takes it."""
        self._ask(rung, waits=True)
        rung.awaited = False

    def _ask(self, rung: Rung, waits: bool) -> PlanReply:
        """Takes what there is for one rung, and returns it: a plan, a refusal, or "pending"."""
        reply = self.reply(rung, self.wait_s if waits else 0)
        self.take(rung, reply)
        return reply

    def reply(self, rung: Rung, wait_s: float = 0) -> PlanReply:
        """Returns what the server has for a rung that this process asked for, after `wait_s`
        seconds at most."""
        agent = self._job.agent
        if rung.request_id is None:
            return PlanReply("refused", why=rung.refused or agent.why)
        try:
            if wait_s:
                return agent.wait_plan(rung.request_id, rung.answered, wait_s)
            return agent.poll_plan(rung.request_id, rung.answered)
        except RepriseError as error:
            return PlanReply("refused", why=f"training without a plan: {error}")

    def take(self, rung: Rung, reply: PlanReply) -> None:
        """Installs a plan, or notes why none will come."""
        job = self._job
        if reply.kind == "plan" and reply.plan is not None:
            rung.answered = reply.plan.plan_number
            self._another_budget(rung, reply.plan)
            self._install(rung, reply.plan)
        elif reply.kind == "refused" and rung.plan is None:
            self._refused(rung, reply)
        elif reply.kind == "refused":
            if reply.smallest_budget and self._raises_share(rung):
                return
            rung.final = True
            if rung.awaited and not rung.exceeds:
                job.say(f"{reply.why.rstrip('.')}. The previous plan stays")
        elif reply.kind == "inert" and rung.plan is None:
            rung.refused = f"training without a plan: {reply.why or job.agent.why}"

    def _refused(self, rung: Rung, reply: PlanReply) -> None:
        """Acts on a refusal of the first plan of a rung."""
        job, smallest = self._job, reply.smallest_budget
        if smallest and self._raises(rung):
            return
        job.measured.smallest_budget = smallest
        rung.refused = reply.why or "the server refused to plan this step"
        if smallest:
            job.happened(events.Fact.BUDGET_REFUSED, rung.graph.measured_peak_bytes)
            job.record.answered(reply.why)
            rung.refused += request.unsupported(rung.graph.step)
            if job.host is not None or job.options.on_infeasible == "nearest":
                if request.asks_for_least(job, rung, smallest, alone=self._alone):
                    self.send(rung, rung.message(), request.LEAST)
                return
        if job.stage is not Stage.WAITING and not rung.sketch and self._alone:
            job.say(rung.refused)

    def _raises(self, rung: Rung) -> bool:
        """Asks again for a plan of a step that was refused: with less of what is held back because
        the data decides sizes, or within a share of its own where it was one of smaller steps."""
        return (self._alone and self.holds_less(rung)) or self._raises_share(rung)

    def holds_less(self, rung: Rung) -> bool:
        """Asks again for a plan of a captured step that was refused, with less of what is held back
        because the data decides sizes; returns whether anything was. Of several ranks only the one
        that asks calls this."""
        if not rung.spare_bytes or rung.sketch or rung.asked_least:
            return False
        rung.spare_bytes = request.halved(rung.graph, rung.spare_bytes)
        self.submit(rung)
        return True

    def came(self, key: Key) -> None:
        """Notes that a step with this input exceeded the budget, because none of the plans is for
        one as large. If such a step was foreseen and refused, its plan is asked for again."""
        for rung in self.ladder.captured:
            foreseen = rung.foreseen is not None and rung.refused and rung.covers(key)
            if foreseen and self._raises_share(rung, has_come=True):
                return

    def _raises_share(self, rung: Rung, *, has_come: bool = False) -> bool:
        """Asks again within a share of its own for a plan of a step that was refused one of smaller
        steps, unless it is only foreseen."""
        comes = has_come or not rung.fitted
        why = self._share.raised(rung.number) if comes and self._alone else ""
        if why:
            self._job.say(why)
            # The plans of smaller steps, too, or their steps would seem to exceed a budget that is
            # not the program's any more. One that leaves room for what steps need keeps it.
            for other in self.ladder.captured:
                plan = None if other.tape is None else other.plan
                if other is rung or (plan is not None and plan.replan == 0):
                    self.submit(other)
        return bool(why)

    def _another_budget(self, rung: Rung, plan: Plan) -> None:
        """Keeps the budget of a plan that nobody here asked for: it was sent from the page. Later
        plans are asked for within it."""
        old = rung.plan
        if old is None or plan.replan > 0 or not plan.feasible:
            return
        if plan.budget in (old.budget, rung.asked):
            return
        self._job.budget = Budget(plan.budget or plan.budget_bytes)
        self._job.say(f"a budget of {self._job.budget} was sent to the job")

    def _nothing_left(self) -> None:
        """Stops planning if no rung has a plan, and none will come."""
        rungs = self.ladder.captured
        if self._job.stage in (Stage.WAITING, Stage.PLANNED) and rungs:
            for rung in rungs:
                if rung.tape is not None or rung.open:
                    return
            if not self._stays(rungs[-1]):
                self.stop(rungs[-1].refused)

    def _stays(self, refused: Rung) -> bool:
        """Keeps the plan from shapes of a step that was captured under it and is refused a plan of
        its own, if its steps have kept the budget; returns whether they have."""
        job, key = self._job, refused.key
        sketch = self.ladder.sketch_for(key) if self._alone else None
        if sketch is None or sketch.planned is None:
            return False
        peak = job.measured.under(sketch.number).covered_peak_bytes
        if not 0 < peak <= sketch.planned.plan.budget_bytes:
            return False
        job.say(
            f"{refused.refused.rstrip('.')}. The plan from shapes stays: its steps peaked at "
            f"{format_bytes(peak)}"
        )
        self.ladder.keep(sketch)
        self.apply(sketch, sketch.planned)
        return True

    def _install(self, rung: Rung, plan: Plan) -> None:
        dear = too_dear(plan, self._job.options.max_overhead)
        if not plan.feasible or dear:
            if not dear and self._raises(rung):
                return
            why = dear or plan.sentence or "no plan fits the budget"
            self._job.plans.refused, rung.refused = plan, why
            self._job.happened(events.Fact.BUDGET_REFUSED, rung.graph.measured_peak_bytes)
            self._job.record.answered(rung.refused)
            return
        found = self.prepared(rung, plan)
        first_least = rung.asked_least and rung.plan is None
        if first_least and request.least_is_too_large(self._job, rung, plan):
            self._job.record.refused(plan, rung.refused)
            return
        if isinstance(found, str):
            self._job.record.refused(plan, found)
            if self._executor.uses_host and uses_host(plan):
                self.no_host(found)
                self.submit(rung)
                return
            if rung.tape is None:
                rung.refused = f"training without a plan: {found}"
            return
        self.apply(rung, found)

    def prepared(self, rung: Rung, plan: Plan) -> TapePlan | str:
        """Returns a plan as this rank runs it, with its peak here; or why it cannot run."""
        here = replace(plan, peak_bytes=plan.peak_bytes - rung.beside_bytes)
        if not self._alone or rung.held_bytes:
            here = replace(here, schedule=tuple(own_frees(rung.graph, plan.schedule)))
        return installed(self._executor, rung.graph_of_plan(), here)

    def apply(self, rung: Rung, planned: TapePlan) -> None:
        """Makes the next steps run under the plan."""
        job, plan = self._job, planned.plan
        if not rung.sketch:
            self.ladder.rungs = self.ladder.captured  # what is known from shapes only goes
        rung.planned = planned
        job.happened(events.Fact.PLAN_APPLIED, True)
        job.measured.new_plan(rung.number)
        self.announce(rung)
        if not job.options.verify_every:
            job.record.unchecked(plan, "verify_every is 0")
        if plan.sentence and not rung.sketch and not rung.exceeds:
            job.say(job.record.prediction(plan))
            if plan.link is not None:
                job.say(planned.host_sentence())

    def announce(self, rung: Rung) -> None:
        """Says what steps under its plan are expected to take, where that is news."""
        planned, later_ns = rung.planned, self._job.remembering_ns
        if planned is None or planned.tape is None:
            return
        if self._announced.get(rung.number) == (planned.plan.plan_id, later_ns):
            return
        self._announced[rung.number] = planned.plan.plan_id, later_ns
        own_ns = self._executor.own_ns(planned, later_ns)
        rung.own_ns = own_ns + self._executor.replays_ns(planned)
        self._job.record.applied(planned.plan, own_ns, rung.graph.measured_step_ns)

    def stopped(self, why: str = "") -> None:
        """Removes all plans, because no step runs under one any more. Without a reason: the program
        wants none."""
        self._job.withdraw(self._job.plans.handles, why)
        for rung in self.ladder.rungs:
            rung.remove()

    def drop(self, why: str) -> None:
        """Removes all plans and stops planning: they are not trusted, or the program does not keep
        to them."""
        self.stopped(why)
        self._job.plans.rung = None
        self.stop(why)

    def recapture(self, why: str) -> None:
        """Captures and plans the step again, because what was known of its ops was not so."""
        if not self._alone:
            self.drop(why)
            return
        self.stopped(why)
        self._job.say(why)
        self._job.plans.ladder, self._job.plans.rung = Ladder(), None
        self._job.happened(events.Fact.OPS_MISJUDGED)

    def stop(self, why: str) -> None:
        """Ends planning, and says why. Only another budget begins it again."""
        captured = self.ladder.captured
        refused = [rung for rung in captured if rung.request_id is not None]
        if refused and all(rung.tape is None for rung in captured):
            self._page.asked(refused[-1].request_id, refused[-1].answered)
        for rung in self.ladder.rungs:
            rung.remove()
        plans = self._job.plans
        if plans.rung is not None and plans.rung.sketch:
            plans.rung = None
        self.ladder.rungs = captured
        if self._job.host is not None and request.ON_THE_HOST not in why:
            why = f"{why}. {request.ON_THE_HOST}"
        self._job.record.without(why)
        self._job.say(why)
        self._job.happened(events.PlanningEnded(why), False)
