# SPDX-License-Identifier: Apache-2.0
"""Ranks that see other inputs and other ops than each other, at random, meet at the same points and
have the same rungs. Each rank is a thread; server, capture and executor are made up."""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from reprise.agent.agent import PlanReply
from reprise.torch.ladder import ladder as ladder_module
from reprise.torch.ladder.host_terms import HostTerms
from reprise.torch.ladder.ladder import Ladder
from reprise.torch.ladder.rung import Key, Rung
from reprise.torch.planning.coordination import RankCoordinator
from reprise.torch.planning.graphs import Made
from reprise.torch.policy.events import Event, Fact, PlanningEnded, RanksLost
from reprise.torch.policy.policy import decide
from reprise.torch.policy.state import JobState, Stage
from reprise.torch.tape.carried import Name
from reprise.torch.tape.compile_copies import SEND, SENT, coded
from reprise.torch.tape.link import Link
from reprise.torch.training.measure import Steps

STEPS = 70
BUDGET = 100
SIZES = (2, 2, 2, 3, 5, 8)


class Room:
    """Where ranks meet: nobody goes on before all have come, and for the same."""

    def __init__(self, count: int) -> None:
        self._barrier = threading.Barrier(count, timeout=20)
        self._values: list[Any] = [None] * count
        self.meetings = 0

    def meet(self, place: int, value: Any, what: str) -> list[Any]:
        self._values[place] = (what, value)
        self._barrier.wait()
        found = list(self._values)
        self._barrier.wait()
        assert len({what for what, _ in found}) == 1, found
        self.meetings += place == 0
        return [value for _, value in found]


