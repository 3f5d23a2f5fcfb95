# SPDX-License-Identifier: Apache-2.0
"""Two ranks on one machine: one plan for both, the gradients of the job without it."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from on_ranks import run_ranks

pytestmark = pytest.mark.e2e

_plain: dict[str, list[dict[str, Any]]] = {}  # by mode: jobs without Reprise


@pytest.fixture
def two_ranks(
    home: Path, root: Path, agent_library: Path, daemon_binary: Path
) -> Callable[..., list[dict[str, Any]]]:
    def run(
        budget: str,
        mode: str = "same",
        fails: bool = False,
        differently: tuple[dict[str, str], ...] = ({}, {}),
    ) -> list[dict[str, Any]]:
        if budget == "none" and mode in _plain and len(differently) == 2:
            return _plain[mode]
        environment = {
            "PYTHONPATH": str(root / "clients/python/src"),
            "REPRISE_AGENT": str(agent_library),
            "REPRISE_DAEMON": str(daemon_binary),
            "RANKS": str(len(differently)),
        }
        each = tuple({**environment, **changed} for changed in differently)
        found: list[dict[str, Any]] = []
        for rank in run_ranks("ddp_job.py", budget, mode, environments=each, timeout=300):
            if fails:
                assert rank.code != 0
                found.append({"errors": rank.errors})
                continue
            assert rank.code == 0, rank.errors
            found.append({**json.loads(rank.out.splitlines()[-1]), "errors": rank.errors})
        if budget == "none" and len(differently) == 2:
            _plain[mode] = found
        return found

    return run


def test_both_ranks_run_the_same_plan_and_no_bit_changes(two_ranks: Any) -> None:
    plain = two_ranks("none")

    planned = two_ranks("0.6x")

    for before, after in zip(plain, planned, strict=True):
        assert after["losses"] == before["losses"]
        assert after["parameters"] == before["parameters"]
        assert after["planned"] == 9, after["errors"]
        assert after["checks"] > 0
        assert after["failed"] == 0
        assert after["held"]
        # Also with the buckets of DistributedDataParallel, which Python never sees made.
        assert after["measured"] == pytest.approx(after["predicted"], rel=0.02)
        # No rank waits for another one within a forward.
        assert after["meetings"] > 3
        assert after["within_forwards"] == 0
    assert planned[0]["plan"] == planned[1]["plan"] != ""


WITHOUT = {"REPRISE_FAST": "0"}


@pytest.mark.long
@pytest.mark.parametrize("differently", [(WITHOUT, {}), ({}, WITHOUT)], ids=["first", "second"])
def test_one_rank_may_lack_the_native_engine(two_ranks: Any, differently: Any) -> None:
    # Batch norms have shortcuts in the other one, whose statistics it keeps.
    plain = two_ranks("none")

    planned = two_ranks("0.6x", differently=differently)

    for before, after in zip(plain, planned, strict=True):
        assert after["losses"] == before["losses"]
        assert after["planned"] == 9, after["errors"]
        assert after["failed"] == after["mismatched"] == 0
        assert after["shortcuts"] == 0, after["errors"]
    assert planned[0]["plan"] == planned[1]["plan"] != ""


@pytest.mark.long
def test_ranks_may_keep_different_tensors_from_step_to_step(two_ranks: Any) -> None:
    plain = two_ranks("none")

    planned = two_ranks("0.6x", "keeps")

    for before, after in zip(plain, planned, strict=True):
        assert after["losses"] == before["losses"]
        assert after["planned"] == 9, after["errors"]
        assert after["failed"] == after["mismatched"] == 0
        assert after["held"]
    # The batch of the step before goes in the middle of the step there, and is numbered first.
    assert planned[0]["storages"] != planned[1]["storages"]


HOST = {"REPRISE_HOST_BUDGET": "64MiB", "REPRISE_SLOW_TIER": "20GB/s"}


# "keeps": the storages of one rank have other numbers than those of the other.
@pytest.mark.mostly_long(1)
@pytest.mark.parametrize("mode", ["same", "keeps", "shapes"])
def test_ranks_send_the_same_storages_to_host_memory_and_no_bit_changes(
    two_ranks: Any, mode: str
) -> None:
    plain = two_ranks("none", mode)

    planned = two_ranks("0.65x", mode, differently=(HOST, HOST))

    for before, after in zip(plain, planned, strict=True):
        assert after["losses"] == before["losses"]
        assert after["parameters"] == before["parameters"]
        assert after["planned"] >= 9, after["errors"]
        assert after["failed"] == 0
        # One larger step of each rank comes before there is a plan for it.
        assert mode == "shapes" or after["mismatched"] == 0
        assert after["held"]
        assert after["host"] > 0
        assert "go to the host" in after["errors"]
    assert planned[0]["host"] == planned[1]["host"] or mode == "shapes"


@pytest.mark.mostly_long(1)
@pytest.mark.parametrize(
    ("mode", "differently"),
    [("no block", (HOST, HOST)), ("same", (HOST, {})), ("same", ({}, HOST))],
    ids=["no block", "first alone", "second alone"],
)
def test_ranks_recompute_where_one_of_them_has_no_host_memory(
    two_ranks: Any, mode: str, differently: Any
) -> None:
    planned = two_ranks("0.65x", mode, differently=differently)

    for rank in planned:
        assert rank["planned"] >= 8, rank["errors"]
        assert rank["held"]
        assert rank["host"] == 0
        said = "rank 1 cannot run it (host memory: the system gives none). Plans use no host memory"
        assert (said in rank["errors"]) == (mode == "no block"), rank["errors"]


@pytest.mark.long
def test_the_budget_holds_on_the_rank_that_keeps_most(two_ranks: Any) -> None:
    ballast = 4 * (64 << 10)

    planned = two_ranks("1.8MiB", "heavy")

    for rank in planned:
        assert rank["planned"] == 9, rank["errors"]
        assert rank["held"]
    least, most = (rank["predicted"] for rank in planned)
    assert most - least == ballast


RUNS = ({"REPRISE_RUN_ID": "1" * 32}, {"REPRISE_RUN_ID": "2" * 32})


@pytest.mark.long
@pytest.mark.parametrize("differently", [({}, {}), RUNS], ids=["one-run", "a-run-for-each"])
def test_a_rank_beside_whose_steps_more_is_alive_has_a_plan_of_its_own_from_then_on(
    two_ranks: Any, differently: Any
) -> None:
    plain = two_ranks("none", "grows")

    planned = two_ranks("1.8MiB", "grows", differently=differently)

    for before, after in zip(plain, planned, strict=True):
        assert after["losses"] == before["losses"]
        assert after["planned"] == 27, after["errors"]
        assert after["failed"] == after["mismatched"] == 0
        assert after["held"]
    assert planned[0]["plan"] != planned[1]["plan"]
    # It is asked for before the first step that would exceed the budget.
    assert [rank["errors"].count("are alive beside step 7") for rank in planned] == [0, 1]
    assert all("exceeded the budget" not in rank["errors"] for rank in planned)


@pytest.mark.long
def test_ranks_with_different_programs_have_a_plan_each(two_ranks: Any) -> None:
    plain = two_ranks("none", "odd")

    planned = two_ranks("0.6x", "odd")

    for before, after in zip(plain, planned, strict=True):
        assert after["losses"] == before["losses"]
        assert after["planned"] == 9, after["errors"]
        assert after["failed"] == after["mismatched"] == 0
        assert after["held"]
    assert planned[0]["plan"] != planned[1]["plan"]


@pytest.mark.long
def test_each_size_has_one_plan_for_both_ranks_and_a_larger_one_has_its_plan_ready(
    two_ranks: Any,
) -> None:
    plain = two_ranks("none", "shapes")

    planned = two_ranks("0.6x", "shapes")

    for before, after in zip(plain, planned, strict=True):
        assert after["losses"] == before["losses"]
        assert after["parameters"] == before["parameters"]
        # Each rank captures the first step with a larger input, 8 or 9, by itself; they share it
        # when they meet after step 15. Then two sizes are known, and a third is fitted. Inputs of
        # 12, 20 and 24 rows, of which each rank sees another one in each step, come later: none is
        # captured, or runs without a plan. Before, one other large one of each rank peaks above the
        # budget of a plan that is not for it, which is no step of that plan.
        assert after["sizes"] == [rows * 3 * 32 * 32 for rows in (8, 16, 24)], after["errors"]
        assert after["captures"] == 2
        assert after["planned"] == 40 - 2 - 2 - 1
        assert (after["failed"], after["mismatched"]) == (0, 1)
        assert after["used"][2] > 30
        assert after["held"]
        assert after["within_forwards"] == 0


@pytest.mark.long
def test_a_larger_input_that_one_rank_alone_sees_has_a_plan_of_both(two_ranks: Any) -> None:
    plain = two_ranks("none", "larger")

    found = two_ranks("0.6x", "larger")

    for before, after in zip(plain, found, strict=True):
        assert after["losses"] == before["losses"]
        assert after["parameters"] == before["parameters"]
        assert after["sizes"] == [rows * 3 * 32 * 32 for rows in (8, 16, 24)], after["errors"]
        assert after["failed"] == 0
        assert after["held"]
        assert after["within_forwards"] == 0
    # Rank 0 captures the first step alone, rank 1 the first larger one as well.
    assert found[0]["planned"] == 24 - 2 - 1
    assert found[1]["used"][1] > 16


@pytest.mark.long
def test_a_program_that_one_rank_alone_runs_is_not_planned_and_says_so(two_ranks: Any) -> None:
    plain = two_ranks("none", "branches")

    found = two_ranks("0.6x", "branches")

    said = "a different kind of step is not planned: the ranks did not capture the same step"
    for before, after in zip(plain, found, strict=True):
        assert after["losses"] == before["losses"]
        assert after["parameters"] == before["parameters"]
        assert after["rungs"] == 1
        assert after["within_forwards"] == 0
        assert said in after["errors"]


@pytest.mark.long
def test_a_program_that_one_rank_runs_earlier_than_the_other_is_captured_together(
    two_ranks: Any,
) -> None:
    plain = two_ranks("none", "branches-later")

    found = two_ranks("0.6x", "branches-later")

    for before, after in zip(plain, found, strict=True):
        assert after["losses"] == before["losses"]
        assert after["parameters"] == before["parameters"]
        assert after["sizes"] == [rows * 3 * 32 * 32 for rows in (8, 16)], after["errors"]
        assert after["within_forwards"] == 0


@pytest.mark.long
def test_a_rank_that_stops_stops_both_at_their_next_meeting(two_ranks: Any) -> None:
    plain = two_ranks("none", "drop")

    found = two_ranks("0.6x", "drop")

    for before, after in zip(plain, found, strict=True):
        assert after["losses"] == before["losses"]
        assert after["errors"].count("rank 1 has had enough") == 1, [r["errors"] for r in found]
    # Steps 4 to 6 under the plan on rank 1, until the meeting in step 8 on rank 0.
    assert [rank["planned"] for rank in found] == [4, 3]


@pytest.mark.long
def test_a_rank_that_finds_no_other_is_planned_by_itself(two_ranks: Any) -> None:
    plain = two_ranks("none", "alone")

    found = two_ranks("0.6x", "alone")

    for before, after in zip(plain, found, strict=True):
        assert after["losses"] == before["losses"]
    assert [rank["planned"] for rank in found] == [9, 0], found[0]["errors"]
    said = "not all of the 2 ranks came to the end of a step of this model within 2.5 s"
    assert found[0]["errors"].count(said) == 1
    assert "(rank 1 did not); this rank is planned by itself" in found[0]["errors"]


@pytest.mark.long
def test_a_rank_that_stays_away_while_a_plan_is_awaited_is_named_and_the_other_goes_on(
    two_ranks: Any,
) -> None:
    plain = two_ranks("none", "stalls")

    found = two_ranks("0.6x", "stalls")  # rank 1 stays away until rank 0 has trained to its end

    for before, after in zip(plain, found, strict=True):
        assert after["losses"] == before["losses"]
    assert found[0]["planned"] == 9, found[0]["errors"]
    said = (
        "not all of the 2 ranks came to the plan of a step within 5 s of each other (rank 1 did "
        "not); this rank is planned by itself"
    )
    assert found[0]["errors"].count(said) == 1, found[0]["errors"]


@pytest.mark.long
def test_a_rank_whose_capture_takes_long_is_waited_for(two_ranks: Any) -> None:
    found = two_ranks("0.6x", "slow")

    assert [rank["planned"] for rank in found] == [9, 9], found[0]["errors"]
    assert found[0]["plan"] == found[1]["plan"] != ""


@pytest.mark.long
def test_ranks_of_one_program_share_a_plan_among_others_of_another(two_ranks: Any) -> None:
    four: tuple[dict[str, str], ...] = ({}, {}, {}, {})
    plain = two_ranks("none", "odd", differently=four)

    found = two_ranks("0.6x", "odd", differently=four)

    for before, after in zip(plain, found, strict=True):
        assert after["losses"] == before["losses"]
        assert after["parameters"] == before["parameters"]
        assert (after["planned"], after["mismatched"]) == (9, 0), after["errors"]
        assert after["held"]
        assert after["checks"] > after["failed"] == 0
    plans = [rank["plan"] for rank in found]
    assert plans[0] == plans[2] != plans[1] == plans[3]


@pytest.mark.long
def test_a_rank_that_has_ended_is_not_waited_for(two_ranks: Any) -> None:
    plain = two_ranks("none", "leaves")

    found = two_ranks("0.6x", "leaves")

    for before, after in zip(plain, found, strict=True):
        assert after["losses"] == before["losses"]
    # Gone after step 10, and missed in step 16; its plan is still good for the other.
    assert [rank["planned"] for rank in found] == [21, 7]
    assert found[0]["errors"].count("came to the same step within 2.5 s") == 1


@pytest.mark.long
def test_a_rank_that_runs_out_of_memory_makes_the_next_start_ask_for_less(two_ranks: Any) -> None:
    starts = [two_ranks("0.9x")]

    for where in ("oom", "oom-backward"):
        failed = two_ranks("0.9x", where, fails=True)
        starts.append(two_ranks("0.9x"))

        # Under a plan on both, and nothing was tried again on either.
        assert all("It fits in" in rank["errors"] for rank in failed)
        assert failed[1]["errors"].count("memory runs out") == 1
        assert "OutOfMemoryError: too much" in failed[1]["errors"]
        assert "by peer" in failed[0]["errors"]

    for earlier, later in pairwise(starts):
        for was, rank in zip(earlier, later, strict=True):
            assert rank["budget"] < was["budget"]
            assert rank["planned"] == 9
            assert rank["failed"] == 0
            assert rank["losses"] == was["losses"]
    for start, asked in zip(starts[1:], ("90.0 %", "81.0 %"), strict=True):
        assert f"requesting a plan within {asked} of the budget" in start[0]["errors"]
