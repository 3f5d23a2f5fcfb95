# SPDX-License-Identifier: Apache-2.0
"""A step whose ops launch kernels: what the device ran is what the graph says ops cost.

There is no GPU here. Ops of the test launch kernels of a fake CUPTI (tests/profiler/fake_cupti),
which the agent loads by its normal path; that the model's device runs kernels is the one thing
pretended.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from arming import arm, remove_all
from local_agent import LocalAgent
from torch import nn

from reprise.agent import abi
from reprise.torch.meter import windows

# A tool of the checks on GPUs.
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "gpu"))
import stored_graph


@pytest.fixture(autouse=True)
def _removed() -> Iterator[None]:
    yield
    remove_all()


class WindowAgent(LocalAgent):
    """Keeps the order of what a captured step says."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.open_kinds = 0

    def window_kinds(self) -> int:
        return self.open_kinds

    def window_begin(self, kinds: int = 0) -> None:
        self.calls.append("begin")

    def window_end(self) -> None:
        self.calls.append("end")

    def flush(self, timeout_s: float = 1.0) -> None:
        self.calls.append("flush")

    def op_begin(self, op: int, name: int) -> None:
        super().op_begin(op, name)
        if self.calls[-1:] != ["ops"]:
            self.calls.append("ops")

    def submit_graph(self, *arguments: Any, **options: int) -> int:
        self.calls.append("graph")
        return super().submit_graph(*arguments)


WIDTH = 8


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def train(model: nn.Module, steps: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(6, WIDTH)).square().mean().backward()
        optimizer.step()


def test_a_captured_step_is_a_window_and_its_graph_names_its_ops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(windows, "runs_kernels", lambda device: True)
    agent, model = WindowAgent(), Net()
    arm(model, agent)

    train(model, 3)

    assert agent.calls == ["begin", "ops", "end", "flush", "graph"]
    named = [number for op in agent.graphs[0]["ops"] for number in op.get("agent_ops", [])]
    assert sorted(named) == sorted(agent.ops)
    called = [op for op in agent.graphs[0]["ops"] if not op["name"].startswith("reprise.")]
    assert all(op["agent_ops"] for op in called)
    assert any(len(op["agent_ops"]) > 1 for op in called)  # one autograd node, several ops


def test_a_collectors_window_that_traces_kernels_stays_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(windows, "runs_kernels", lambda device: True)
    agent, model = WindowAgent(), Net()
    agent.open_kinds = abi.KIND_KERNELS | abi.KIND_OPS
    arm(model, agent)

    train(model, 3)

    assert [call for call in agent.calls if call in ("begin", "end")] == []
    assert any(op.get("agent_ops") for op in agent.graphs[0]["ops"])


def test_an_abandoned_capture_leaves_no_window_open(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(Net):
        fails = False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out = super().forward(x)
            if self.fails:
                raise KeyError("of the program")
            return out

    monkeypatch.setattr(windows, "runs_kernels", lambda device: True)
    agent, model = WindowAgent(), Failing()
    arm(model, agent)
    train(model, 2)
    model.fails = True

    with pytest.raises(KeyError):
        model(torch.randn(6, WIDTH))

    assert agent.calls == ["begin", "ops", "end"]


def test_on_a_cpu_no_window_is_opened_and_the_hosts_clock_tells_the_times() -> None:
    agent, model = WindowAgent(), Net()
    arm(model, agent)

    train(model, 3)

    assert agent.calls == ["ops", "graph"]
    assert all("agent_ops" not in op for op in agent.graphs[0]["ops"])


# ---- The whole way ----------------------------------------------------------------

JOB = """
import ctypes, os, sys
import torch
from torch import nn
from reprise.torch.meter import windows
import reprise

torch.set_num_threads(1)
windows.runs_kernels = lambda device: True
cupti = ctypes.CDLL(os.environ["REPRISE_CUPTI_PATH"])
cupti.FakeCuptiHandle()
cupti.FakeCuptiLaunch.argtypes = [ctypes.c_char_p, ctypes.c_uint64]

@torch.library.custom_op("fake::mm", mutates_args=())
def mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    cupti.FakeCuptiLaunch(b"gemm", 50000)
    cupti.FakeCuptiLaunch(b"epilogue", 20000)
    return a @ b

@torch.library.custom_op("fake::mm_back", mutates_args=())
def mm_back(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    cupti.FakeCuptiLaunch(b"gemm", 30000)
    return a @ b

def save(ctx, inputs, output):
    ctx.save_for_backward(*inputs)

def backward(ctx, grad):
    a, b = ctx.saved_tensors
    return mm_back(grad, b.t()), mm_back(a.t(), grad)

mm.register_autograd(backward, setup_context=save)

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 64) / 8)
    def forward(self, x):
        return nn.functional.gelu(nn.functional.gelu(mm(x, self.weight)))

model = reprise.auto(nn.Sequential(*[Layer() for _ in range(4)]), budget="0.9x")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x = torch.randn(256, 64, requires_grad=True)
for _ in range(8):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
print(model and reprise.report(model).stage)
"""


@pytest.mark.long
@pytest.mark.e2e
def test_kernel_times_are_the_op_times_of_a_job(
    python: Any, home: Path, reprised: Callable[[], Any], agent_library: Path, daemon_binary: Path
) -> None:
    build = agent_library.parent.parent
    fake = build / "lib/libfake_cupti_130.so"
    if not fake.is_file():
        pytest.fail(f"{fake}: not built; run scripts/build --tests", pytrace=False)

    done = python(
        "-c", JOB,
        REPRISE_AGENT=str(agent_library), REPRISE_DAEMON=str(daemon_binary),
        REPRISE_CUPTI_PATH=str(fake), LD_LIBRARY_PATH=str(build / "fake_cuda"),
        REPRISE_SOCKET=str(reprised().socket),
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[0] == "training under a plan", done.stderr
    graph = stored_graph.find(home)
    times = graph.times
    assert graph.timing == "kernels"
    # Two kernels in each forward op; both products of a backward node in the op they are fused to.
    assert times["fake.mm.default"] == [70000] * 4
    assert times["fake.mm_back.default"] == [60000] * 4
    launched_nothing = set(times) - {
        "fake.mm.default",
        "fake.mm_back.default",
        "reprise.step_begin",
    }
    assert launched_nothing
    assert {time for name in launched_nothing for time in times[name]} == {0}
    shown = subprocess.run(
        [daemon_binary.with_name("reprise"), "show", "latest"],
        env={**os.environ, "REPRISE_SOCKET": str(home / "run/agent.sock")},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "\n  an op takes as long as its kernels\n" in shown.stdout
