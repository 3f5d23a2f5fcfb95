# SPDX-License-Identifier: Apache-2.0
"""The ladder of several ranks: the same rungs everywhere, each with one plan.

    together = Together(session, ranks)
    together.meet()                   # before every step; meets the other ranks where it must
    together.captures                 # is the step that begins captured, on every rank?
    together.captured(...)            # what this rank has seen of it

Ranks meet at the beginning of a step, at points that all of them compute from what they have in
common: until the first plan, in the step after a capture, every MEET_EVERY steps, and in each of
the next so many steps when one of them has seen an input that its ladder does not cover. What a
rank has to say is in one message, so a meeting is one collective, and nobody waits for a server but
the rank that asked it.

A capture is of the same step on all ranks, whatever their inputs: structures leave sizes out. The
rank with the largest input asks for the plan, and all run it or none does. Which rung a step runs
under every rank decides alone, from its own input: a plan repeats no collective and changes no
order of gradients, so ranks under different plans never wait for each other.

Ranks with different programs do not train under plans. A rank that stops says so at the next
meeting, and all stop; one that does not come ends the others' planning after the group's timeout.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from reprise.agent import PlanReply
from reprise.torch.ladder import MAX_RUNGS, Key
from reprise.torch.ranks import Ranks
from reprise.torch.stage import Stage
from reprise.torch.step_graph import CapturedGraph

if TYPE_CHECKING:
    from reprise.torch.session import Session

__all__ = ["Together"]

MEET_EVERY = 16
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
    structure: str | None = None  # of the step that was captured
    key: Key | None = None
    replies: dict[int, PlanReply] = field(default_factory=dict)  # by rung, of those it asked for


@dataclass(frozen=True, slots=True)
class _Fresh:
    """A step this rank has captured, before the others are known to have seen the same."""

    key: Key
    graph: CapturedGraph
    left_out: frozenset[str]
    leaks: bool


class Together:
    """This rank among the others. What is not local is the same on all of them."""

    def __init__(self, session: Session, ranks: Ranks) -> None:
        self._session = session
        self._planning = session.planning
        self._ranks = ranks
        self.captures = False
        self._after_capture = False
        self._watched_until = 0
        self._lost = 0
        self._over = False
        self._asked: set[int] = set()  # local: rungs this rank asked for
        self._fresh: _Fresh | None = None  # local
        self._seen = False  # local

    # ---- Local ----------------------------------------------------------------------

    def captured(self, graph: CapturedGraph, left_out: frozenset[str], leaks: bool) -> None:
        """The step is over; the others are met when the next one begins."""
        self._fresh = _Fresh(self._session.step.key, graph, left_out, leaks)

    def _wants(self) -> bool:
        session, ladder = self._session, self._planning.ladder
        room = len(ladder.rungs) < MAX_RUNGS and self._lost < LOST_AT_MOST
        return room and session.stage is Stage.PLANNED and ladder.wants(session.step.key)

    def _replies(self, waits: bool = False) -> dict[int, PlanReply]:
        """For the rungs this rank asked for."""
        rungs = [r for r in self._planning.ladder.rungs if r.number in self._asked]
        return {rung.number: self._planning.reply(rung, waits) for rung in rungs}

    # ---- Common ---------------------------------------------------------------------

    def meet(self) -> None:
        """A step begins."""
        self.captures = False
        if self._over:
            return
        session, ladder = self._session, self._planning.ladder
        number = session.step.number
        wants = self._wants()
        self._seen |= wants
        first = not ladder.rungs
        if not (first or self._after_capture or number <= self._watched_until) and (
            number % MEET_EVERY
        ):
            return
        fresh = self._fresh
        words: list[_Word] = self._ranks.gather(
            _Word(
                out=session.why if session.stage is Stage.PLAIN else "",
                ready=session.stage is Stage.CAPTURE,
                wants=wants,
                seen=self._seen,
                tighter=session.first.notes.tighter,
                structure=fresh.graph.structure if fresh else None,
                key=fresh.key if fresh else None,
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
        self._install({n: r for word in words for n, r in word.replies.items()})
        if any(word.seen for word in words):
            self._watched_until = number + MEET_EVERY
        ready = all(word.ready for word in words)
        self.captures = self._after_capture = not self._over and (
            any(word.wants for word in words) if ladder.rungs else ready
        )

    def _end(self, why: str) -> None:
        self._over = True
        self._planning.drop(why)

    def _settle(self, fresh: _Fresh | None, words: list[_Word]) -> None:
        """All ranks have captured the same step, or it is forgotten."""
        session, ladder = self._session, self._planning.ladder
        structures = [word.structure for word in words]
        others = [rank for rank, other in enumerate(structures) if other != structures[0]]
        if fresh is not None and None not in structures and not others:
            self._share(fresh, words)
            return
        self._lost += 1
        if None in structures:  # something of the program's was in the way of one of them
            why = "the ranks never captured the same step"
        else:
            why = (
                f"rank {others[0]} runs another program than rank 0 "
                f"({len(others)} of {len(words)} ranks differ)"
            )
        if ladder.rungs:
            session.say(f"a step of another kind is not planned: {why}")
        elif (others and None not in structures) or self._lost >= LOST_AT_MOST:
            self._end(f"trains without a plan: {why}")

    def _share(self, fresh: _Fresh, words: list[_Word]) -> None:
        """A rung for all, planned for the largest input. The first one is waited for; what others
        get comes at a later meeting."""
        session, planning = self._session, self._planning
        sizes = [word.key.size if word.key is not None else 0 for word in words]
        owner = sizes.index(max(sizes))
        key = words[owner].key or fresh.key
        rung = planning.ladder.share(key, fresh.graph, fresh.left_out, fresh.leaks)
        if owner == self._ranks.rank:
            session.first.notes.tighter = min(word.tighter for word in words)
            self._asked.add(rung.number)
            planning.submit(rung)
        if session.stage is not Stage.CAPTURE:
            return
        session.stage = Stage.WAITING
        every = self._ranks.gather(self._replies(waits=True))
        replies = {n: r for found in every for n, r in found.items()}
        if all(reply.kind == "pending" for reply in replies.values()):
            self._end("trains without a plan: none came in time")
        else:
            self._install(replies)

    def _install(self, replies: dict[int, PlanReply]) -> None:
        """Plans that have come, on all ranks or on none."""
        planning = self._planning
        new = {n: reply for n, reply in replies.items() if reply.kind != "pending"}
        rungs = [rung for rung in planning.ladder.rungs if rung.number in new]
        if not rungs:
            return
        fine = [planning.take(rung, new[rung.number]) for rung in rungs]
        # Why not, where a rank does not run it; empty where it does.
        whys = ["" if ok else r.refused or "no plan" for r, ok in zip(rungs, fine, strict=True)]
        everywhere: list[list[str]] = self._ranks.gather(whys)
        for at, rung in enumerate(rungs):
            others = [(rank, said[at]) for rank, said in enumerate(everywhere) if said[at]]
            if others:
                rank, why = others[0]
                rung.tape = None
                rung.refused = rung.refused or f"rank {rank} does not run the plan: {why}"
                self._asked.discard(rung.number)
        if not any(rung.tape is not None for rung in planning.ladder.rungs):
            self._end(rungs[-1].refused)
