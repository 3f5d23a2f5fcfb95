# SPDX-License-Identifier: Apache-2.0
"""The last ops and the memory of jobs that were killed, and what filled the memory of those that
ran out of it: real jobs, real kills, and what the server and the command show afterwards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.e2e

# Six layers; the one in the middle of the model stops when its file is there, and says so.
JOB = """
import os, sys, time, torch
from torch import nn
import reprise
torch.manual_seed(0); torch.set_num_threads(1)
where, kind = sys.argv[1], sys.argv[2]
state = dict(step=0)
stop_at = int(sys.argv[3])
def stop():
    print(f"stopped {state['step']}", flush=True)
    time.sleep(600)
class Stop(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        if where == "forward" and state["step"] == stop_at: stop()
        return x.view_as(x)
    @staticmethod
    def backward(ctx, g):
        if where == "backward" and state["step"] == stop_at: stop()
        return g
class Gate(nn.Module):
    def forward(self, x): return Stop.apply(x)
class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(128, 512), nn.Linear(512, 128)
    def forward(self, x): return self.down(torch.nn.functional.gelu(self.up(x)))
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Layer() for _ in range(6)])
        self.gate = Gate()
    def forward(self, x):
        for number, layer in enumerate(self.layers):
            if number == 3: x = self.gate(x)
            x = layer(x)
        return x
model = Net()
armed = reprise.auto(model, budget=None if kind == "plain" else "0.6x", verify_every=1000)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(1, 40):
    state["step"] = step
    x = torch.randn(256, 128)
    optimizer.zero_grad()
    armed(x).square().mean().backward()
    if where == "between" and step == stop_at:
        optimizer.step()
        stop()
    optimizer.step()
"""


@pytest.fixture
def show(
    daemon_binary: Path, reprised: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., str]:
    """`reprise show` of the newest run, with a daemon that stays."""
    monkeypatch.setenv("REPRISE_SOCKET", str(reprised().socket))
    command = daemon_binary.with_name("reprise")

    def run(*flags: str) -> str:
        done = subprocess.run(
            [command, "show", "latest", *flags], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture
def kill_in(
    root: Path, agent_library: Path, show: Any, tmp_path: Path, until: Callable[..., None]
) -> Callable[..., dict[str, Any]]:
    """Runs the job until it stands still, kills it, and returns its newest moment."""

    def run(where: str, kind: str, step: int) -> Any:
        script = tmp_path / "job.py"
        script.write_text(JOB)
        environment = {
            **os.environ,
            "PYTHONPATH": str(root / "clients/python/src"),
            "REPRISE_AGENT": str(agent_library),
            "REPRISE_FIRST": "plain",  # the steps are counted
        }
        job = subprocess.Popen(
            [sys.executable, script, where, kind, str(step)],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert job.stdout is not None
            assert job.stdout.readline() == f"stopped {step}\n"
        finally:
            job.send_signal(signal.SIGKILL)
            job.wait()
        until(lambda: json.loads(show("--json"))["state"] == "RUN_STATE_KILLED")
        return json.loads(show("--json"))["moments"][0]

    return run


@pytest.mark.long
def test_a_step_killed_in_its_forward_shows_the_op_it_was_at_and_what_was_alive(
    kill_in: Any, show: Any
) -> None:
    shown = kill_in("forward", "planned", 8)

    moment = shown["moment"]
    assert (moment["reason"], moment["step"]) == ("MOMENT_REASON_KILLED", 8)
    assert moment["phase"] == "PHASE_FORWARD"
    last = shown["ops"][-1]
    assert last["under_way"]
    # The gate's own op is a view; the last one that computes is the third layer's.
    computed = [op for op in shown["ops"] if "addmm" in op["name"]]
    assert computed[-1]["module"] == "layers.2.down"
    assert not any(
        op["module"].startswith(("layers.3", "layers.4", "layers.5")) for op in shown["ops"]
    )
    modules = {held["module"] for held in moment["storages"]}
    assert any(module.startswith("layers.2") for module in modules)
    assert not any(module.startswith(("layers.3", "layers.4")) for module in modules)
    sizes = [held["bytes"] for held in moment["storages"]]
    assert sizes == sorted(sizes, reverse=True)
    assert sum(sizes) + moment["more_bytes"] == moment["live_bytes"]
    assert "along the plan" in shown["source"]

    text = show()
    assert shown["sentence"] in text
    assert "THE LAST OPS" in text
    assert "WHAT WAS ALIVE" in text


def test_a_step_killed_in_its_backward_shows_what_the_plan_had_replayed(kill_in: Any) -> None:
    shown = kill_in("backward", "planned", 9)

    assert (shown["moment"]["step"], shown["moment"]["phase"]) == (9, "PHASE_BACKWARD")
    last = shown["ops"][-1]
    assert last["phase"] == "PHASE_BACKWARD"
    # The gate's gradient comes after that of layer 3 and before that of layer 2.
    assert any(op["again"] for op in shown["ops"])
    backward = [op for op in shown["ops"] if op["phase"] == "PHASE_BACKWARD"]
    assert not any(op["module"].startswith(("layers.0", "layers.1")) for op in backward)


def test_a_traced_step_is_shown_by_its_records(kill_in: Any, show: Any) -> None:
    # Two plain steps, one that is captured, and of those under a plan the second is traced.
    shown = kill_in("forward", "planned", 5)

    assert "traced" in shown["source"]
    assert shown["moment"]["step"] == 5
    names = [op["name"] for op in shown["ops"]]
    assert "aten.addmm.default" in names
    assert any(held["made_by"] == "aten.addmm.default" for held in shown["moment"]["storages"])
    live = shown["moment"]["live_bytes"]
    assert sum(held["bytes"] for held in shown["moment"]["storages"]) <= live


def test_a_job_killed_between_two_steps_had_no_op_running(kill_in: Any) -> None:
    shown = kill_in("between", "planned", 8)

    assert shown["sentence"].startswith("Killed after step 8")


def test_a_job_without_a_plan_shows_step_and_phase_and_what_is_missing(
    kill_in: Any,
) -> None:
    shown = kill_in("backward", "plain", 4)

    assert shown["sentence"] == "Killed in step 4, in the backward."
    assert "reprise window" in shown["source"]


OUT_OF_MEMORY = """
import os, signal, sys, torch
from torch import nn
import reprise
torch.manual_seed(0); torch.set_num_threads(1)
class Hungry(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last, self.fail = nn.Linear(128, 512), nn.Linear(512, 128), False
    def forward(self, x):
        x = nn.functional.gelu(self.first(x))
        if self.fail: torch.empty(1 << 60, dtype=torch.uint8)
        return self.last(x)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Hungry() for _ in range(4)])
    def forward(self, x):
        for layer in self.layers: x = layer(x)
        return x
