# SPDX-License-Identifier: Apache-2.0
"""The verdict of a process is what the server makes of the same reports, letter for letter."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from reprise.agent import abi
from reprise.base.units import format_duration, format_percent
from reprise.plan import Plan
from reprise.plan.verdict import Tally, Verdict, measured_part

_FIXTURE = Path(__file__).resolve().parents[2] / "fixtures" / "verdicts.json"
CASES: list[dict[str, Any]] = json.loads(_FIXTURE.read_text())["cases"]


def _tell(tally: Tally, report: dict[str, Any], budgets: dict[str, int]) -> None:
    (kind, fields), *_ = report.items()
    plan_id = fields.get("plan_id", "")
    if kind == "step":
        tally.step(**fields, budget_bytes=budgets.get(plan_id, 0))
    elif kind == "check":
        tally.check(
            fields["step"],
            checked=fields["checked"],
            differing=fields["differing"],
            equal=fields["bitwise"],
            values=fields.get("values", False),
        )
    elif fields["state"] == abi.PLAN_APPLIED:
        tally.applied(plan_id, fields.get("own_ns", 0), fields.get("peak_bytes", 0))
    elif fields["state"] in (abi.PLAN_REFUSED, abi.PLAN_NONE):
        tally.refused(plan_id, fields["why"])
    elif fields["state"] == abi.PLAN_UNCHECKED:
        tally.unchecked(fields["why"])
    elif fields["state"] == abi.PLAN_LEFT:
        tally.left(fields["why"])
    elif fields["state"] == abi.PLAN_OTHER_LOAD:
        tally.other_load(fields["why"])
    elif fields["why"]:
        tally.withdrawn(fields["why"])


def _name(case: dict[str, Any]) -> str:
    return str(case["name"])


@pytest.mark.parametrize("case", [c for c in CASES if "state" not in c], ids=_name)
def test_the_same_reports_give_the_same_verdict_as_on_the_server(case: dict[str, Any]) -> None:
    plan = Plan.from_json(json.dumps(case["plan"])) if case["plan"].get("feasible") else None
    refusal = "" if plan is not None else case["plan"].get("sentence", "")
    budgets = case.get("budgets", {})
    if plan is not None:
        budgets = {plan.plan_id: plan.budget_bytes} | budgets
    tally = Tally()

    for report in case["reports"]:
        _tell(tally, report, budgets)
    step_ns = case.get("measured_step_ns", 0)
    verdict = tally.verdict(plan, step_ns, refusal)
    # What the log says of a plan that is applied is how the verdict begins.
    assert plan is None or case["sentence"].startswith(tally.prediction(plan, step_ns))

    expected = case["expect"]
    if plan is None:  # the server stores what it refused; a job hears its sentence
        expected = {k: v for k, v in expected.items() if k != "budget_bytes"}
    assert verdict == Verdict(**expected, sentence=case["sentence"])


@pytest.mark.parametrize("case", [c for c in CASES if c["expect"].get("feasible")], ids=_name)
def test_the_sentence_predicts_the_step_of_the_table(case: dict[str, Any]) -> None:
    expected = case["expect"]
    step_ns = expected["predicted_step_ns"]
    added = format_percent(step_ns / expected["base_step_ns"] - 1, sign=True)

    assert f"   Step {format_duration(step_ns)} ({added})" in case["sentence"]


def test_the_cases_reach_every_fact_of_a_verdict() -> None:
    reached = {name for case in CASES for name in case["expect"]} | {"sentence"}

    assert {field.name for field in dataclasses.fields(Verdict)} <= reached


def test_the_log_repeats_the_sentence_from_its_measured_part_on() -> None:
    case = next(c for c in CASES if c["name"] == "plain steps were above the budget")

    said = measured_part(case["sentence"])

    assert said.startswith("measured 7.8 GiB (-1.0 %), 415 ms")
    assert said.endswith("6.2 GiB over the budget.")
    assert measured_part(case["plan"]["sentence"]) == ""
