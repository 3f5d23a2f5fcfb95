# SPDX-License-Identifier: Apache-2.0
"""State of optimizers leaves for host memory and is back, bit for bit, before anyone reads it."""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from jobs import captured, start_meter
from nets import Checkpointed, job
from parking import FAST
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from reprise.base.errors import RepriseError
from reprise.torch.capture.step_graph import CapturedGraph
from reprise.torch.meter.state import known_tensors
from reprise.torch.offload.slow_tier import SlowTier
from reprise.torch.tape.compile_plan import PlanRejected, compile_plan
from reprise.torch.tape.optimizer_state import StateOnHost
from reprise.torch.tape.program import Place
from reprise.torch.tape.state_groups import GROUPS, groups_of, movable

CPU = torch.device("cpu")
LEAST = 1024
FIRST = 7  # the number of the first group among the storages of a plan


def stepped(optimizer: Optimizer) -> Optimizer:
    """Steps once, so that there is state."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    return optimizer


def adam(width: int = 64, layers: int = 3) -> Optimizer:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))
    return stepped(Adam(model.parameters()))


def on_host(optimizers: list[Optimizer], tier: SlowTier | None = None) -> StateOnHost:
    """Returns what sends all state of these optimizers, each group to a place of its own."""
    places, at = {}, 0
    for number, group in enumerate(groups_of(optimizers, CPU, LEAST)):
        size = sum(storage.nbytes() for storage in group)
        places[FIRST + number] = Place(at, size, 1, 0)
        at += size
    tier = tier or SlowTier(FAST)
    tier.least_bytes = LEAST
    return StateOnHost(places, FIRST, CPU, tier, tier.slab(at))


def left(state: StateOnHost) -> None:
    for storage in range(FIRST, FIRST + GROUPS):
        state.sent(storage)


SMALL = 3 * (2 * 256 + 2 * 4)  # bytes of what is smaller: averages of biases, counts of steps


def values(optimizer: Optimizer) -> list[bytes]:
    return [
        value.clone().numpy().tobytes()  # memory that numpy has seen cannot leave
        for held in optimizer.state.values()
        for value in held.values()
        if isinstance(value, torch.Tensor)
    ]


def sizes(optimizer: Optimizer) -> list[int]:
    """Returns the bytes of the storages of an optimizer's state, without looking at its state."""
    held = vars(optimizer)["state"]
    real = getattr(held, "real", held)
    return [t.untyped_storage().nbytes() for held in real.values() for t in held.values()]


def test_state_that_has_left_takes_no_memory_and_is_back_with_the_same_bits() -> None:
    optimizer = adam()
    before, held = values(optimizer), [id(one) for one in optimizer.state.values()]
    state = on_host([optimizer])

    state.leaves([optimizer])
    left(state)
    assert sum(sizes(optimizer)) == SMALL

    state.fetch(FIRST)
    assert sum(sizes(optimizer)) > SMALL
    state.home()

    assert values(optimizer) == before
    assert [id(one) for one in optimizer.state.values()] == held
    assert type(optimizer.state) is not dict


@pytest.mark.parametrize(
    "look",
    [
        lambda optimizer: optimizer.state_dict(),
        lambda optimizer: next(iter(optimizer.state.values()))["exp_avg"].sum().item(),
        lambda optimizer: copy.deepcopy(optimizer),
        lambda optimizer: pickle.dumps(optimizer),
        lambda optimizer: optimizer.step(),
        lambda optimizer: optimizer.state.clear(),
    ],
)
def test_whoever_looks_at_state_within_a_step_finds_all_of_it(
    look: Callable[[Any], object],
) -> None:
    optimizer, other = adam(), adam()
    state = on_host([optimizer])
    state.leaves([optimizer])
    left(state)

    torch.manual_seed(1)
    look(optimizer)
    torch.manual_seed(1)
    look(other)

    assert values(optimizer) == values(other)
    assert type(optimizer.state) is type(other.state)


def test_what_is_alive_can_be_named_while_state_is_away() -> None:
    model = nn.Linear(64, 64)
    optimizer = stepped(Adam(model.parameters()))
    state = on_host([optimizer])
    state.leaves([optimizer])
    left(state)

    named = {name: tensor for tensor, name, _ in known_tensors(model, [optimizer])}

    assert named["weight.exp_avg"].untyped_storage().nbytes() == 0
    state.home()
    assert named["weight.exp_avg"].untyped_storage().nbytes() == 64 * 64 * 4


def test_a_step_that_was_given_up_has_its_state_back_in_the_next() -> None:
    optimizer = adam()
    before, state = values(optimizer), on_host([optimizer])
    state.leaves([optimizer])
    left(state)

    state.leaves([optimizer])
    left(state)
    del state
    gc.collect()

    assert values(optimizer) == before


