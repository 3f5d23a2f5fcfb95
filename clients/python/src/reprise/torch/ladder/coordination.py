# SPDX-License-Identifier: Apache-2.0
"""The ladder of ranks that run the same ops: the same rungs on each, each with one plan.

    coordinator = RankCoordinator(session, ranks)
    coordinator.meet(ended=True)         # after every step; meets the other ranks where it must
    coordinator.meet(ended=False)        # before every step
    coordinator.captures                 # is the step that begins captured, on every rank?
    coordinator.captured(...)            # what this rank has seen of it

Ranks meet when an optimizer has ended a step, at points that all of them compute from what they
have in common: until the first plan, after a capture, every MEET_EVERY steps, and while a plan is
under way. When one of them has seen an input that its ladder does not cover, they also meet at the
beginning of the next so many steps, because whether a step has such an input is known there: no
other meeting is within a forward. What a rank has to say is in one message, so a meeting is one
collective, and nobody waits for a server but the rank that asked it.

A capture is of the same step on all ranks, whatever their inputs: structures leave sizes out. The
rank with the largest input asks for the plan, and all run it or none does. It asks for what all
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

from dataclasses import dataclass, field

from reprise.agent import PlanReply
from reprise.errors import RepriseError
from reprise.torch.capture.step_graph import CapturedGraph
from reprise.torch.ladder.job import Job
from reprise.torch.ladder.ladder import MAX_RUNGS
from reprise.torch.ladder.ranks import PLAN, Ranks
from reprise.torch.ladder.rung import Key, Rung
from reprise.torch.policy.stage import Stage
from reprise.torch.tape.executor import TapePlan

__all__ = ["RankCoordinator"]

MEET_EVERY = 16
# The others are told so often that the rank that asked still waits: less than their patience.
WAIT_S = 2.0
# Captures in which the ranks did not see the same, before they stop trying.
LOST_AT_MOST = 4


@dataclass(frozen=True, slots=True)
class _Word:
    """What a rank has to say at a meeting."""

    out: str  # why it does not take part any more; empty: it does
    ready: bool  # for the first capture
    wants: bool  # the step that begins, captured
    seen: bool  # an input since the last meeting that no rung covers
    tighter: float
    over: dict[int, int]  # by rung: bytes that were measured above the budget
    run: str  # of the server's, which ranks may share
    structure: str | None = None  # of the step that was captured
    key: Key | None = None
    idle_bytes: int = 0
    shortcuts: frozenset[int] = frozenset()
    replies: dict[int, PlanReply] = field(default_factory=dict)  # by rung, of those it asked for


@dataclass(frozen=True, slots=True)
class _Fresh:
    """A step this rank has captured, before the others are known to have seen the same."""

    key: Key
    graph: CapturedGraph
    left_out: frozenset[str]
    leaks: bool


class RankCoordinator:
    """This rank among the others. What is not local is the same on all of them."""

    def __init__(self, session: Job, ranks: Ranks) -> None:
        self._session = session
        self._planning = session.planning
        self._ranks = ranks
        self.captures = False
        self._after_capture = False
        self._watched_until = self._awaited_until = 0
        self._next = 0  # the step that begins, or will
        self._lost = 0
        self._ended = False
        self._asks: dict[int, int] = {}  # by rung: the rank that asks for its plans
        self._awaited: set[int] = set()  # rungs whose next plan is under way
        self._fresh: _Fresh | None = None  # local
        self._seen = False  # local

    # ---- Local ----------------------------------------------------------------------

    def captured(self, graph: CapturedGraph, left_out: frozenset[str], leaks: bool) -> None:
        """The step is over; the others are met when the next one begins. What may take long is done
        now, by all at once: nobody waits for it at a meeting."""
        self._planning.measure_costs(graph)
        self._fresh = _Fresh(self._session.step.key, graph, left_out, leaks)

    def _wants(self) -> bool:
        session, ladder = self._session, self._planning.ladder
        room = ladder.room and self._lost < LOST_AT_MOST
        return room and session.stage is Stage.PLANNED and ladder.wants(session.step.key)

    def _replies(self, wait_s: float = 0) -> dict[int, PlanReply]:
        """For the rungs this rank asked for; waits for those that are under way."""
        rungs = [r for r in self._planning.ladder.rungs if self._asks_for(r)]
        return {
            rung.number: self._planning.reply(rung, wait_s if rung.number in self._awaited else 0)
            for rung in rungs
        }

    def _asks_for(self, rung: Rung) -> bool:
        return self._asks.get(rung.number) == self._ranks.place

    def _over_budget(self) -> dict[int, int]:
        """By rung: how far its plan's steps were above the budget on this rank."""
        measured, found = self._session.measured, {}
        for rung in self._planning.ladder.rungs:
            if rung.tape is not None and rung.plan is not None:
                found[rung.number] = measured.peak_under(rung.number) - rung.plan.budget_bytes
        return {number: bytes_over for number, bytes_over in found.items() if bytes_over > 0}

    # ---- Common ---------------------------------------------------------------------

    def meet(self, *, ended: bool) -> None:
        """Meets the other ranks, if it is time to: at the end of a step (`ended`), or at the
        beginning of one."""
        if ended:
            self.captures = False
        fresh = self._fresh
        try:
            if not self._ended and self._is_due(ended):
                self._meet(ended)
        except RepriseError as error:
            self.captures = False
            self._go_alone(f"{error}; this rank is planned by itself", fresh)

    def _is_due(self, ended: bool) -> bool:
        """Returns whether the ranks meet now: the same on all."""
        rungs = self._planning.ladder.rungs
        self._next = self._session.step.number + ended
        if ended:
            awaits = bool(self._awaited) and self._next <= self._awaited_until
            return bool(not rungs or self._after_capture or awaits or self._next % MEET_EVERY == 0)
        self._seen |= self._wants()
        return bool(rungs) and not self.captures and self._next <= self._watched_until

    def _meet(self, ended: bool) -> None:
        session, ladder, number = self._session, self._planning.ladder, self._next
        fresh = self._fresh
        words: list[_Word] = self._ranks.meet(
            _Word(
                out=session.why if session.stage is Stage.PLAIN else "",
                ready=session.stage is Stage.CAPTURE,
                wants=not ended and self._wants(),
                seen=self._seen,
                tighter=session.startup.notes.tighter,
                over=self._over_budget(),
                run=session.agent.run_id,
                structure=fresh.graph.structure if fresh else None,
                key=fresh.key if fresh else None,
                idle_bytes=fresh.graph.idle_bytes if fresh else 0,
                shortcuts=fresh.graph.shortcuts if fresh else frozenset(),
                replies=self._replies(),
            )
        )
        self._seen, self._fresh = False, None
        outs = [word.out for word in words if word.out]
        if outs:
            self._end(outs[0])
            return
        if self._after_capture:
            # What was wanted was said before there was the rung that this makes.
            self._after_capture = False
            self._settle(fresh, words)
            return
        replies = {n: r for word in words for n, r in word.replies.items()}
        self._hold(words)  # first: what was measured was not under the plans that come now
        if any(reply.kind != "pending" for reply in replies.values()):
            self._install(replies)
        if any(word.seen for word in words):
            self._watched_until = number + MEET_EVERY
        ready = all(word.ready for word in words)
        self.captures = self._after_capture = not self._ended and (
            any(word.wants for word in words) if ladder.rungs else ready
        )

    def _end(self, why: str) -> None:
        self._ended = True
        self._planning.drop(why)

    def _go_alone(self, why: str, fresh: _Fresh | None) -> None:
        """Plans for this rank alone from now on: the step that it has captured, if it is not
        planned yet, and what it has asked for."""
        self._ended = True
        if why:
            self._session.say(why)
        asked = {number for number, rank in self._asks.items() if rank == self._ranks.place}
        self._planning.go_alone(asked)
        if fresh is not None and not self._planning.ladder.rungs:
            self._planning.plan(fresh.key, fresh.graph, fresh.left_out, fresh.leaks)

    def _settle(self, fresh: _Fresh | None, words: list[_Word]) -> None:
        """Ranks that have captured the same step share a plan; else it is forgotten."""
        session, ladder = self._session, self._planning.ladder
        structures = [word.structure for word in words]
        if fresh is not None and None not in structures:
            same = [n for n, other in enumerate(structures) if other == fresh.graph.structure]
            if len(same) == len(words):
                self._share(fresh, words)
                return
            if not ladder.rungs:
                self._part(fresh, words, same)
                return
        self._lost += 1
        why = "the ranks did not capture the same step"
        if ladder.rungs:
            session.say(f"a different kind of step is not planned: {why}")
        elif self._lost >= LOST_AT_MOST:
            self._go_alone(f"{why}: each of them is planned by itself", fresh)

    def _part(self, fresh: _Fresh, words: list[_Word], same: list[int]) -> None:
        """Goes on with the ranks that run the same ops, or alone where there is none."""
        if len(same) == 1:
            self._go_alone("", fresh)
            return
        self._ranks = self._ranks.among([self._ranks.members[n] for n in same])
        self._share(fresh, [words[n] for n in same])

    def _share(self, fresh: _Fresh, words: list[_Word]) -> None:
        """A rung for all, planned for the largest input, and waited for: no other is for it."""
        session, planning = self._session, self._planning
        sizes = [word.key.size if word.key is not None else 0 for word in words]
        owner = sizes.index(max(sizes))
        key = words[owner].key or fresh.key
        fresh.graph.only_shortcuts(frozenset.intersection(*(word.shortcuts for word in words)))
        rung = planning.ladder.share(key, fresh.key.size, fresh.graph, fresh.left_out, fresh.leaks)
        rung.beside_bytes = max(word.idle_bytes for word in words) - fresh.graph.idle_bytes
        self._asked(rung, owner)
        if self._asks_for(rung):
            session.startup.notes.tighter = min(word.tighter for word in words)
            planning.submit(rung)
        self._fit_ahead(rung, owner)
        if session.stage is Stage.CAPTURE:
            session.stage = Stage.WAITING
        self._await()

    def _fit_ahead(self, rung: Rung, owner: int) -> None:
        """A rung for a larger input than any so far, where its program is known in two sizes."""
        planning, ladder = self._planning, self._planning.ladder
        if len(ladder.rungs) >= MAX_RUNGS or sum(not r.fitted for r in ladder.rungs) < 2:
            return
        ahead = ladder.ahead(rung) if self._asks_for(rung) else None
        size = max(self._ranks.meet(0 if ahead is None else ahead[0], PLAN))
        if not size:
            return
        made = ladder.fit(rung, size)
        self._asked(made, owner)
        if ahead is not None:
            planning.submit(made, ahead[1])

    def _asked(self, rung: Rung, owner: int) -> None:
        """One rank asks the server, all wait at their meetings."""
        self._asks[rung.number] = owner
        self._awaited.add(rung.number)
        self._awaited_until = self._next + MEET_EVERY

    def _await(self) -> None:
        """What is under way. Also what is asked for instead, where a plan leaves too little."""
        left, why = self._planning.wait_s, "no plan arrived in time"
        while self._awaited and not self._ended:
            found = self._replies(min(left, WAIT_S))
            left = max(0.0, left - WAIT_S)
            every = self._ranks.meet((found, bool(found) and left > 0), PLAN)
            replies = {n: r for said, _ in every for n, r in said.items()}
            if any(reply.kind != "pending" for reply in replies.values()):
                self._install(replies)
            elif not any(waits for _, waits in every):
                why = next((r.why for r in replies.values() if r.why), why)
                break
        if not self._ended and all(r.tape is None for r in self._planning.ladder.rungs):
            self._end(f"training without a plan: {why}")

    def _install(self, replies: dict[int, PlanReply]) -> None:
        """Plans that have come, on all ranks or on none."""
        planning = self._planning
        rungs = [rung for rung in planning.ladder.rungs if rung.number in replies]
        made: dict[int, TapePlan | str] = {}
        for rung in rungs:
            reply = replies[rung.number]
            if reply.plan is not None:
                rung.answered = reply.plan.plan_number
            if reply.kind == "plan" and reply.plan is not None and reply.plan.feasible:
                made[rung.number] = planning.prepared(rung, reply.plan)
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
                planning.reject(plan, others[0])
                rung.refused = f"training without a plan: {others[0]}"
                self._asks.pop(rung.number)  # the same would come again
                continue
            planning.apply(rung, found)
        if rungs and not (self._awaited or any(r.tape is not None for r in planning.ladder.rungs)):
            self._end(rungs[-1].refused)

    def _tighten(self, rung: Rung, over: int) -> None:
        """Asks for a plan that leaves so much more; until it is there this one is better than
        none."""
        plan = rung.plan
        if over <= 0 or plan is None or not rung.may_tighten or rung.number in self._awaited:
            return
        self._asked(rung, self._asks[rung.number])
        if self._asks_for(rung):
            self._planning.needs_more(rung, over)

    def _hold(self, words: list[_Word]) -> None:
        """The budget on every rank. What the server sees, in the run of the rank that asked, it
        plans again by itself."""
        for rung in self._planning.ladder.rungs:
            owner = self._asks.get(rung.number)
            if owner is None:
                continue
            seen = [w.over.get(rung.number, 0) for w in words if w.run == words[owner].run]
            most = max(word.over.get(rung.number, 0) for word in words)
            self._tighten(rung, most - max(seen))
