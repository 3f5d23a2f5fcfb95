# SPDX-License-Identifier: Apache-2.0
"""The headline figure: which ways run, how rows are compared, and what is said of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench" / "headline"))
from headline import one, parsed, row_of
from summary import is_measured, summary
from ways import bits, budget, out_of_memory, wanted

Row = dict[str, Any]
ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20

ABOUT: Row = {
    "date": "2030-01-01",
    "command": "python headline.py --device cuda",
    "device": "cuda",
    "steps": 2,
    "card": "Some Card",
    "card_bytes": 8 << 30,
    "torch": "9.9",
    "driver": "1.2.3",
    "tf32_convolutions": True,
}


def row(way: str, peak_mib: int, step_ms: int, **more: Any) -> Row:
    """A row as a GPU gives it: 10 MiB are static, plain takes 100 ms."""
    sizes = ("allocated", "reserved", "fresh_reserved", "driver_before", "driver")
    return {
        "network": "gpt",
        "way": way,
        "blocks": 12,
        "peak_bytes": peak_mib * MIB,
        "static_bytes": 10 * MIB,
        **{f"{kind}_bytes": 2 * peak_mib * MIB for kind in sizes},
        "step_ns": step_ms * 10**6,
        "steps_ns": [step_ms * 10**6] * 2,
        "plain_ns": 100 * 10**6,
        "first_steps_s": 0.6,
        "losses": ["0x1p+1", "0x1p+0"],
        "weights": "aa",
        "buffers": "bb",
        "bits": "equal",
    } | more


def plan(way: str, peak_mib: int, step_ms: int, **more: Any) -> Row:
    """A row of Reprise, announced to add 5 % to its own base of 90 ms."""
    return row(way, peak_mib, step_ms) | {
        "budget_bytes": peak_mib * MIB,
        "validated": True,
        "planned_steps": 5,
        "planned_in_series": 2,
        "over_budget_steps": 0,
        "checks": 1,
        "failed_checks": 0,
        "predicted_peak_bytes": peak_mib * MIB,
        "base_step_ns": 90 * 10**6,
        "predicted_step_ns": 945 * 10**5,
        "first_planned_step": 6,
        "planned_after_s": 1.25,
        "in_python": "",
        "ops": 321,
        "sentence": "It fits.",
        **more,
    }


def failed(way: str, error: str) -> Row:
    return {"network": "gpt", "way": way, "blocks": 12, "error": error}


def test_the_results_that_are_kept_are_what_their_rows_say() -> None:
    kept = ROOT / "bench/results/headline.jsonl"
    about, *rows = map(json.loads, kept.read_text().splitlines())

    assert summary(about, rows) == kept.with_suffix(".md").read_text()


@pytest.mark.parametrize(
    ("asked", "device", "ways"),
    [
        (["reprise@tenth"], "cpu", ["plain", "reprise@tenth"]),
        (["reprise@sqrt", "block"], "cpu", ["plain", "sqrt", "block", "reprise@sqrt"]),
        (["block"], "cuda", ["plain", "plain-again", "block"]),
    ],
)
def test_a_way_brings_those_it_needs(asked: list[str], device: str, ways: list[str]) -> None:
    assert wanted(asked, device) == ways


def test_without_a_choice_the_cpu_runs_each_way_once() -> None:
    assert len(wanted(None, "cpu")) == 7
    assert set(wanted(None, "cuda")) - set(wanted(None, "cpu")) == {"plain-again"}


def test_budgets_follow_from_the_rows_so_far() -> None:
    found = {"plain": row("plain", 110, 100), "sqrt": failed("sqrt", "out of memory")}

    assert budget("reprise@tenth", found) == 20 * MIB  # 10 static, 10 of 100
    assert budget("reprise@sqrt", found) is None
    assert budget("reprise@block", found) is None


def test_bits_are_compared_with_plain_where_plain_equals_itself() -> None:
    plain = row("plain", 110, 100)
    other = row("sqrt", 60, 130, losses=["0x1p+1", "0x1p+2"], buffers="cc")
    found = {"plain": plain, "plain-again": row("plain-again", 110, 101), "sqrt": other}

    assert bits("plain", found) == ""
    assert bits("plain-again", found) == "equal"
    assert bits("sqrt", found) == "losses from step 2, buffers differ"


def test_nothing_is_claimed_of_bits_where_plain_differs_from_itself() -> None:
    again = row("plain-again", 110, 101, weights="dd")
    found = {
        "plain": row("plain", 110, 100, bits=""),
        "plain-again": again,
        "sqrt": row("sqrt", 60, 130),
    }
    again["bits"] = bits("plain-again", found)
    found["sqrt"]["bits"] = bits("sqrt", found)

    text = summary(ABOUT, list(found.values()))

    assert again["bits"] == "weights differ"
    assert "1.0% apart, weights differ; so nothing is claimed of the bits of other ways." in text
    assert "| not compared: plain differs from itself |" in text
    assert "equal" not in text


def test_a_summary_of_a_gpu_names_card_noise_and_what_was_announced() -> None:
    rows = [
        row("plain", 110, 100, bits=""),
        row("plain-again", 110, 102),
        row("sqrt", 60, 130),
        plan("reprise@sqrt", 60, 110),
        plan("reprise@tenth", 20, 140, in_python="no compiler"),
    ]

    text = summary(ABOUT, rows)

    assert "Some Card (8.0 GiB), torch 9.9, driver 1.2.3" in text
    assert "CPU" not in text
    assert "plain twice: step times 2.0% apart, losses, weights and buffers equal." in text
    assert "10.0 times less activation memory than plain: Reprise adds 40.0%" in text
    assert "12 blocks 30.0% and 10.0% (67% less)" in text
    # requested, static, allocated, reserved, anew, device before and after, time, added, bits
    cells = "60.0 | 10.0 | 120.0 | 120.0 | 120.0 | 120.0 | 120.0 | 130.00 | +30.0% | equal |"
    assert f"| gpt | 12 | sqrt | {cells}" in text
    announced = "60.0 | 60.0 | 60.0 | +5.0% | +10.0% | 6 | 1.25 | 0.60 | 321 | 5 | 1 | native | yes"
    assert f"| gpt | 12 | reprise@sqrt | {announced} |" in text
    assert "| Python: no compiler |" in text


def test_where_plain_runs_out_of_memory_the_other_rows_stand_without_added_time() -> None:
    sqrt, ours = row("sqrt", 60, 130), plan("reprise@sqrt", 60, 110)
    del sqrt["plain_ns"], ours["plain_ns"]
    said = out_of_memory("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has", 2)
    rows = [failed("plain", said), failed("plain-again", "ended by SIGKILL: no message")]

    text = summary(ABOUT, [*rows, sqrt, ours])

    assert "| gpt | 12 | plain | out of memory in step 2, asked for 2.00 GiB |" in text
    assert "| 130.00 | \N{EN DASH} | equal |" in text
    assert "time added" not in text
    assert "no plan fits" not in text


def test_a_series_that_was_not_all_planned_is_no_measurement_of_a_plan() -> None:
    half = plan("reprise@sqrt", 60, 110, planned_in_series=1)

    text = summary(ABOUT, [row("plain", 110, 100), row("sqrt", 60, 130), half])

    assert not is_measured(half)
    assert "+10.0% (1 of 2 steps planned)" in text
    assert "time added" not in text


def test_an_error_of_another_library_says_no_size() -> None:
    words = "out of memory before the first step, asked for a size that torch does not say"
    assert out_of_memory("CUBLAS_STATUS_ALLOC_FAILED", 0) == words


def ended(code: int, stdout: str, stderr: str) -> Row:
    return row_of(subprocess.CompletedProcess([], code, stdout, stderr), "cuda")


def test_a_process_is_a_row_however_it_ends() -> None:
    said = "reprise: it fits"

    assert ended(0, '{"peak_bytes": 1}\n', said) == {"peak_bytes": 1, "said": [said]}
    assert ended(-9, "", "") == {"error": "ended by SIGKILL: no message"}
    assert ended(1, "", "Traceback\nValueError: no such network\n") == {
        "error": "ValueError: no such network"
    }


def test_a_way_that_takes_longer_than_its_limit_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["headline.py", "--limit", "0.01"])

    assert one("gpt", "plain", 3, parsed()) == {"error": "ended after 0.01 s (--limit)"}
