# SPDX-License-Identifier: Apache-2.0
"""Steps that run different programs settle on plans, or are no longer captured."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from arming import arm
from local_agent import LocalAgent
from loops import curves, deep, sgd
from nets import WIDTH
from torch import Tensor, nn

from reprise.torch.ladder.ladder import Ladder
from reprise.torch.ladder.rung import Key, Rung
from reprise.torch.policy.state import Stage
from reprise.torch.session import api
from reprise.torch.training.measure import Measured

pytestmark = pytest.mark.usefixtures("removed")


def _loop(
    agent: LocalAgent | None,
    forwards: Callable[[int], int],
    steps: int,
    *,
    together: bool = False,
    rows: int = 6,
) -> tuple[list[str], nn.Module]:
    """Accumulates gradients over several forwards of `rows` samples; with `together`, in one
    backward."""
    torch.manual_seed(4)
    model = deep()
    if agent is not None:
        arm(model, agent, verify_every=0)
    optimizer = sgd(model)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        sums: list[Tensor] = []
        for _ in range(forwards(step)):
            loss = model(torch.randn(rows, WIDTH)).square().mean()
            if together:
                sums.append(loss)
            else:
                loss.backward()
        if together:
            torch.stack(sums).sum().backward()
        optimizer.step()
        losses.append(loss.item().hex())
    return losses, model


def test_one_plan_serves_any_number_of_forwards_each_with_its_backward() -> None:
    agent = LocalAgent()
    counts = [random.Random(2).randint(1, 6) for _ in range(1)] + [3, 3, 1, 5, 2, 6, 4, 1, 3, 7, 2]

    def loop(armed: bool) -> list[str]:
        losses, model = _loop(agent if armed else None, lambda n: counts[n], len(counts))
        if armed:
            report = api.report(model)
            assert report.stage == Stage.PLANNED.value
            assert report.mismatched_steps == 0
            assert "0 ns" not in report.sentence
        return losses

    curves(loop)

    assert len(agent.graphs) == 1
    assert sum(s.get("mismatches", 0) for s in agent.steps) == 0


def test_an_additional_forward_runs_as_the_last_captured_one() -> None:
    agent = LocalAgent()
    counts = [2, 2, 2, 2, 2, 1, 2, 3, 4]

    def loop(armed: bool) -> list[str]:
        return _loop(agent if armed else None, lambda n: counts[n], len(counts))[0]

    curves(loop)

    one, two, three, four = (step["recomputed"] for step in agent.steps[-4:])
    last = two - one
    assert last != one
    assert (three, four) == (two + last, two + 2 * last)


def test_memory_of_the_capture_itself_does_not_count_in_the_base_peak() -> None:
    measured = Measured()
    for peak in (9000, 10000, 10001, 10000):
        measured.plain("input", peak)(1, 1)

    measured.take_like("input", 12000, several=False)

    assert measured.base("input")[0] == 10001


def test_the_time_of_one_program_is_not_that_of_another_with_the_same_input() -> None:
    measured = Measured()
    for peak in (9000, 10000, 10000):
        measured.plain("input", peak)(70, 70)

    measured.take_like("input", 10050, several=True)
    assert measured.base("input") == (10000, 70)
    measured.take_like("input", 20000, several=True)
    assert measured.base("input") == (20000, 0)
    measured.set_base("input", 20000, 150)
    assert measured.base("input") == (20000, 150)


def test_a_program_that_has_settled_is_captured_soon_when_it_changes_again() -> None:
    key = Key((), ((6, WIDTH),))
    graph: Any = SimpleNamespace(structure="one", varies=False, storages=())
    rung = Rung(1, key, key.size, graph, frozenset())
    ladder = Ladder([rung])

    def captured_after(most: int) -> int:
        """Returns after how many steps with different programs one is captured."""
        for step in range(1, most):
            if ladder.wants(key):
                ladder._mismatches = ladder._in_a_row = 0
                return step
            ladder.after(rung, matched=False)
        return most

    waits = [captured_after(60) for _ in range(4)]
    for _ in range(64):
        ladder.after(rung, matched=True)

    assert waits[0] < waits[2] < waits[3]
    assert captured_after(60) <= waits[0]


def test_two_kinds_of_step_that_alternate_get_a_plan_each() -> None:
    agent = LocalAgent()

    def loop(armed: bool) -> list[str]:
        return _loop(agent if armed else None, lambda n: 2 + n % 2, 20, together=True)[0]

    curves(loop)

    assert len(agent.graphs) == 2
    assert sum(s.get("mismatches", 0) for s in agent.steps[-6:]) == 0


def test_the_peak_of_a_captured_step_does_not_include_other_programs_with_the_same_input() -> None:
    agent = LocalAgent()
    # The plain steps and the first captured one run three forwards, the next captured one runs one.
    counts = [3] * 5 + [1] * 12

    # Large, so that what other tests have left alive does not hide the difference.
    _loop(agent, lambda n: counts[n], len(counts), together=True, rows=6000)

    # A graph may be sent twice, for a plan with more room.
    peaks = {len(graph["ops"]): graph["measured_peak_bytes"] for graph in agent.graphs}
    assert len(peaks) == len(set(peaks.values())) > 1


@pytest.mark.train
def test_a_program_that_never_settles_is_captured_a_few_times_and_keeps_the_largest_plan(
    capsys: pytest.CaptureFixture[str],
) -> None:
    agent = LocalAgent()
    chance = random.Random(7)
    counts = [chance.randint(1, 30) for _ in range(60)]

    def loop(armed: bool) -> list[str]:
        losses, model = _loop(agent if armed else None, lambda n: counts[n], 60, together=True)
        if armed:
            assert api.report(model).stage == Stage.PLANNED.value
        return losses

    curves(loop)

    assert len(agent.graphs) <= 8


def _ladder(*peaks: int) -> tuple[Ladder, list[Rung]]:
    """Returns a ladder with a variant of one step for each of these peaks."""
    key = Key((), ((6, WIDTH),))
    rungs = []
    for number, peak in enumerate(peaks):
        graph: Any = SimpleNamespace(
            structure=str(number), varies=False, storages=(), measured_peak_bytes=peak, step=None
        )
        planned: Any = SimpleNamespace(tape=object(), plan=object())
        rungs.append(Rung(number, key, key.size, graph, frozenset(), planned=planned))
    return Ladder(rungs), rungs


def test_where_guesses_exceed_the_budget_the_plan_of_the_largest_variant_is_taken() -> None:
    ladder, (small, large) = _ladder(10, 20)
    ladder.after(small, matched=True)
    ladder.after(small, matched=True)
    assert ladder.pick(small.key) is small

    ladder.after(small, matched=False, above=True)

    for step in range(200):  # of any variant
        assert ladder.pick(small.key) is large
        ladder.after(large, matched=False, where=f"op {step % 3}")
        assert not ladder.wants(small.key)
        assert not ladder.hopeless


def test_a_size_that_only_one_program_has_had_runs_under_its_plan() -> None:
    ladder, (short, long) = _ladder(10, 20)
    short.key, long.key = (Key((), ((n, WIDTH),)) for n in (6, 9))
    short.size, long.size = short.key.size, long.key.size
    for step in (short, long, short, short, long, long):
        assert ladder.pick(step.key) is step  # whichever came before
        ladder.after(step, matched=True)


def test_a_size_that_was_foreseen_is_asked_for_by_its_own_graph_each_time() -> None:
    ladder, (rung, _) = _ladder(10, 20)
    graph, foreseen = {"name": "captured"}, {"name": "foreseen"}
    rung.graph.message = lambda: graph  # type: ignore[method-assign]

    larger = ladder.fit(rung, 2 * rung.size, foreseen)

    assert rung.message() is graph
    assert larger.message() is foreseen
    assert ladder.beside(larger, 100).message() is foreseen


def test_where_the_largest_variants_plan_exceeds_it_as_often_variants_are_guessed_again() -> None:
    ladder, (small, large) = _ladder(10, 20)
    ladder.after(small, matched=False, above=True)
    assert ladder.pick(small.key) is large

    ladder.after(large, matched=False, above=True)

    ladder.after(small, matched=True)
    ladder.after(small, matched=True)
    assert ladder.pick(small.key) is small


@pytest.mark.parametrize("above", [False, True])
def test_a_program_that_never_settles_is_given_up_only_if_it_exceeds_its_budget(
    above: bool,
) -> None:
    ladder, (small, large) = _ladder(10, 20)
    ladder.captures = 16

    for _ in range(24):
        found = ladder.pick(small.key)
        assert found in (small, large)
        assert not ladder.hopeless
        ladder.after(found, matched=False, above=above)

    assert ladder.hopeless is above


def test_a_program_that_has_changed_for_good_is_captured_although_it_keeps_its_budget() -> None:
    ladder, (_, large) = _ladder(10, 20)
    ladder.after(large, matched=False, above=True)

    for _ in range(256):
        ladder.pick(large.key)
        assert not ladder.wants(large.key)
        ladder.after(large, matched=False)

    ladder.pick(large.key)
    assert not ladder.takes_largest
    assert any(ladder.wants(large.key) for _ in range(3))


@pytest.mark.parametrize("may_be_larger", [False, True])
def test_a_variant_larger_than_those_known_is_captured(may_be_larger: bool) -> None:
    ladder, (small, large) = _ladder(10, 20)
    ladder.after(small, matched=False, above=True)
    ladder.pick(small.key)

    ladder.after(large, matched=not may_be_larger, above=True, may_be_larger=may_be_larger)

    assert ladder.wants(small.key) is may_be_larger
    ladder.pick(small.key)
    assert ladder.takes_largest is may_be_larger