class Late(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x.view_as(x)
    @staticmethod
    def backward(ctx, g):
        torch.empty(1 << 60, dtype=torch.uint8)
        return g
model = Net()
armed = reprise.auto(model, budget="0.85x", verify_every=1000)
optimizer = torch.optim.Adam(model.parameters())
def train(steps, late=False):
    for _ in range(steps):
        optimizer.zero_grad()
        x = torch.randn(256, 128)
        out = armed(Late.apply(x.requires_grad_()) if late else x)
        out.square().mean().backward()
        optimizer.step()
train(7)
model.layers[2].fail = True
try:
    train(1)
except RuntimeError as error:
    assert "can't allocate memory" in str(error)
model.layers[2].fail = False
train(3)
if sys.argv[1] == "caught":
    print(reprise.report(armed).stage)
else:
    train(1, late=True)
"""


@pytest.fixture
def run_out(
    python: Callable[..., Any], agent_library: Path, show: Any, until: Callable[..., None]
) -> Callable[[str], Any]:
    def run(how: str) -> tuple[Any, list[dict[str, Any]]]:
        done = python("-c", OUT_OF_MEMORY, how, REPRISE_AGENT=str(agent_library))
        until(lambda: json.loads(show("--json"))["state"] != "RUN_STATE_RUNNING")
        run = json.loads(show("--json"))
        ended = {"caught": "RUN_STATE_FINISHED", "uncaught": "RUN_STATE_FAILED"}
        assert run["state"] == ended[how]
        return done, run["moments"]

    return run


@pytest.mark.long
def test_what_filled_the_memory_is_shown_and_the_job_goes_on(run_out: Any, show: Any) -> None:
    done, moments = run_out("caught")

    assert done.returncode == 0, done.stderr
    assert done.stdout == "training under a plan\n"
    (shown,) = moments
    moment = shown["moment"]
    assert moment["reason"] == "MOMENT_REASON_OUT_OF_MEMORY"
    assert (moment["step"], moment["phase"]) == (8, "PHASE_FORWARD")
    assert moment["asked_bytes"] == 1 << 60
    assert moment["module"] == "layers.2"
    # All of it, to the byte: what is listed and what is not.
    storages = moment["storages"]
    assert sum(s["bytes"] for s in storages) + moment["more_bytes"] == moment["live_bytes"]
    assert [s["bytes"] for s in storages] == sorted((s["bytes"] for s in storages), reverse=True)
    names = {s["name"] for s in storages}
    assert {"layers.0.first.weight", "layers.3.last.weight.exp_avg"} <= names
    made = {(s["made_by"], s["module"]) for s in storages if not s["name"].startswith("layers.")}
    assert any("gelu" in op for op, _ in made)
    assert "Out of memory in step 8, in the forward" in shown["sentence"]
    assert shown["sentence"] in show()


@pytest.mark.long
def test_out_of_memory_in_the_backward_that_nobody_catches_is_shown_too(run_out: Any) -> None:
    done, moments = run_out("uncaught")

    assert done.returncode == 1
    assert "can't allocate memory" in done.stderr
    # Newest first. Step 8 was over with its forward, and three more were whole.
    assert [m["moment"]["step"] for m in moments] == [12, 8]
    assert moments[0]["moment"]["phase"] == "PHASE_BACKWARD"
    assert moments[0]["moment"]["storages"]


@pytest.mark.long
def test_reprise_run_says_at_once_what_a_killed_job_was_doing(
    home: Path, root: Path, agent_library: Path, daemon_binary: Path, tmp_path: Path
) -> None:
    # Its private daemon is gone soon after: nobody could be asked later.
    script = tmp_path / "job.py"
    script.write_text(JOB.replace("time.sleep(600)", "os.kill(os.getpid(), 9)"))
    command = daemon_binary.with_name("reprise")
    done = subprocess.run(
        [command, "run", "--", sys.executable, script, "forward", "planned", "20"],
        env={
            **os.environ,
            "PYTHONPATH": str(root / "clients/python/src"),
            "REPRISE_AGENT": str(agent_library),
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert done.returncode == 128 + 9, done.stderr
    assert "Killed in step 20, in the forward, at op " in done.stderr
    assert "THE LAST OPS" in done.stderr