class Rooms:
    """The rooms of a job, one for each group of ranks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rooms: dict[tuple[int, ...], Room] = {}

    def of(self, members: tuple[int, ...]) -> Room:
        with self._lock:
            return self._rooms.setdefault(members, Room(len(members)))


class MadeUpRanks:
    """Stands in for `Ranks`: the ranks are threads of this process, and meet in rooms."""

    def __init__(self, rooms: Rooms, rank: int, members: tuple[int, ...]) -> None:
        self._rooms, self.rank, self.members = rooms, rank, members
        self.place, self.count = members.index(rank), len(members)

    def meet(self, value: Any, what: str = "a step") -> list[Any]:
        return self._rooms.of(self.members).meet(self.place, value, what)

    def among(self, members: list[int]) -> MadeUpRanks:
        return MadeUpRanks(self._rooms, self.rank, tuple(members))


OPS: Any = SimpleNamespace(ops=[SimpleNamespace(outputs=[SimpleNamespace(id=0)])])
SENDS = (0, coded(SEND, 0), coded(SENT, 0))


@dataclass(frozen=True)
class MadeUpPlan:
    """As much of a plan as ranks pass on."""

    plan_number: int
    schedule: tuple[int, ...]
    feasible: bool = True
    budget_bytes: int = BUDGET
    peak_bytes: int = BUDGET


@dataclass(eq=False)
class MadeUpGraph:
    """As much of a captured graph as ranks agree about."""

    structure: str
    shortcuts: frozenset[int]
    step: Any = field(default_factory=lambda: OPS)
    idle_bytes: int = 7
    varies: bool = False
    storages: tuple[Any, ...] = ()
    measured_peak_bytes: int = 1

    def only_shortcuts(self, numbers: frozenset[int]) -> None:
        self.shortcuts &= numbers


@dataclass(eq=False)
class MadeUpPlanning:
    """A server that answers late, refuses, or has a plan that does not run here, at random."""

    job: MadeUpJob
    draw: random.Random
    wait_s: float = 4.0
    ladder: Ladder = field(default_factory=Ladder)
    notes: Any = field(default_factory=lambda: SimpleNamespace(tighter=1.0))
    polls: dict[int, int] = field(default_factory=dict)
    plans: int = 0
    has_host: bool = field(init=False)

    def __post_init__(self) -> None:
        self.has_host = self.draw.random() < 0.8

    def measure_costs(self, graph: Any) -> None:
        pass

    def host_offer(self, graph: Any) -> HostTerms | None:
        return HostTerms(Link(1, 1, 0, 1), (Name(0, 0),)) if self.has_host else None

    def no_host(self, why: str) -> None:
        self.has_host = False

    def submit(self, rung: Rung, message: Any = None) -> None:
        rung.request_id = self.polls[rung.number] = self.draw.choice((1, 2, 9))

    def needs_more(self, rung: Rung, more_bytes: int) -> bool:
        self.submit(rung)
        return True

    def holds_less(self, rung: Rung) -> bool:
        """As if less were held back of every second step that does not fit."""
        if self.draw.random() < 0.5:
            return False
        self.submit(rung)
        return True

    def reply(self, rung: Rung, wait_s: float = 0) -> PlanReply:
        self.polls[rung.number] -= 1
        if self.polls[rung.number] != 0:
            return PlanReply("pending")
        if self.draw.random() < 0.1:
            return PlanReply("refused", why="nothing fits", smallest_budget=BUDGET + 1)
        self.plans += 1
        plan: Any = MadeUpPlan(self.plans, (0,) if rung.terms is None else SENDS)
        return PlanReply("plan", plan)

    def take(self, rung: Rung, reply: PlanReply) -> bool:
        rung.refused = rung.refused or reply.why
        return rung.tape is not None

    def prepared(self, rung: Rung, plan: Any) -> Any:
        assert plan.schedule == (SENDS if rung.terms is not None else (0,))
        if self.draw.random() < 0.05:
            return "another version"
        return SimpleNamespace(plan=plan, tape=object(), remove=lambda: None)

    def apply(self, rung: Rung, planned: Any) -> None:
        rung.planned = planned
        self.job.happened(Fact.PLAN_APPLIED)

    def drop(self, why: str) -> None:
        self.job.happened(PlanningEnded(why))

    def plan(self, key: Key, made: Made) -> None:
        self.ladder.add(key, *made)


class MadeUpJob:
    """Stands in for the session of one rank, with as much of it as the coordinator asks."""

    def __init__(self, rank: int, seed: int, *, exceeds: bool) -> None:
        self.agent: Any = SimpleNamespace(run_id="run")
        self.record: Any = SimpleNamespace(refused=lambda plan, why: None)
        self.state = JobState(Stage.CAPTURE)
        self.alone = False
        self.step: Any = SimpleNamespace(number=0, key=None)
        draw = random.Random(f"{seed} {rank}")
        self.measured: Any = SimpleNamespace(
            under=lambda rung: Steps(
                covered_peak_bytes=BUDGET + (rank == 1 and rung % 2 and exceeds)
            )
        )
        self.planning = MadeUpPlanning(self, draw)

    @property
    def stage(self) -> Stage:
        return self.state.stage

    @property
    def why(self) -> str:
        return self.state.why

    def carry_out(self, effects: Any) -> None:
        pass

    def happened(self, event: Event) -> None:
        self.alone |= isinstance(event, RanksLost)
        self.state, _ = decide(self.state, event)

    def say(self, text: str) -> None:
        pass


def train(job: MadeUpJob, coordinator: RankCoordinator, inputs: list[tuple[str, int]]) -> None:
    planning = job.planning
    for number, (structure, size) in enumerate(inputs, start=1):
        job.step.number, job.step.key = number, Key(("x",), ((size,),))
        if job.alone:
            return
        captures = job.stage is not Stage.PLAIN and coordinator.wants()
        if captures:
            shortcuts = frozenset(n for n in range(4) if planning.draw.random() < 0.9)
            graph: Any = MadeUpGraph(structure, shortcuts)
            if planning.draw.random() < 0.9:  # else something of the program was in the way
                coordinator.captured(Made(graph, frozenset(), leaks=False))
        elif job.stage is Stage.PLANNED:
            rung = planning.ladder.pick(job.step.key)
            if rung is not None:
                planning.ladder.after(rung, rung.graph.structure == structure)
        coordinator.meet()


def inputs_of(draw: random.Random, ranks: int) -> list[list[tuple[str, int]]]:
    """By rank: the ops and the input size of each step. Either may be the same on all ranks; the
    first steps are, in half of the jobs."""
    same_ops, same_sizes = draw.random() < 0.5, draw.random() < 0.3
    begins_alike = draw.choice((0, 5))
    rare = draw.choice((0.0, 0.1, 0.5))
    ops = ["b" if draw.random() < rare else "a" for _ in range(STEPS)]
    sizes = [draw.choice(SIZES) for _ in range(STEPS)]
    found = []
    for _ in range(ranks):
        own_ops = [one if same_ops or draw.random() > rare else "b" for one in ops]
        own_sizes = [one if same_sizes else draw.choice(SIZES) for one in sizes]
        steps = list(zip(own_ops, own_sizes, strict=True))
        found.append([("a", 2)] * begins_alike + steps[begins_alike:])
    return found


def _fitted(points: Any, size: int) -> dict[str, Any]:
    return {"size": size, "storages": [{"id": 0, "bytes": size}]}


@pytest.mark.parametrize("seed", range(100))
def test_ranks_that_see_anything_meet_at_the_same_points_and_have_the_same_rungs(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ladder_module, "fitted", _fitted)
    draw = random.Random(seed)
    count = draw.choice((2, 2, 3, 4))
    rooms, everybody = Rooms(), tuple(range(count))
    exceeds = draw.random() < 0.3
    jobs = [MadeUpJob(rank, seed, exceeds=exceeds) for rank in everybody]
    coordinators: list[RankCoordinator] = []
    for rank, job in enumerate(jobs):
        ranks: Any = MadeUpRanks(rooms, rank, everybody)
        known: Any = job
        coordinator = RankCoordinator(known, known.planning)
        coordinator._ranks, coordinator._alone = ranks, False  # they have met
        coordinators.append(coordinator)
    failed: list[BaseException] = []

    def run(rank: int, inputs: list[tuple[str, int]]) -> None:
        try:
            train(jobs[rank], coordinators[rank], inputs)
        except BaseException as error:
            failed.append(error)

    threads = [
        threading.Thread(target=run, args=(rank, inputs))
        for rank, inputs in enumerate(inputs_of(draw, count))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert not failed, failed
    classes: dict[tuple[int, ...], list[Any]] = {}
    for rank, job in enumerate(jobs):
        if not job.alone:
            rungs = [
                (
                    r.number,
                    r.key,
                    r.size,
                    r.graph.structure,
                    r.fitted,
                    r.tape is None,
                    r.terms,
                    r.terms and r.sizes,
                )
                for r in job.planning.ladder.rungs
            ]
            members: Any = coordinators[rank]._ranks.members
            classes.setdefault(members, []).append((job.stage is Stage.PLAIN, rungs))
    for words in classes.values():
        assert all(word == words[0] for word in words), words
