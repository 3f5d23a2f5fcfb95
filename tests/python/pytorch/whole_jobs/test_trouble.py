# SPDX-License-Identifier: Apache-2.0
"""Whatever happens to the daemon, the job trains on, says so once, and no bit changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.e2e

PROGRAM = """
import json, os, signal, sys, torch, reprise
from reprise.agent.agent import Agent
from torch import nn
waits, wait = [], Agent.wait_plan
Agent.wait_plan = lambda agent, asked, *how: (waits.append(asked), wait(agent, asked, *how))[1]
torch.manual_seed(0); torch.set_num_threads(1)
def mlp(): return nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64), nn.Dropout(.1))
model = nn.Sequential(*[mlp() for _ in range(4)])
reprise.auto(model, budget="0.75x", verify_every=4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(24):
    if str(step) == sys.argv[1]:
        about = os.path.join(os.environ["XDG_RUNTIME_DIR"], "reprise", "server.json")
        daemon = json.load(open(about))["pid"]
        os.kill(daemon, getattr(signal, sys.argv[2]))
    optimizer.zero_grad()
    loss = model(torch.randn(128 if step < 12 else 160, 64)).square().mean()
    loss.backward()
    optimizer.step()
    print(loss.item().hex())
report = reprise.report(model)
print(*waits, file=sys.stderr)
print(report.planned_steps, report.failed_checks, report.stage, file=sys.stderr)
if sys.argv[2] == "SIGSTOP":
    os.kill(daemon, signal.SIGKILL)
"""


@pytest.fixture
def job(
    python: Callable[..., Any], home: Path, agent_library: Path, daemon_binary: Path
) -> Callable[..., tuple[list[str], list[str], int, list[str]]]:
    """Runs a job; returns its losses, log lines, number of planned steps, and the requests that it
    waited for. Asserts that no planned step was wrong, and that the report describes the end
    correctly."""

    def run(
        killed_at: int = -1, by: str = "SIGKILL", **environment: str
    ) -> tuple[list[str], list[str], int, list[str]]:
        built = {"REPRISE_AGENT": str(agent_library), "REPRISE_DAEMON": str(daemon_binary)}
        done = python("-c", PROGRAM, str(killed_at), by, **(built | environment))
        assert done.returncode == 0, done.stderr
        *said, waits, counts = done.stderr.splitlines()
        planned, failed, stage = counts.split(maxsplit=2)
        assert failed == "0"
        assert (stage == "training under a plan") == (int(planned) > 0), (stage, said)
        return done.stdout.split(), said, int(planned), waits.split()

    return run


@pytest.fixture(scope="module")
def plain(python: Callable[..., Any]) -> list[str]:
    """The losses of the job without Reprise."""
    done = python("-c", PROGRAM, "-1", "", REPRISE_DISABLE="1")
    assert done.returncode == 0, done.stderr
    return done.stdout.split()  # type: ignore[no-any-return]


@pytest.mark.long
def test_a_killed_server_does_not_affect_the_job(job: Any, plain: list[str]) -> None:
    for killed_at, least in ((2, 0), (9, 6)):  # before there is a plan, and under one
        losses, said, planned, _ = job(killed_at)

        assert losses == plain
        assert planned >= least
        assert len(said) == len(set(said)), said
        if not planned:
            line = (
                "the daemon is gone: signal 9 ended it; training continues without a plan "
                "until one arrives"
            )
            assert said.count(f"reprise: {line}") == 1, said


@pytest.mark.long
def test_a_server_that_is_stopped_is_waited_for_once_a_request(job: Any, plain: list[str]) -> None:
    losses, said, planned, waits = job(2, "SIGSTOP", REPRISE_PLAN_TIMEOUT="2")

    assert losses == plain
    assert planned == 0
    assert len(waits) == len(set(waits)) > 0, (waits, said)
    assert len(said) == len(set(said)), said


@pytest.mark.long
def test_a_disk_that_is_full_stops_no_job(
    job: Any, plain: list[str], daemon_binary: Path, tmp_path: Path
) -> None:
    # No file of the daemon's may grow beyond 8 KiB; writing more is an error, not a signal.
    full = tmp_path / "reprised"
    full.write_text(f'#!/bin/bash\ntrap \'\' XFSZ\nulimit -f 8\nexec "{daemon_binary}" "$@"\n')
    full.chmod(0o755)

    losses, said, *_ = job(REPRISE_DAEMON=str(full))

    assert losses == plain
    assert sum("without a plan" in line for line in said) == 1, said


@pytest.mark.long
def test_a_daemon_that_speaks_another_version_is_left_alone(
    job: Any, plain: list[str], collector: Callable[..., Any]
) -> None:
    later = collector(None, layout=99)

    losses, said, planned, _ = job(REPRISE_SOCKET=str(later.path), REPRISE_PLAN_TIMEOUT="5")

    assert losses == plain
    assert planned == 0
    assert sum("without a plan" in line for line in said) == 1, said
    assert any("what answers at the socket is no collector" in line for line in said), said
