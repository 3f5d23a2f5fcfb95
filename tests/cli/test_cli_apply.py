# SPDX-License-Identifier: Apache-2.0
"""reprise apply: another budget for a job that runs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cli_program import ROOT, Reprise
from serving import ask, until

JOB = [sys.executable, str(Path(__file__).with_name("job.py"))]
Start = Callable[[str], subprocess.Popen[str]]


@pytest.fixture
def job(reprise: Reprise) -> Iterator[Start]:
    agent = reprise.program.parent.parent / "lib" / "libreprise_agent.so"
    assert agent.is_file(), f"{agent}: not built"
    reprise.environment["REPRISE_AGENT"] = str(agent)
    reprise.environment["PYTHONPATH"] = str(ROOT / "clients" / "python" / "src")
    started: list[subprocess.Popen[str]] = []

    def start(kind: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*JOB, kind], env=reprise.environment, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0


def test_a_running_job_is_sent_a_plan_within_another_budget(
    reprise: Reprise, server: subprocess.Popen[str], job: Start, tmp_path: Path
) -> None:
    job("takes")
    until(
        "its plan is stored",
        30,
        lambda: ask(reprise, "Query/GetRun", runId="latest").get("planId"),
    )
    before = ask(reprise, "Query/GetRun", runId="latest")["planId"]

    result = reprise("apply", "latest", "--budget", "0.9x")

    assert result.code == 0, result
    assert result.out.startswith("It fits in"), result
    assert "  sent; the job takes it between two steps" in result.out
    assert ask(reprise, "Query/GetRun", runId="latest")["planId"] != before
    (line,) = re.findall("apply-budget run .*", (tmp_path / "serve.log").read_text())
    assert re.search(", plan .*: ok: ", line), line


def test_the_log_names_the_user_and_the_process_of_a_job(
    reprise: Reprise, server: subprocess.Popen[str], job: Start, tmp_path: Path
) -> None:
    process = job("takes")

    def changes() -> list[tuple[str, str, str]]:
        log = (tmp_path / "serve.log").read_text()
        return re.findall(r" info (.+) \((.+)\): (\w+) run ", log)

    until("it applied a plan", 30, lambda: "apply" in {action for _, _, action in changes()})

    assert {action for _, _, action in changes()} == {"session", "graph", "plan", "apply"}
    assert {(who, peer) for who, peer, _ in changes()} == {
        (f"uid {os.getuid()}", f"agent socket, pid {process.pid}")
    }


def test_a_budget_that_nothing_fits_in_is_not_sent(
    reprise: Reprise, server: subprocess.Popen[str], job: Start
) -> None:
    job("takes")
    until(
        "its plan is stored",
        30,
        lambda: ask(reprise, "Query/GetRun", runId="latest").get("planId"),
    )
    before = ask(reprise, "Query/GetRun", runId="latest")["planId"]

    result = reprise("apply", "latest", "--budget", "1010B")

    assert result.code == 3, result
    assert "nothing was sent; the job goes on as before" in result.out
    assert ask(reprise, "Query/GetRun", runId="latest")["planId"] == before


def test_a_job_that_takes_no_plan_is_named_with_the_command_that_starts_it_again(
    reprise: Reprise, server: subprocess.Popen[str], job: Start
) -> None:
    process = job("steps")

    running = reprise("apply", "latest", "--budget", "0.5x")
    process.terminate()
    assert process.wait(timeout=30) == 0
    until(
        "its end is stored",
        30,
        lambda: ask(reprise, "Query/GetRun", runId="latest")["state"] != "RUN_STATE_RUNNING",
    )
    over = reprise("apply", "latest", "--budget", "0.5x")

    assert running.code == 1, running
    assert "takes no plan while it runs" in running.err
    assert "reprise run --budget 0.5x -- python train.py" in running.err
    assert over.code == 1, over
    assert "has ended: start it again with this budget" in over.err


def test_wrong_words_are_refused_before_anything_is_asked(reprise: Reprise) -> None:
    assert "8G" in reprise("apply", "latest", "--budget", "8G").err
    assert reprise("apply", "latest").code == 2
    assert reprise("apply", "latest", "--budget", "0.5x").code == 4
