# SPDX-License-Identifier: Apache-2.0
"""The ladder of ranks that run the same ops: the same rungs on each, each with one plan.

    coordinator = RankCoordinator(job, planning)
    coordinator.due                      # are they met when this step ends?
    coordinator.meet()                   # it has ended: meets the other ranks where it must
    coordinator.wants()                  # is the step that begins captured on this rank?
    coordinator.captured(made)           # what this rank has seen of it

The first meeting finds out who trains the model, at the end of the first step or, where not all
come, of the second. From then on the ranks decide together.

Ranks meet when an optimizer has ended a step, at points that all of them compute from what they
have in common: until the first plan, after a capture of all, while a plan is under way, 1, 2, 4 and
8 steps after a new one, and every MEET_EVERY steps. No meeting is within a forward. What a rank has
to say is in one message, so most meetings are one collective, and nobody waits for a server but the
rank that asked it.

The first capture is of the same step on all ranks, whatever their inputs: structures leave sizes
out. Later a rank that sees an input which its ladder does not cover captures that step by itself,
and says so at the next meeting. The rung is for the largest input that any rank has captured; a
rank that has not captured it knows its ops from another size of the same program. Where one knows
no step of these ops, all capture the next step.

The rank with the largest input asks for the plan, and all run it or none does. It asks for what all
need: with the static memory of the rank that has most, with shortcuts that all have; and when it
knows two sizes of the program, for a rung of a larger one (ladder.py). A plan that peaks above the
budget on any rank is asked for again, with that much less.

Which rung a step runs under every rank decides alone, from its own input: a plan repeats no
collective and changes no order of gradients, so ranks under different plans never wait for each
other. Its schedule names ops, which are the same on all; what is freed when, each rank knows.

Ranks that run other ops (the stages of a pipeline, optimizers that are divided among the ranks) are
other classes: after the first capture, the ranks of one class go on among themselves. A rank that
is the only one of its class is planned by itself, and so is each of those that miss one of theirs.
A rank that stops says so at the next meeting, and those of its class stop.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from reprise.agent.agent import PlanReply
from reprise.base.errors import RepriseError
from reprise.torch.job.job import EagerJob
from reprise.torch.ladder.host_terms import HostTerms, agreed
from reprise.torch.ladder.ladder import MAX_RUNGS
from reprise.torch.ladder.ranks import PLAN, Missing, Ranks, in_pipeline
from reprise.torch.ladder.rung import Key, Rung
from reprise.torch.planning import request
from reprise.torch.planning.graphs import Made
from reprise.torch.planning.planning import Planning
from reprise.torch.policy.events import Fact, RanksLost
from reprise.torch.policy.policy import Action
from reprise.torch.policy.state import Stage
from reprise.torch.tape.carried import storages_of
from reprise.torch.tape.compile_copies import uses_host
from reprise.torch.tape.executor import TapePlan

MEETINGS = 2  # at the most, for the ranks to find each other
MEET_EVERY = 16
# A rank that waits for a plan meets the others this often, in seconds, before their patience ends.
WAIT_S = 2.0
# The ranks stop trying after this many captures in which they did not see the same.
LOST_AT_MOST = 4


@dataclass(frozen=True, slots=True)
class _Word:
    """What a rank has to say at a meeting."""

    out: str  # why it does not take part any more; empty: it does
    ready: bool  # for the first capture
    tighter: float
    over: dict[int, int]  # by rung: what its steps need beyond the plan, if above the budget
    run: str  # of the server's, which ranks may share
    structure: str = ""  # of the step that was captured since the last meeting; empty: none was
    key: Key | None = None
    replies: dict[int, PlanReply] = field(default_factory=dict)  # by rung, of those it asked for


@dataclass(frozen=True, slots=True)
class _Known:
    """A step that this rank has captured."""

    key: Key
    size: int  # elements of its input here
    made: Made


@dataclass(frozen=True, slots=True)
class _Share:
    """What a rank has to say of a step of which all are to have a plan."""

    idle_bytes: int
    spare_bytes: int  # what it may need beyond its own peak, where the data decides sizes; else 0
    peak_bytes: int
    shortcuts: frozenset[int]
    host: HostTerms | None
    is_planned: bool  # another size of it is, on this rank: its shortcuts stay as they are


class RankCoordinator:
    """This rank among the others. What is not local is the same on all of them."""

    _ranks: Ranks  # once they are met

    def __init__(self, job: EagerJob, planning: Planning) -> None:
        self._job = job
        self._planning = planning
        self._left = 0  # meetings, for the ranks to find each other
        self._alone = True  # no other rank is known, or this one goes on without them
        self._together = False  # all ranks capture the step that begins
        self._awaited_until = 0
        self._next = 0  # the step that begins, or will
        self._installed = 0  # the first step under the newest plan
        self._lost = 0
        self._asks: dict[int, int] = {}  # by rung: the rank that asks for its plans
        self._awaited: set[int] = set()  # rungs whose next plan is under way
        self._fresh: _Known | None = None  # local: captured since the last meeting
        job.carry_out({Action.FIND_RANKS: lambda _: self._begin()})

    # ---- The first meeting ----------------------------------------------------------

    def _begin(self) -> None:
        """Has the ranks find each other when the step under way ends."""
        self._left = 0 if in_pipeline() else MEETINGS

    @property
    def unknown(self) -> bool:
        """Whether the other ranks are still to be met for the first time."""
        return self._left > 0

    def _find(self) -> None:
        self._left -= 1
        try:
            ranks = Ranks.here()
        except RepriseError as error:
            if not isinstance(error, Missing) or not self._left:
                self._left = 0
                self._job.say(f"{error}; this rank is planned by itself")
            return
        self._left = 0
        if ranks is not None:
            self._ranks, self._alone = ranks, False
            self._job.happened(Fact.RANKS_MET)

    # ---- Local ----------------------------------------------------------------------

    def captured(self, made: Made) -> None:
        """Keeps what this rank has seen of a step until the next meeting. What may take long is
        done now: nobody waits for it at a meeting."""
        self._planning.measure_costs(made.graph)
        key = self._job.step.key
        self._fresh = _Known(key, key.size, made)

    def wants(self) -> bool:
        """Returns whether this rank captures the step that begins: one that all capture, or the
        first one since the last meeting with an input that no rung of its ladder covers."""
        job, ladder = self._job, self._planning.ladder
        if self._together:
            return True
        may = bool(ladder.captured) and ladder.room and self._fresh is None and not self._alone
        may = may and self._lost < LOST_AT_MOST and job.stage is Stage.PLANNED
        return may and ladder.wants(job.step.key)

    def _known(self, structure: str) -> _Known | None:
        """Returns a step of these ops that this rank has captured: the newest one, or the largest
        that has a rung. None if there is none."""
        if self._fresh is not None and self._fresh.made.graph.structure == structure:
            return self._fresh
        rungs = self._planning.ladder.captured
        same = [r for r in rungs if not r.fitted and r.graph.structure == structure]
        if not same:
            return None
        rung = max(same, key=lambda r: r.own_size)
        made = Made(rung.graph, rung.left_out, rung.leaks)
        return _Known(rung.key, rung.own_size, made)

    def _replies(self, wait_s: float = 0) -> dict[int, PlanReply]:
        """For the rungs this rank asked for; waits for those that are under way."""
        planning, found = self._planning, {}
        for rung in [r for r in planning.ladder.captured if self._asks_for(r)]:
            reply = planning.reply(rung, wait_s if rung.number in self._awaited else 0)
            fits_not = reply.plan is not None and not reply.plan.feasible
            is_refused = fits_not or (rung.plan is None and bool(reply.smallest_budget))
            if is_refused and planning.holds_less(rung):
                reply = PlanReply("pending")
            if reply.plan is not None and rung.terms is not None:
                schedule = rung.terms.carried(rung.graph, reply.plan.schedule)
                reply = replace(reply, plan=replace(reply.plan, schedule=schedule))
            found[rung.number] = reply
        return found

    def _asks_for(self, rung: Rung) -> bool:
        return self._asks.get(rung.number) == self._ranks.place

    def _over_budget(self) -> dict[int, int]:
        """By rung: how far above its plan the steps were on this rank that exceeded the budget, or
        will be one day."""
        found = {}
        for rung in self._planning.ladder.captured:
            if rung.tape is not None and rung.plan is not None:
                peak = request.needed(self._job, rung)
                if peak > rung.plan.budget_bytes:
                    found[rung.number] = peak - rung.plan.peak_bytes
        return found

    # ---- Common ---------------------------------------------------------------------

    def meet(self) -> None:
        """Meets the other ranks at the end of a step, if it is time to."""
        if self._alone and not self._left:
            return
        if self.unknown:
            self._find()
        try:
            if self.due and not self.unknown:
                self._meet()
        except RepriseError as error:
            self._go_alone(f"{error}; this rank is planned by itself")

    @property
    def due(self) -> bool:
        """Whether the ranks meet at the end of this step: the same on all that still take part."""
        if self._left or self._alone:
            return self._left > 0
        self._next = self._job.step.number + 1
        awaits = bool(self._awaited) and self._next <= self._awaited_until
        begins = not self._planning.ladder.captured or self._together
        # How far its steps keep to a plan is seen soon after it came, if ever.
        under = self._next - self._installed
        young = 0 < under < MEET_EVERY and not under & (under - 1)
        return begins or awaits or young or self._next % MEET_EVERY == 0

    def _meet(self) -> None:
        job, ladder, fresh = self._job, self._planning.ladder, self._fresh
        words: list[_Word] = self._ranks.meet(
            _Word(
                out=job.why if job.stage is Stage.PLAIN else "",
                ready=job.stage is Stage.CAPTURE,
                tighter=self._planning.notes.tighter,
                over=self._over_budget(),
                run=job.agent.run_id,
                structure=fresh.made.graph.structure if fresh else "",
                key=fresh.key if fresh else None,
                replies=self._replies(),
            )
        )
        outs = [word.out for word in words if word.out]
        if outs:
            self._end(outs[0])
        elif self._together:
            self._together = False
            self._settle(words)
        else:
            replies = {n: r for word in words for n, r in word.replies.items()}
            self._hold(words)  # first: what was measured was not under the plans that come now
            if any(reply.kind != "pending" for reply in replies.values()):
                self._install(replies)
            if not self._alone and any(word.structure for word in words):
                self._grow(words)
            elif not ladder.captured and not self._alone:
                self._together = all(word.ready for word in words)
        self._fresh = None

    def _end(self, why: str) -> None:
        self._alone = True
        self._planning.drop(why)

    def _go_alone(self, why: str = "") -> None:
        """Plans for this rank alone from now on: the step that it has captured, if it is not
        planned yet, and what it has asked for. Others without a plan are captured again where they
        are needed."""
        self._alone, self._together, fresh = True, False, self._fresh
        if why:
            self._job.say(why)
        ladder = self._planning.ladder
        ladder.rungs = [r for r in ladder.rungs if r.tape is not None or self._asks_for(r)]
        self._job.happened(RanksLost(has_rungs=bool(ladder.captured)))
        if fresh is not None and not ladder.captured:
            self._planning.plan(fresh.key, fresh.made)

    def _settle(self, words: list[_Word]) -> None:
        """Ranks that have captured the same step share a plan; else it is forgotten."""
        fresh, ladder = self._fresh, self._planning.ladder
        structures = [word.structure for word in words]
        if fresh is not None and "" not in structures:
            same = [n for n, other in enumerate(structures) if other == fresh.made.graph.structure]
            if len(same) == len(words):
                self._grow(words)
                return
            if not ladder.captured:
                self._part(words, same)
                return
        self._lost += 1
        why = "the ranks did not capture the same step"
        if ladder.captured:
            self._job.say(f"a different kind of step is not planned: {why}")
        elif self._lost >= LOST_AT_MOST:
            self._go_alone(f"{why}: each of them is planned by itself")

    def _part(self, words: list[_Word], same: list[int]) -> None:
        """Goes on with the ranks that run the same ops, or alone where there is none."""
        if len(same) == 1:
            self._go_alone()
            return
        self._ranks = self._ranks.among([self._ranks.members[n] for n in same])
        self._grow([words[n] for n in same])

    def _grow(self, words: list[_Word]) -> None:
        """A rung for all, of the largest step that a rank has captured and that none is of."""
        ladder = self._planning.ladder
        new = [w if w.key and not ladder.has(w.key, w.structure) else None for w in words]
        sizes = [word.key.size if word and word.key else -1 for word in new]
        owner = sizes.index(max(sizes))
        word = new[owner]
        if word is None or word.key is None:
            ladder.wasted()
            return
        known = self._known(word.structure)
        said = None
        if known is not None:
            said = self._share(known)
        shares: list[_Share | None] = self._ranks.meet(said, PLAN)
        every = [share for share in shares if share is not None]
        shortcuts = frozenset.intersection(*(share.shortcuts for share in every))
        fit = all(share.shortcuts == shortcuts or not share.is_planned for share in every)
        if known is None or len(every) < len(shares) or not fit:
            self._lost += 1
            self._together = self._lost < LOST_AT_MOST
            return
        known.made.graph.only_shortcuts(shortcuts)
        rung = ladder.add(word.key, *known.made, own_size=known.size)
        assert rung is not None  # none is of this step
        own = known.made.graph
        rung.terms = agreed([share.host for share in every])
        rung.beside_bytes = max(share.idle_bytes for share in every) - own.idle_bytes
        if any(share.spare_bytes for share in every):
            most = max(share.peak_bytes + share.spare_bytes for share in every)
            rung.spare_bytes = max(0, most - own.measured_peak_bytes)
        self._submit(rung, owner, min(word.tighter for word in words))

    def _share(self, known: _Known) -> _Share:
        """Returns what this rank has to say of a step that it knows."""
        graph, fresh = known.made.graph, known is self._fresh
        spare, peak = 0, graph.measured_peak_bytes
        if graph.varies:
            spare = request.spared(graph, self._job.measured.like(known.key).peak_bytes)
        host = self._planning.host_offer(graph)
        return _Share(graph.idle_bytes, spare, peak, graph.shortcuts, host, is_planned=not fresh)

    def _submit(self, rung: Rung, owner: int, tighter: float) -> None:
        """Asks for the plan of a rung that all ranks have, and waits for it: no other is for it."""
        planning = self._planning
        self._asked(rung, owner)
        if self._asks_for(rung):
            planning.notes.tighter = tighter
            planning.submit(rung)
        self._fit_ahead(rung, owner)
        self._job.happened(Fact.GRAPH_SENT)
        self._await()

    def _fit_ahead(self, rung: Rung, owner: int) -> None:
        """A rung for a larger input than any so far, where its program is known in two sizes."""
        planning, ladder = self._planning, self._planning.ladder
        if len(ladder.captured) >= MAX_RUNGS or sum(not r.fitted for r in ladder.captured) < 2:
            return
        ahead = ladder.ahead(rung) if self._asks_for(rung) else None
        said = None
        if ahead is not None:
            size, message = ahead
            graph = ladder.largest(rung).graph
            said = size, [] if rung.terms is None else rung.terms.sizes(graph, message)
        found = next((one for one in self._ranks.meet(said, PLAN) if one is not None), None)
        if found is None:
            return
        made = ladder.fit(rung, found[0], None if ahead is None else ahead[1])
        if rung.terms is not None:
            made.sizes = dict(zip(storages_of(made.graph, rung.terms.names), found[1], strict=True))
        self._asked(made, owner)
        if ahead is not None:
            planning.submit(made)

    def _asked(self, rung: Rung, owner: int) -> None:
        """One rank asks the server, all wait at their meetings."""
        self._asks[rung.number] = owner
        self._awaited.add(rung.number)
        self._awaited_until = self._next + MEET_EVERY

    def _await(self) -> None:
        """What is under way. Also what is asked for instead, where a plan leaves too little."""
        left, why = self._planning.wait_s, "no plan arrived in time"
        while self._awaited and not self._alone:
            found = self._replies(min(left, WAIT_S))
            left = max(0.0, left - WAIT_S)
            every = self._ranks.meet((found, bool(found) and left > 0), PLAN)
            replies = {n: r for said, _ in every for n, r in said.items()}
            if any(reply.kind != "pending" for reply in replies.values()):
                self._install(replies)
            elif not any(waits for _, waits in every):
                why = next((r.why for r in replies.values() if r.why), why)
                break
        if not self._alone and all(r.tape is None for r in self._planning.ladder.captured):
            self._end(f"training without a plan: {why}")

    def _install(self, replies: dict[int, PlanReply]) -> None:
        """Plans that have come, on all ranks or on none."""
        planning = self._planning
        rungs = [rung for rung in planning.ladder.captured if rung.number in replies]
        made: dict[int, TapePlan | str] = {}
        for rung in rungs:
            reply = replies[rung.number]
            if reply.plan is not None:
                rung.answered = reply.plan.plan_number
            if reply.kind == "plan" and reply.plan is not None and reply.plan.feasible:
                own = reply.plan
                if rung.terms is not None:
                    schedule = rung.terms.arrived(rung.graph, own.schedule)
                    own = replace(own, schedule=schedule)
                made[rung.number] = planning.prepared(rung, own)
            elif reply.kind != "pending":
                planning.take(rung, reply)
            if reply.kind != "pending":
                self._awaited.discard(rung.number)
        said = {n: found if isinstance(found, str) else "" for n, found in made.items()}
        everywhere = self._ranks.meet(said, PLAN) if said else []
        for rung in rungs:
            plan, found = replies[rung.number].plan, made.get(rung.number)
            if plan is None or found is None:
                continue
            whys = [(n, said[rung.number]) for n, said in enumerate(everywhere)]
            members = self._ranks.members
            others = [f"rank {members[n]} cannot run it ({why})" for n, why in whys if why]
            if others or isinstance(found, str):
                self._job.record.refused(plan, others[0])
                if uses_host(plan):
                    self._without_host(rung, others[0])
                    continue
                rung.refused = f"training without a plan: {others[0]}"
                self._asks.pop(rung.number)  # the same would come again
                continue
            planning.apply(rung, found)
            self._installed = self._next
        if rungs and not (
            self._awaited or any(r.tape is not None for r in planning.ladder.captured)
        ):
            self._end(rungs[-1].refused)

    def _without_host(self, rung: Rung, why: str) -> None:
        """Asks for another plan of a rung: one of the ranks cannot use host memory."""
        self._planning.no_host(why)
        rung.terms = None
        self._asked(rung, self._asks[rung.number])
        if self._asks_for(rung):
            self._planning.submit(rung)

    def _hold(self, words: list[_Word]) -> None:
        """The budget on every rank: asks for a plan that leaves so much more; until it is there
        this one is better than none. What the server sees, in the run of the rank that asked, it
        plans again by itself."""
        for rung in self._planning.ladder.captured:
            owner = self._asks.get(rung.number)
            if owner is None or rung.plan is None or not rung.may_tighten:
                continue
            seen = [w.over.get(rung.number, 0) for w in words if w.run == words[owner].run]
            over = max(word.over.get(rung.number, 0) for word in words)
            if not rung.varies:  # else it needs more than what was measured
                over -= max(seen)
            if over > 0 and rung.number not in self._awaited:
                self._asked(rung, owner)
                if self._asks_for(rung):
                    self._planning.needs_more(rung, over)
