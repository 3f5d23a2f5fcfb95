# SPDX-License-Identifier: Apache-2.0
"""Ranks that do not reach a forward together all train on, and log why."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from torch import distributed

from reprise.torch.ladder import ranks
from reprise.torch.ladder.ranks import PLAN, Missing, Ranks, in_pipeline


def process(rank: int, store: Any) -> Any:
    """Pretends to be one of two ranks of torch.distributed."""
    return SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        get_rank=lambda: rank,
        get_world_size=lambda: 2,
        new_group=lambda **_: "a group",
        distributed_c10d=SimpleNamespace(_get_default_store=lambda: store),
    )


def test_the_result_of_the_first_rank_applies_to_a_late_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = distributed.HashStore()
    monkeypatch.setattr(ranks, "PATIENCE", timedelta(milliseconds=20))
    monkeypatch.setattr(ranks, "_groups", 0)
    with pytest.raises(Missing, match=r"not all of the 2 ranks came .* \(rank 1 did not\)"):
        Ranks(process(0, store))

    monkeypatch.setattr(ranks, "_groups", 0)
    with pytest.raises(Missing, match="not all of the 2 ranks came"):
        Ranks(process(1, store))

    # At the next step both come.
    first = threading.Thread(target=lambda: Ranks(process(0, store)))
    monkeypatch.setattr(ranks, "PATIENCE", timedelta(seconds=20))
    monkeypatch.setattr(ranks, "_groups", 1)
    first.start()
    while ranks._groups == 1:
        time.sleep(0.001)
    monkeypatch.setattr(ranks, "_groups", 1)
    assert Ranks(process(1, store)).rank == 1
    first.join()


def test_a_rank_that_stays_away_from_a_later_meeting_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = distributed.HashStore()
    monkeypatch.setattr(ranks, "_groups", 0)
    store.add("reprise/1/1", 1)  # rank 1 has come to the first meeting, and to no other
    store.set("reprise/1/at/1", "1")
    both = Ranks(process(0, store))
    monkeypatch.setattr(ranks, "PATIENCE", timedelta(milliseconds=20))

    with pytest.raises(Missing, match=r"came to the same step within 0.02 s .* \(rank 1 did not\)"):
        both.meet("word")


def test_a_rank_that_stays_away_while_a_plan_is_awaited_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = distributed.HashStore()
    monkeypatch.setattr(ranks, "_groups", 0)
    store.add("reprise/1/1", 1)
    store.set("reprise/1/at/1", "1")
    both = Ranks(process(0, store))
    monkeypatch.setattr(ranks, "PLAN_PATIENCE", timedelta(milliseconds=20))

    with pytest.raises(Missing, match=r"the plan of a step within 0.02 s .* \(rank 1 did not\)"):
        both.meet("word", PLAN)


def test_a_rank_that_has_said_it_is_coming_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = distributed.HashStore()
    monkeypatch.setattr(ranks, "_groups", 0)
    monkeypatch.setattr(ranks, "PATIENCE", timedelta(milliseconds=20))
    store.add("reprise/1/1", 1)
    store.set("reprise/1/at/1", "1")
    both = Ranks(process(0, store))
    monkeypatch.setattr(ranks.torch, "distributed", process(1, store))
    ranks.coming()

    def comes() -> None:
        time.sleep(0.2)
        store.set("reprise/1/at/1", "2")
        store.add("reprise/1/2", 1)
        store.set("reprise/1/2/found", "all")

    late = threading.Thread(target=comes)
    late.start()
    both._come(PLAN, timedelta(milliseconds=20))  # does not raise
    late.join()

    # Once it leaves, nobody waits for it any more.
    monkeypatch.setattr(ranks, "_open", [both])
    monkeypatch.setattr(
        ranks.torch.distributed, "destroy_process_group", lambda _: None, raising=False
    )
    ranks.leave()
    with pytest.raises(Missing, match=r"\(rank 1 did not\)"):
        both._come(PLAN, timedelta(milliseconds=20))


def test_a_pipeline_stage_is_known_by_the_schedule_that_calls_it() -> None:
    schedule: dict[str, Any] = {"__name__": "torch.distributed.pipelining.schedules"}
    exec("def step(forward):\n    return forward()\n", schedule)

    assert schedule["step"](in_pipeline)
    assert not in_pipeline()
