"""A job on two machines, which are network namespaces: one run and one verdict at the centre, and
nothing acknowledged lost when something is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from machines import ADDRESSES, Machine, Network, until

JOB = Path(__file__).with_name("train_nodes.py")
RUN_STATE_FINISHED, RUN_STATE_KILLED = 2, 3  # as in the store
CHUNKS = "SELECT session_id, producer_epoch, seq, body FROM chunks"


@pytest.fixture
def network() -> Iterator[Network]:
    if os.geteuid() != 0:
        pytest.exit("network namespaces need root; run scripts/test deploy as root", returncode=2)
    # A short path: sockets have no room for pytest's.
    with tempfile.TemporaryDirectory(prefix="rp", dir="/tmp") as name:
        network = Network(Path(name))
        try:
            for machine in network.machines.values():
                machine.start()
            yield network
        finally:
            network.close()


class Job:
    """torchrun on two machines, with one rank each."""

    def __init__(self, network: Network, restarts: int = 0) -> None:
        self.folder = network.folder / "job"
        self.folder.mkdir()
        self.parts = []
        for name in ("one", "two"):
            out = (self.folder / f"{name}.log").open("w")
            self.parts.append(
                subprocess.Popen(
                    network[name].command(
                        sys.executable, "-m", "torch.distributed.run", "--nnodes", "2",
                        "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-id", "job",
                        "--rdzv-endpoint", f"{ADDRESSES['one']}:29500", "--local-addr",
                        ADDRESSES[name], "--rdzv-conf", f"is_host={int(name == 'one')}",
                        "--max-restarts", str(restarts), JOB, self.folder,
                    ),
                    env=network[name].environment, stdout=out, stderr=out,
                    # Its ranks are ended with it.
                    start_new_session=True,
                )
            )  # fmt: skip

    def steps(self) -> int:
        files = [self.folder / f"rank-{rank}.steps" for rank in range(2)]
        return min(len(f.read_text().splitlines()) if f.exists() else 0 for f in files)

    def goes_on(self, steps: int = 15) -> None:
        before = self.steps()
        until(
            f"{steps} more steps\n{self.said()}",
            lambda: self.steps() >= before + steps or not self.alive(),
        )
        assert self.alive(), self.said()

    def alive(self) -> bool:
        return all(part.poll() is None for part in self.parts)

    def said(self) -> str:
        return "\n".join(file.read_text() for file in self.folder.glob("*.log"))

    def end(self) -> None:
        (self.folder / "end").touch()
        for part in self.parts:
            assert part.wait(timeout=240) == 0, self.said()

    def close(self) -> None:
        for part in self.parts:
            if part.poll() is None:
                os.killpg(part.pid, signal.SIGKILL)
                part.wait()


@pytest.fixture
def job(network: Network, request: pytest.FixtureRequest) -> Iterator[Job]:
    job = Job(network, getattr(request, "param", 0))
    yield job
    job.close()


def behind(machine: Machine) -> dict[str, Any]:
    return dict(machine.asks("status")["forward"])


def arrives(network: Network) -> None:
    """Waits until the centre has all; then what it has is what the machines have, and once."""

    def has_all() -> bool:
        said = [behind(network[name]) for name in ("one", "two")]
        due = ("chunks", "sessions", "runs", "trouble")
        ended = network["centre"].rows("SELECT count(*) FROM runs WHERE ended_ns = 0") == [(0,)]
        return (
            ended
            and not any(int(one.get(k) or 0) for one in said for k in due[:3])
            and not any(one.get("trouble") for one in said)
        )

    until("the centre has all", has_all)
    here = [row for name in ("one", "two") for row in network[name].rows(CHUNKS)]
    there = network["centre"].rows(CHUNKS)
    assert len(there) == len(here) > 0
    assert set(there) == set(here)
    assert network["centre"].rows("SELECT count(*) FROM lost") == [(0,)]
    for table in ("steps", "checks", "plan_states"):
        count = f"SELECT count(*) FROM {table}"
        assert network["centre"].rows(count)[0][0] == sum(
            network[name].rows(count)[0][0] for name in ("one", "two")
        )


def test_two_machines_are_one_run_with_one_verdict_whoever_is_killed(
    network: Network, job: Job
) -> None:
    job.goes_on(30)

    network["centre"].kill()
    job.goes_on()
    until("machine one says so", lambda: "cannot be reached" in behind(network["one"])["trouble"])
    network["centre"].start()
    job.goes_on()
    for name in ("two", "one"):
        network[name].kill()
        job.goes_on()
        network[name].start()
        job.goes_on()
    job.end()
    arrives(network)

    centre = network["centre"]
    assert centre.rows("SELECT count(*) FROM runs") == [(1,)]
    assert sorted(centre.rows("SELECT rank, host <> '' FROM sessions")) == [(0, 1), (1, 1)]
    run = network.asks_centre("show", "latest")
    verdict = run["run"]["verdict"] if "run" in run else run["verdict"]
    # Of both machines' steps and checks.
    planned = "SELECT count(*) FROM steps WHERE planned = 1"
    parts = [network[name].rows(planned)[0][0] for name in ("one", "two")]
    assert min(parts) > 30
    assert verdict["planned_steps"] == sum(parts)
    assert verdict["checks"] == centre.rows("SELECT count(*) FROM checks")[0][0] > 0
    assert verdict["values_equal"], json.dumps(verdict)
    assert verdict["sentence"].startswith("It "), json.dumps(verdict)
    # Each machine has its own part of it, under the same id.
    ids = {machine.rows("SELECT run_id FROM runs")[0] for machine in network.machines.values()}
    assert len(ids) == 1


@pytest.mark.parametrize("job", [1], indirect=True)
def test_a_rank_that_is_killed_takes_nothing_with_it_and_training_goes_on(
    network: Network, job: Job
) -> None:
    job.goes_on(30)
    os.kill(int((job.folder / "rank-1.pid").read_text()), signal.SIGKILL)
    # torchrun starts both ranks again.
    job.goes_on(40)
    job.end()
    arrives(network)

    centre = network["centre"]
    runs = centre.rows("SELECT run_id FROM runs ORDER BY started_ns")
    assert len(runs) == 2, "each attempt is a run"
    # One rank was killed, the other one failed because of that; the second attempt ended well.
    states = dict(centre.rows("SELECT run_id, state FROM runs"))
    here = [dict(network[name].rows("SELECT run_id, state FROM runs")) for name in ("one", "two")]
    assert states == {run: max(one[run] for one in here) for run in states}
    assert here[1][runs[0][0]] == RUN_STATE_KILLED
    assert states[runs[1][0]] == RUN_STATE_FINISHED
