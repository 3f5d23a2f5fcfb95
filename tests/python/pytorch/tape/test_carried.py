# SPDX-License-Identifier: Apache-2.0
"""Schedules with copies keep them when another capture adds the frees."""

from __future__ import annotations

from dataclasses import replace

import pytest
import referee
import torch
from jobs import CapturedGraph, captured, plain_step, start_meter
from nets import WIDTH, RandomNet, job
from parking import bytes_at, movable, parked

from reprise.torch.ladder.host_terms import HostTerms, agreed
from reprise.torch.tape.carried import movable as named
from reprise.torch.tape.carried import own_frees
from reprise.torch.tape.link import Link


def made(model: int) -> CapturedGraph:
    torch.manual_seed(model)
    started = job(RandomNet(model, length=6 + model % 18), 4, WIDTH)
    plain_step(started, 0)
    return captured(started, start_meter())


def on_the_host(graph: CapturedGraph, seed: int) -> tuple[list[int], set[int]]:
    message = graph.message()
    return parked(message, referee.random_plan(message, seed), movable(graph), seed)


def terms(graph: CapturedGraph, link: Link) -> HostTerms:
    return HostTerms(link, tuple(sorted(named(graph, least_bytes=1))))


SLOW, FAST = Link(1_000, 3_000, 7, 1 << 30), Link(2_000, 2_000, 5, 1 << 20)


@pytest.mark.train
def test_the_capture_that_a_schedule_is_of_has_the_same_frees() -> None:
    moved = 0
    for model in range(12):
        graph = made(model)
        schedule, which = on_the_host(graph, model)

        found = own_frees(graph, schedule)

        assert sorted(found) == sorted(schedule), model
        assert bytes_at(graph.message(), found) == bytes_at(graph.message(), schedule), model
        moved += len(which)
    assert moved > 20


@pytest.mark.train
def test_a_plan_that_travels_between_ranks_keeps_its_copies() -> None:
    moved = 0
    for model in range(12):
        graph = made(model)
        # The same step, where storages have other numbers.
        other = made(model)
        numbers = {s: n for n, s in enumerate(reversed(other.storages))}
        for storage, number in numbers.items():
            storage.id = number
        other = replace(
            other,
            storages=tuple(reversed(other.storages)),
            release=tuple(reversed(other.release)),
            required=tuple(len(other.storages) - 1 - s for s in other.required),
        )
        schedule, which = on_the_host(graph, model)
        both = agreed([terms(graph, SLOW), terms(other, FAST)])
        if both is None:
            assert not which
            continue

        sent = both.carried(graph, schedule)
        here, there = both.arrived(graph, sent), both.arrived(other, sent)

        assert sorted(own_frees(graph, here)) == sorted(schedule), model
        found = own_frees(other, there)
        assert bytes_at(other.message(), found) == bytes_at(graph.message(), schedule), model
        moved += len(which)
    assert moved > 20


def test_ranks_agree_on_the_slowest_link_and_on_what_all_can_send() -> None:
    graph = made(1)
    first, then = terms(graph, SLOW), terms(graph, FAST)
    then = then._replace(names=then.names[1:])

    found = agreed([first, then])

    assert found == HostTerms(Link(1_000, 2_000, 7, 1 << 20), then.names)
    assert agreed([first, None]) is None
    assert agreed([first, then._replace(names=())]) is None
