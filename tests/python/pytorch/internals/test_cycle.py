# SPDX-License-Identifier: Apache-2.0
"""Which call of an optimizer ends a step."""

from __future__ import annotations

from torch import nn
from torch.optim import SGD

from reprise.torch.internals.optimizers import Cycle


def test_an_optimizer_that_replaces_one_that_still_exists_ends_every_step() -> None:
    model, cycle = nn.Linear(2, 2), Cycle()
    first, second = SGD(model.parameters()), SGD(model.parameters())
    cycle.ends(first)

    replaces = cycle.replaces(second)
    ends = [cycle.ends(second) for _ in range(4)]

    assert replaces
    assert not cycle.replaces(second)
    assert ends == [True, True, True, True]
    assert cycle.optimizers == [second]


def test_an_inner_loop_with_new_optimizers_ends_no_step_from_the_third_on() -> None:
    model, cycle = nn.Linear(2, 2), Cycle()
    outer = SGD(model.parameters())
    ends = []
    for _ in range(4):
        inner = SGD(model.parameters())
        over = cycle.ends(inner)
        if over:
            cycle.learn(outer)
        else:
            over = cycle.ends(outer)
            ends.append(over)
        del inner

    assert ends == [True, True]


def test_an_optimizer_that_steps_five_times_waits_for_the_one_of_other_parameters() -> None:
    cycle = Cycle()
    often, seldom = SGD(nn.Linear(2, 2).parameters()), SGD(nn.Linear(2, 2).parameters())
    cycle.ends(seldom)
    cycle.ends(often)

    ends = [cycle.ends(often) for _ in range(5)]

    assert ends == [False] * 5
    assert cycle.ends(seldom)


def test_two_alternating_optimizers_of_the_same_parameters_end_a_step_together() -> None:
    model, cycle = nn.Linear(2, 2), Cycle()
    inner, outer = SGD(model.parameters()), SGD(model.parameters())
    cycle.learn(inner)
    cycle.learn(outer)

    ends = [cycle.ends(optimizer) for optimizer in (inner, outer, inner, outer)]

    assert ends == [False, True, False, True]
