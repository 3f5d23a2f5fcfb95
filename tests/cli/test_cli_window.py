# SPDX-License-Identifier: Apache-2.0
"""reprise window: a few steps of a running job, recorded on demand."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_program import ROOT, Reprise
from serving import ask, until

JOB = [sys.executable, str(Path(__file__).with_name("job.py"))]
Start = Callable[[], subprocess.Popen[str]]


@pytest.fixture
def job(reprise: Reprise) -> Iterator[Start]:
    agent = reprise.program.parent.parent / "lib" / "libreprise_agent.so"
    assert agent.is_file(), f"{agent}: not built"
    reprise.environment["REPRISE_AGENT"] = str(agent)
    reprise.environment["PYTHONPATH"] = str(ROOT / "clients" / "python" / "src")
    started: list[subprocess.Popen[str]] = []

    def start() -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*JOB, "steps"], env=reprise.environment, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in started:
        process.terminate()
        assert process.wait(timeout=30) == 0


def steps(reprise: Reprise) -> int:
    """Of the newest run; 0 where the job has not come to the server yet."""
    runs = ask(reprise, "Query/ListRuns", limit=1).get("runs", [])
    return int(runs[0].get("steps", 0)) if runs else 0


def test_the_steps_that_were_asked_for_are_recorded(
    reprise: Reprise,
    server: subprocess.Popen[str],
    job: Start,
) -> None:
    job()

    result = reprise("window", "latest", "--steps", "3", "--json")

    assert result.code == 0, result
    window = result.json()
    assert window["state"] == "WINDOW_STATE_DONE"
    assert window["recorded"] == 3
    assert window["last_step"] == window["first_step"] + 2
    assert "kernels are not recorded" in window["why"]  # there is no GPU in a test
    timeline = ask(reprise, "Query/GetTimeline", runId="latest")
    assert int(timeline["measuredBase"]["peakBytes"]) == 1_004_096

    shown = reprise("show", "latest")
    assert f"recorded 3 steps, {window['first_step']} to {window['last_step']}" in shown.out
    assert "  cupti               no: " in shown.out
    assert "AT THE MEASURED PEAK" in shown.out


def test_a_window_waits_for_its_step(
    reprise: Reprise,
    server: subprocess.Popen[str],
    job: Start,
) -> None:
    job()
    until("the job takes steps", 30, lambda: steps(reprise) > 0)
    at = steps(reprise) + 40

    result = reprise("window", "latest", "-n", "2", "--at", str(at), "--json")

    assert result.code == 0, result
    assert result.json()["first_step"] >= at
    assert result.json()["recorded"] == 2


def test_one_window_at_a_time(
    reprise: Reprise,
    server: subprocess.Popen[str],
    job: Start,
) -> None:
    job()
    until("the job takes steps", 30, lambda: steps(reprise) > 0)
    far = str(steps(reprise) + 1_000_000)

    asked = reprise("window", "latest", "--at", far, "--no-wait")

    assert asked.code == 0, asked
    assert asked.out == f"asked for 3 steps from step {far}\n"
    assert "a window of 3 steps is under way" in reprise.fails(1, "window", "latest")


def test_what_cannot_be_recorded_is_refused_with_its_reason(
    reprise: Reprise,
    server: subprocess.Popen[str],
    job: Start,
) -> None:
    assert "run" in reprise.fails(1, "window", "no-such-run")
    process = job()
    until("the job takes steps", 30, lambda: steps(reprise) > 1)
    assert "has passed" in reprise.fails(1, "window", "latest", "--at", "1")
    reprise.fails(2, "window", "latest", "--steps", "0")
    reprise.fails(2, "window", "latest", "--steps", "1001")
    far = str(steps(reprise) + 1_000_000)
    assert reprise("window", "latest", "--at", far, "--no-wait").code == 0

    process.terminate()
    process.wait(timeout=30)

    def state() -> Any:
        return ask(reprise, "Query/GetRun", runId="latest").get("state")

    until("the run has ended", 30, lambda: state() == "RUN_STATE_FINISHED")
    window = ask(reprise, "Query/GetRun", runId="latest")["window"]
    assert window["state"] == "WINDOW_STATE_REFUSED"
    assert window["why"] == "the job ended after 0 of 3 steps"
    assert "has ended" in reprise.fails(1, "window", "latest")


def test_without_a_server_it_exits_with_4(reprise: Reprise) -> None:
    assert "no server" in reprise.fails(4, "window", "latest")
