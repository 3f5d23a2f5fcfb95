# SPDX-License-Identifier: Apache-2.0
"""Reading a plan: what a server sends, and what a hostile one might send."""

import contextlib
import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reprise.base.errors import RepriseError
from reprise.plan import BoundScope, Decision, FreePolicy, Plan

# Three ops and two storages: storage 1 is dropped and op 1 runs again.
PLAN = {
    "planId": "00000000000000ff",
    "graphId": "0123456789abcdef",
    "structure": "s",
    "budget": "0.5x",
    "budgetBytes": "8589934592",
    "feasible": True,
    "peakBytes": "8482560410",
    "basePeakBytes": 15246807040,
    "timeNs": "412000000",
    "baseTimeNs": "370000000",
    "peakOp": 2,
    "overhead": 0.1135,
    "bound": 0.1,
    "boundScope": "BOUND_SCOPE_ORDER",
    "solver": "greedy",
    "solveMs": 12.5,
    "executor": "tape",
    "freePolicy": "FREE_POLICY_PROGRAM",
    "schedule": ["0", "1", "-2", "1", "2", "-1"],
    "decisions": ["DECISION_SAVE", "DECISION_RECOMPUTE"],
    "saved": [0],
    "recomputedOps": [1],
    "sentence": "It fits in 8.0 GiB.",
    "replan": 1,
}


def read(**changes):
    return Plan.from_json(json.dumps({**PLAN, **changes}).encode())


def refusal(text):
    with pytest.raises(RepriseError) as refused:
        Plan.from_json(text)
    return str(refused.value)


def refused(**changes):
    return refusal(json.dumps({**PLAN, **changes}))


class OneSentence(Exception):
    pass


def read_or_sentence(text):
    """Fails if reading gives anything but a plan or one sentence."""
    try:
        return Plan.from_json(text)
    except RepriseError as error:
        sentence = str(error)
    if sentence.startswith("plan") and "\n" not in sentence and len(sentence) < 300:
        raise OneSentence
    raise AssertionError(sentence)


def test_a_plan_is_read_field_by_field():
    plan = read()

    assert plan.plan_id == "00000000000000ff"
    assert plan.plan_number == 255
    assert (plan.budget, plan.budget_bytes) == ("0.5x", 8589934592)
    assert (plan.peak_bytes, plan.base_peak_bytes) == (8482560410, 15246807040)
    assert (plan.time_ns, plan.base_time_ns) == (412000000, 370000000)
    assert plan.schedule == (0, 1, -2, 1, 2, -1)
    assert plan.decisions == (Decision.SAVE, Decision.RECOMPUTE)
    assert (plan.saved, plan.recomputed_ops) == ((0,), (1,))
    assert plan.bound_scope is BoundScope.ORDER
    assert plan.free_policy is FreePolicy.PROGRAM
    assert (plan.executor, plan.replan, plan.infeasible) == ("tape", 1, None)


def test_original_names_and_enum_numbers_are_accepted_too():
    snake = {
        "".join("_" + c.lower() if c.isupper() else c for c in name): value
        for name, value in PLAN.items()
    }
    snake["decisions"] = [1, 2]
    snake["free_policy"] = 2

    assert Plan.from_json(json.dumps(snake)) == read()


def test_absent_and_null_fields_are_defaults_and_unknown_ones_are_ignored():
    plan = read(solver=None, replan=None, fromTheFuture={"a": [1]})

    assert (plan.solver, plan.replan, plan.interrupted) == ("", 0, False)