@pytest.mark.parametrize("way", ["out", "back"])
def test_state_that_comes_back_wrong_in_a_checked_step_ends_it_loudly(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    optimizer, tier = adam(), SlowTier(FAST)
    state = on_host([optimizer], tier)
    copied = getattr(tier, way)

    def wrong(source: torch.Tensor, target: torch.Tensor) -> Any:
        done = copied(source, target)
        done.wait()
        target[3] += 1
        return done

    monkeypatch.setattr(tier, way, wrong)
    state.leaves([optimizer], checked=True)
    left(state)

    with pytest.raises(RepriseError, match="other bits: continue from a checkpoint"):
        optimizer.step()


def test_a_copy_back_that_went_wrong_once_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    optimizer, tier = adam(), SlowTier(FAST)
    before, state = values(optimizer), on_host([optimizer], tier)
    back, wrong = tier.back, [True]

    def once(source: torch.Tensor, target: torch.Tensor) -> Any:
        done = back(source, target)
        done.wait()
        target[3] += wrong.pop() if wrong else 0
        return done

    monkeypatch.setattr(tier, "back", once)
    state.leaves([optimizer], checked=True)
    left(state)
    state.home()

    assert values(optimizer) == before


def test_state_of_another_size_than_planned_stays() -> None:
    optimizer = adam()
    state = on_host([optimizer])

    state.leaves([other := adam(width=32)])
    left(state)

    assert all(sizes(other))


def test_groups_are_of_about_equal_size_and_the_same_each_time() -> None:
    optimizer = adam(layers=40)

    groups = groups_of([optimizer], CPU, least_bytes=LEAST)

    held = [sum(storage.nbytes() for storage in group) for group in groups]
    assert len(groups) == GROUPS
    assert max(held) <= 2 * min(held)
    again = groups_of([optimizer], CPU, least_bytes=LEAST)
    assert [[s._cdata for s in group] for group in again] == [
        [s._cdata for s in group] for group in groups
    ]
    assert sum(held) == 2 * 40 * 64 * 64 * 4  # not the biases, which are small


class Third(SGD):
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        return super().step(closure)


def tied() -> Optimizer:
    """Returns an optimizer whose state shares the memory of its parameter."""
    parameter = nn.Parameter(torch.ones(4096))
    optimizer = SGD([parameter])
    optimizer.state[parameter]["average"] = parameter.detach()
    return optimizer


@pytest.mark.parametrize(
    "make",
    [
        lambda: stepped(Third([nn.Parameter(torch.ones(4096))], momentum=0.9)),
        lambda: stepped(SGD([nn.Parameter(torch.ones(4096))])),
        lambda: stepped(Adam([nn.Parameter(torch.ones(16))])),
        tied,
    ],
    ids=["another library's", "none", "small", "shared with parameters"],
)
def test_state_that_must_not_move_is_in_no_group(make: Callable[[], Optimizer]) -> None:
    assert groups_of([make()], CPU, least_bytes=LEAST) == []


@pytest.mark.parametrize(
    "keep",
    [
        lambda optimizer, first: first["exp_avg"],
        lambda optimizer, first: first["exp_avg"].view(-1),
        lambda optimizer, first: first["exp_avg"].detach(),
        lambda optimizer, first: first["exp_avg"].numpy(),
        lambda optimizer, first: torch.utils.dlpack.to_dlpack(first["exp_avg"]),
        lambda optimizer, first: (first["exp_avg"] * nn.Parameter(torch.ones(64, 64))).sum(),
    ],
    ids=["tensor", "view", "alias", "numpy", "capsule", "graph"],
)
def test_a_tensor_of_state_that_somebody_else_refers_to_stays(
    keep: Callable[[Any, Any], object],
) -> None:
    optimizer = adam()
    all_bytes = sum(s.nbytes() for group in groups_of([optimizer], CPU, LEAST) for s in group)

    kept = keep(optimizer, next(iter(optimizer.state.values())))

    moved = sum(s.nbytes() for group in groups_of([optimizer], CPU, LEAST) for s in group)
    assert moved == all_bytes - 64 * 64 * 4
    del kept


def test_state_that_somebody_else_can_reach_stays() -> None:
    optimizer = adam()
    whole = len(groups_of([optimizer], CPU, LEAST))
    one = next(iter(optimizer.state.values()))
    assert len(groups_of([optimizer], CPU, LEAST)) == whole - 2
    del one
    reached = optimizer.state
    assert groups_of([optimizer], CPU, LEAST) == []
    del reached
    assert len(groups_of([optimizer], CPU, LEAST)) == whole


def test_capturable_optimizers_keep_their_state() -> None:
    optimizer = stepped(AdamW([nn.Parameter(torch.ones(4096))]))
    assert groups_of([optimizer], CPU, least_bytes=LEAST)
    optimizer.param_groups[0]["capturable"] = True
    assert groups_of([optimizer], CPU, least_bytes=LEAST) == []


@pytest.fixture(scope="module")
def graph() -> CapturedGraph:
    return captured(job(Checkpointed()), start_meter())


def test_a_graph_has_groups_as_storages_that_are_there_before_and_after(
    graph: CapturedGraph,
) -> None:
    message = graph.message()
    message["static_bytes"] += 96

    made = movable(message, (64, 32))

    begin = len(graph.storages)
    assert made["static_bytes"] == message["static_bytes"] - 96
    assert [s["bytes"] for s in made["storages"][begin:]] == [64, 32]
    assert set(made["required"]) >= {begin, begin + 1}
    readers = [op["phase"] for op in made["ops"] if begin in op["reads"]]
    assert readers == ["PHASE_OPTIMIZER"]
    assert movable(made, ()) == made


def test_an_optimizer_that_steps_within_the_backward_keeps_its_state(graph: CapturedGraph) -> None:
    message = graph.message()
    message["ops"][3]["phase"] = "PHASE_OPTIMIZER"
    assert movable(message, (64,)) == message


def test_a_plan_that_moves_state_out_of_order_is_refused(graph: CapturedGraph) -> None:
    begin = len(graph.storages)
    sent = -1 - begin - (2 << 24)
    schedule = [0, sent, *range(1, len(graph.step.ops))]
    with pytest.raises(PlanRejected, match="moves in no order"):
        compile_plan(graph, schedule, (64,))
