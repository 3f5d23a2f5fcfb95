# SPDX-License-Identifier: Apache-2.0
"""The ranks of a job on several machines report to one run."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from ladder.test_meeting import process
from torch import distributed

from reprise.agent.agent import Agent
from reprise.base.errors import RepriseError
from reprise.torch.ladder import ranks
from reprise.torch.ladder.ranks import Ranks, run_of_job
from reprise.torch.session import start


class CannotCompare:
    """A store of a kind that has only the oldest functions."""

    def __init__(self) -> None:
        self.inside = distributed.HashStore()

    def compare_set(self, *_: str) -> bytes:
        raise NotImplementedError

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inside, name)


def of_rank(rank: int, store: Any, own: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(ranks.torch, "distributed", process(rank, store))
    monkeypatch.setattr(ranks, "_began", "")  # each is a process of its own
    return run_of_job(own)


def test_the_id_of_the_first_rank_that_asks_is_that_of_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = distributed.HashStore()

    assert of_rank(1, store, "of-rank-1", monkeypatch) == "of-rank-1"
    assert of_rank(0, store, "of-rank-0", monkeypatch) == "of-rank-1"


def test_ranks_that_are_started_again_on_the_same_store_are_another_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = distributed.HashStore()
    for rank in (0, 1):
        assert of_rank(rank, store, f"first-{rank}", monkeypatch) == "first-0"

    for rank in (1, 0):
        assert of_rank(rank, store, f"again-{rank}", monkeypatch) == "again-1"


def test_ranks_that_are_started_again_on_the_same_store_meet_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = distributed.HashStore()
    monkeypatch.setattr(ranks, "_groups", 0)
    monkeypatch.setattr(ranks, "_began", "")
    store.add("reprise/1/1", 1)  # the other rank came to this meeting of the first attempt
    assert Ranks(process(0, store)).rank == 0

    # The process is another one, and the other rank has come again, too.
    monkeypatch.setattr(ranks, "_groups", 0)
    monkeypatch.setattr(ranks, "_began", "")
    store.add("reprise/attempt/1/1/1", 1)
    assert Ranks(process(0, store)).rank == 0


def test_where_the_store_cannot_compare_it_is_that_of_rank_0(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = CannotCompare()
    monkeypatch.setattr(ranks, "PLAN_PATIENCE", timedelta(milliseconds=20))
    with pytest.raises(RepriseError, match="the store of the ranks cannot be read"):
        of_rank(1, store, "of-rank-1", monkeypatch)
    assert of_rank(0, store, "of-rank-0", monkeypatch) == "of-rank-0"

    # The same process once more.
    monkeypatch.setattr(ranks.torch, "distributed", process(1, store))
    assert run_of_job("of-rank-1") == "of-rank-0"


def test_what_is_no_id_is_not_taken_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    store = distributed.HashStore()
    store.set("reprise/run", "two words\n")

    with pytest.raises(RepriseError, match="has 'two words"):
        of_rank(1, store, "of-rank-1", monkeypatch)


def test_a_process_that_trains_alone_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = process(0, distributed.HashStore())
    alone.is_initialized = lambda: False
    monkeypatch.setattr(ranks.torch, "distributed", alone)

    assert run_of_job("own") == "own"


# ---- What a session does with it ----


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> list[tuple[dict[str, str], str]]:
    """With what the agent was connected."""
    calls: list[tuple[dict[str, str], str]] = []

    def connect(labels: dict[str, str], run: str) -> tuple[None, None]:
        calls.append((labels, run))
        return None, None

    monkeypatch.setattr(Agent, "connect", connect)
    monkeypatch.setattr(Agent, "live", lambda: None)
    monkeypatch.setenv("REPRISE_RUN_ID", "of-this-launcher")
    return calls


def test_a_session_says_as_what_it_was_launched(
    connected: list[tuple[dict[str, str], str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "run_of_job", lambda _own: "of-the-job")
    start._connect({"name": "train"})
    assert connected == [({"name": "train", "launch": "of-this-launcher"}, "of-the-job")]

    connected.clear()
    monkeypatch.setattr(start, "run_of_job", lambda own: own)
    start._connect({"name": "train"})
    assert connected == [({"name": "train"}, "of-this-launcher")]


def test_a_rank_that_cannot_read_the_id_says_so_and_goes_on(
    connected: list[tuple[dict[str, str], str]],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(ranks, "_began", "")
    broken = SimpleNamespace(add=broken_pipe, compare_set=broken_pipe)
    monkeypatch.setattr(ranks.torch, "distributed", process(1, broken))

    start._connect({})

    assert connected == [({}, "of-this-launcher")]
    said = capfd.readouterr().err
    assert "rank 1 could not learn the id of the job's run" in said
    assert "its records are in a run of its own" in said
    assert "Broken pipe" in said


def broken_pipe(*_: str) -> bytes:
    raise RuntimeError("Broken pipe")


def test_a_session_that_began_before_the_ranks_met_says_so(
    connected: list[tuple[dict[str, str], str]],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(Agent, "live", lambda: SimpleNamespace(run_id="before"))
    monkeypatch.setattr(start, "run_of_job", lambda _own: "of-the-job")

    start._connect({})

    assert connected == [({}, "before")]
    assert "reports to run before, the other ranks to run of-the-job" in capfd.readouterr().err