def test_an_impossible_budget_names_the_op_and_the_smallest_budget():
    plan = read(
        feasible=False,
        schedule=[],
        recomputedOps=[],
        infeasible={
            "smallestBudgetBytes": "3650722201",
            "blockingOp": 17,
            "blockingOpName": "aten.bmm.default",
            "blockingModule": "layers.3.attn",
            "storages": [1, 0],
        },
    )

    assert plan.infeasible is not None
    assert plan.infeasible.smallest_budget_bytes == 3650722201
    assert plan.infeasible.blocking_op_name == "aten.bmm.default"
    assert plan.infeasible.storages == (1, 0)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"planId": "xyz"}, "plan.plan_id: must be 16 lower-case hex digits, got 'xyz'"),
        ({"planId": 255}, "plan.plan_id: must be text, got 255"),
        ({"graphId": ""}, "plan.graph_id: must be 16"),
        ({"peakBytes": "-1"}, "plan.peak_bytes: must not be negative, got '-1'"),
        ({"peakBytes": "1_000"}, "plan.peak_bytes: must be an integer, got '1_000'"),
        ({"peakBytes": 1.5}, "plan.peak_bytes: must be an integer, got 1.5"),
        ({"peakBytes": True}, "plan.peak_bytes: must be an integer, got True"),
        ({"peakBytes": str(2**63)}, "plan.peak_bytes: does not fit in 64 bits"),
        ({"feasible": "yes"}, "plan.feasible: must be true or false, got 'yes'"),
        ({"overhead": "NaN"}, "plan.overhead: must be finite, got nan"),
        ({"overhead": "much"}, "plan.overhead: must be a number, got 'much'"),
        ({"bound": 10**400}, "plan.bound: must be finite"),
        ({"schedule": "0 1 2"}, "plan.schedule: must be a list, got '0 1 2'"),
        ({"schedule": [0, 1, "x"]}, "plan.schedule[2]: must be an integer, got 'x'"),
        ({"schedule": []}, "plan.schedule: is empty in a plan that claims to be feasible"),
        ({"schedule": [0, 1, -4]}, "plan.schedule[2]: frees storage 3, but there are decisions"),
        # To host memory, in a plan without a link to it; of a storage and a kind that are not.
        ({"schedule": [0, 1, -(1 << 24) - 1]}, "plan.schedule[2]: frees storage 16777216, but"),
        ({"schedule": [-(1 << 24) - 4], "link": {}}, "plan.schedule[0]: frees storage 3, but"),
        ({"schedule": [-(5 << 24) - 1], "link": {}}, "plan.schedule[0]: frees storage 83886080"),
        ({"saved": [2]}, "plan.saved[0]: storage 2, but there are decisions for 2"),
        ({"recomputedOps": [7]}, "plan.recomputed_ops[0]: op 7 is not in the schedule"),
        ({"decisions": ["SAVE"]}, "plan.decisions[0]: must be one of DECISION_UNSPECIFIED"),
        ({"decisions": [9, 1]}, "plan.decisions[0]: must be one of"),
        ({"infeasible": []}, "plan.infeasible: must be an object, got []"),
        ({"infeasible": {"blockingOp": -1}}, "plan.infeasible.blocking_op: must not be negative"),
    ],
)
def test_an_invalid_value_is_named_by_its_field(changes, says):
    assert says in refused(**changes)


def test_text_that_is_no_json_object_is_refused_in_one_short_sentence():
    for text in (b"", b"{", b"[1]", b'"x"', b"\xff\xfe", b"[" * 100_000, b"1" * 5000):
        sentence = refusal(text)
        assert sentence.startswith("plan: ")
        assert len(sentence) < 200


def test_a_plan_larger_than_the_limit_is_not_even_parsed():
    assert "more than the 16777216 allowed" in refusal(b" " * ((16 << 20) + 1))


def test_a_plan_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        read().feasible = False  # type: ignore[misc]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@pytest.mark.train
@given(name=st.sampled_from(sorted(PLAN)), value=json_values)
def test_any_value_in_any_field_gives_a_plan_or_a_reprise_error(name, value):
    text = json.dumps({**PLAN, name: value})

    with contextlib.suppress(OneSentence):
        read_or_sentence(text)


@given(st.binary(max_size=200))
def test_any_bytes_give_a_plan_or_a_reprise_error(data):
    with pytest.raises(RepriseError):
        Plan.from_json(data)
