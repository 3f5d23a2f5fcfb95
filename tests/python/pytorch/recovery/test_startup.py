# SPDX-License-Identifier: Apache-2.0
"""Jobs that do not fit before they are planned: their first steps run differently, with the same
bits."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from arming import arm, remove_all
from local_agent import LocalAgent
from torch import Tensor, nn

from reprise.agent import abi
from reprise.agent.agent import PlanReply
from reprise.base.units import format_bytes
from reprise.torch.meter.room import Room, room_on
from reprise.torch.meter.state import alive_bytes
from reprise.torch.planning import least
from reprise.torch.planning import notes as notes_of
from reprise.torch.planning.notes import Notes
from reprise.torch.policy.state import Stage
from reprise.torch.recovery import sketch, startup

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _removed() -> Iterator[None]:
    yield
    remove_all()


class Wide(nn.Module):
    """Saves much and computes little; draws random numbers and has statistics."""

    def __init__(self, depth: int = 6) -> None:
        super().__init__()
        self.inner = nn.ModuleList(nn.Linear(32, 32) for _ in range(depth))
        self.norm = nn.BatchNorm1d(32)
        self.least = 1 << 62  # bytes; the forward fails when fewer are free
        self.forwards = 0

    def forward(self, x: Tensor) -> Tensor:
        self.forwards += 1
        x = self.norm(x)
        for linear in self.inner:
            x = torch.nn.functional.dropout(linear(x).sin().exp().tanh(), 0.1)
        return x


def train(model: nn.Module, steps: int, seed: int = 3) -> list[float]:
    torch.manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(256, 32)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def made() -> Wide:
    torch.manual_seed(0)
    return Wide()


@pytest.fixture(scope="module")
def expected() -> tuple[list[float], dict[str, Tensor]]:
    torch.set_num_threads(1)
    model = made()
    return train(model, 20), model.state_dict()


def same(model: nn.Module, losses: list[float], expected: Any) -> bool:
    state = model.state_dict()
    return losses == expected[0] and all(torch.equal(state[n], v) for n, v in expected[1].items())


@pytest.mark.parametrize(("way", "planned"), [("host", 18), ("shapes", 19)])
def test_no_step_is_plain_and_no_bit_changes(
    way: str, planned: int, expected: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    agent, model = LocalAgent(), made()
    session = arm(model, agent, first=way)

    losses = train(model, 20)

    assert same(model, losses, expected)
    assert session.job.stage is Stage.PLANNED
    assert session.job.measured.plain_steps == 0
    assert session.job.measured.planned_steps == planned
    assert session.job.measured.mismatched_steps == 0
    assert session.job.measured.checks > 0
    assert session.job.measured.failed_checks == 0
    said = capsys.readouterr().err
    assert said.count("the first step") == 1
    # A plan for the whole step, also for the optimizer's state that the first step makes.
    graph = agent.graphs[-1]
    assert graph["measured_peak_bytes"] == session.job.measured.base_peak_bytes > 0
    assert any(op["phase"] == "PHASE_OPTIMIZER" for op in graph["ops"])


def test_on_the_host_the_first_steps_peak_lower_than_plain_ones() -> None:
    model = made()
    plain = arm(model, budget=None)
    train(model, 3)
    base = plain.job.measured.base_peak_bytes
    plain.remove()
    agent, model = LocalAgent(), made()
    session = arm(model, agent, first="host")

    train(model, 2)

    # Activations are 18 of 32 kB and masks, of which the backward needs one op's at a time.
    least = agent.graphs[0]["static_bytes"]
    peaks = [s["peak_bytes"] for s in agent.steps]
    assert max(peaks) - least < 0.5 * (base - least)
    assert session.job.host is not None
    assert session.job.host.peak_bytes > 0.7 * (base - least)


def test_a_plain_first_step_that_runs_out_of_memory_runs_again_in_another_way(
    expected: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, model = LocalAgent(), made()
    session = arm(model, agent)
    inner, failed = model.inner[-1].forward, []

    def hungry(x: Tensor) -> Tensor:
        if not failed:
            failed.append(random.random())  # what a program draws before it fails
            raise torch.OutOfMemoryError("too much")
        return inner(x)

    model.inner[-1].forward = hungry  # type: ignore[method-assign]
    monkeypatch.setattr(startup, "room_on", lambda _: None)

    losses = train(model, 20)

    # Generators and running statistics are those of one forward.
    assert same(model, losses, expected)
    assert agent.ooms == 1
    assert session.job.stage is Stage.PLANNED
    assert "in host memory: the unplanned step does not fit (too much)" in capsys.readouterr().err


@pytest.mark.parametrize(("apart", "way"), [(True, "in host memory"), (False, "from shapes alone")])
def test_a_first_step_near_the_memory_limit_is_abandoned_before_it_fails(
    apart: bool,
    way: str,
    expected: Any,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = made()
    session = arm(model)
    room = Room(300_000, "the test's memory", apart)
    monkeypatch.setattr(startup, "room_on", lambda _: room)

    losses = train(model, 20)

    assert same(model, losses, expected)
    assert session.job.measured.plain_steps == 0
    said = capsys.readouterr().err
    assert f"{way}: the unplanned step does not fit (it comes close to the test's memory)" in said


def test_a_first_step_that_fits_is_plain(
    expected: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = made()
    session = arm(model)
    monkeypatch.setattr(startup, "room_on", lambda _: Room(1 << 30, "plenty", False))

    losses = train(model, 20)

    assert same(model, losses, expected)
    assert session.job.measured.plain_steps == 2
    assert session.job.host is None
    assert "first step" not in capsys.readouterr().err


class Chooses(nn.Module):
    """A model whose shapes alone do not determine what it does."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inner(x)
        return x.sin() if x.sum().item() > 0 else x.cos()


def test_if_shapes_are_not_enough_saved_tensors_go_to_host_memory(
    capsys: pytest.CaptureFixture[str],
) -> None:
    torch.manual_seed(0)
    plain = Chooses()
    expected = train(plain, 4)
    torch.manual_seed(0)
    model = Chooses()
    session = arm(model, first="shapes", verify_every=0)

    assert train(model, 4) == expected
    assert session.job.host is not None
    assert "no plan from shapes: shapes alone do not determine" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("capture_step", "an internal error in Reprise (ValueError: injected)"),
        ("faked", "the model has no copy without memory (ValueError: injected)"),
    ],
)
def test_an_internal_error_in_the_plan_from_shapes_is_not_blamed_on_the_model(
    place: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise ValueError("injected")

    monkeypatch.setattr(sketch, place, fails)
    torch.manual_seed(0)
    expected = train(Wide(), 1)
    torch.manual_seed(0)
    model = Wide()
    session = arm(model, first="shapes", verify_every=0)

    assert train(model, 1) == expected
    assert session.job.host is not None
    assert f"no plan from shapes: {said}" in capsys.readouterr().err


class Unlike(Wide):
    """Takes another path on real tensors than on fake ones."""

    def forward(self, x: Tensor) -> Tensor:
        x = super().forward(x)
        return x if type(x) is Tensor else x.relu()


def test_a_step_that_differs_from_its_predicted_shapes_continues_on_the_host() -> None:
    torch.manual_seed(0)
    expected = train(Unlike(), 6)
    torch.manual_seed(0)
    model = Unlike()
    session = arm(model, first="shapes", verify_every=0)

    losses = train(model, 1)

    assert session.job.measured.mismatched_steps == 1
    remove_all()
    torch.manual_seed(0)
    model = Unlike()
    arm(model, first="shapes", verify_every=0)
    losses = train(model, 6)
    assert losses == expected


@pytest.mark.train
def test_after_a_refused_budget_a_job_that_does_not_fit_keeps_saved_tensors_on_the_host(
    expected: Any,
) -> None:
    agent, model = LocalAgent(), made()
    agent.refuse = "no plan fits"
    session = arm(model, agent, first="host")

    losses = train(model, 20)

    assert same(model, losses, expected)
    assert session.job.stage is Stage.PLAIN
    assert session.job.measured.plain_steps == 0


class Strict(LocalAgent):
    """No plan within what the program asks for: the one that needs least is within `least` bytes,
    and it is said that `smallest` may do."""

    def __init__(self, least: int = 0, smallest: int = 600_000) -> None:
        super().__init__()
        self.least = least
        self.smallest = smallest
        self.asked: list[str] = []
        self.held_back: list[int] = []

    def submit_graph(
        self, text: bytes, budget: str, capabilities: str, static_bytes: int, **more: int
    ) -> int:
        self.asked.append(budget)
        self.held_back.append(more["reserve_bytes"])
        return super().submit_graph(text, budget, capabilities, static_bytes)

    def poll_plan(self, graph_id: int, have: int = 0) -> PlanReply:
        asked = self.asked[graph_id - 1]
        if asked != "least":
            why = f"Nothing fits in {asked}."
            return PlanReply("refused", why=why, smallest_budget=self.smallest)
        reply = super().poll_plan(graph_id, have)
        if reply.plan is not None and self.least:
            least = replace(reply.plan, budget_bytes=self.least, peak_bytes=self.least)
            return PlanReply("plan", plan=least)
        return reply


def test_if_neither_a_plan_nor_the_plain_step_fits_the_smallest_plan_is_used(
    expected: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    agent, model = Strict(), made()
    session = arm(model, agent, first="host", budget="300kB")

    losses = train(model, 20)

    assert same(model, losses, expected)
    assert agent.asked[1:] == ["least"]
    assert agent.held_back == [0, 6_000]  # 1 % of it, for what a check takes
    assert session.job.stage is Stage.PLANNED
    assert session.job.measured.failed_checks == 0
    said = capsys.readouterr().err
    assert (
        "Nothing fits in 300kB. The job does not fit without a plan either: requesting the plan"
        in said
    )


@pytest.mark.train
def test_if_the_smallest_plan_does_not_fit_the_log_says_what_would(
    expected: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(least, "room_on", lambda _: Room(1000, "the test's memory", True))
    held = alive_bytes(CPU)  # by other tests of this process: the job counts it as its own
    allowed, smallest = held + 300_000, held + 600_000
    agent, model = Strict(1 << 40, smallest), made()
    session = arm(model, agent, first="host", budget=str(allowed))

    losses = train(model, 20)

    assert same(model, losses, expected)
    assert session.job.stage is Stage.PLAIN
    assert agent.asked == [str(allowed)]
    assert session.job.measured.plain_steps == 0  # none without the host's help
    static = agent.graphs[0]["static_bytes"]
    fits = int(256 * (allowed - static) / (smallest - static))
    assert 0 < fits < 256
    said = f"Nothing fits in {allowed}. Saved tensors stay in host memory, and steps are slow. "
    said += f"What would fit: a budget of {format_bytes(smallest)} or more, or a batch of about "
    said += f"{fits} instead of 256"
    assert capsys.readouterr().err.count(said) == 1


@pytest.mark.train
def test_a_smallest_plan_that_turns_out_too_large_is_not_used(
    expected: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(least, "room_on", lambda _: Room(1 << 30, "the test's memory", True))
    agent, model = Strict(1 << 40), made()
    session = arm(model, agent, first="host", budget="300kB")

    losses = train(model, 20)

    assert same(model, losses, expected)
    assert session.job.stage is Stage.PLAIN
    assert agent.asked == ["300kB", "least"]
    said = "The plan that needs least takes 1.0 TiB. Saved tensors stay in host memory"
    assert capsys.readouterr().err.count(said) == 1
    assert [state for _, state, _ in agent.states].count(abi.PLAN_REFUSED) == 1


def gone() -> int:
    """Returns the id of a process that has ended."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


@pytest.fixture
def kills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sets what the kernel says about processes that it has killed for their memory."""
    file = tmp_path / "vmstat"
    file.write_text("pgfault 12\noom_kill 3\n")
    monkeypatch.setattr(notes_of, "KILLS", file)
    return file


def test_a_start_that_was_killed_for_its_memory_is_remembered(kills: Path) -> None:
    model = made()
    notes = Notes(model, CPU)
    assert not notes.died
    notes.begins()
    assert not Notes(model, CPU).died  # it is this process, and it lives
    text = json.loads(notes._path.read_text())
    notes._path.write_text(json.dumps({**text, "unplanned_of": gone()}))

    assert not Notes(model, CPU).died  # killed, but not for its memory
    kills.write_text("oom_kill 4\n")
    assert Notes(model, CPU).died
    assert not Notes(nn.Linear(3, 3), CPU).died
    session = arm(model)
    train(model, 3)

    assert session.job.measured.plain_steps == 0
    assert not Notes(model, CPU).died  # this one went well


@pytest.mark.parametrize(
    ("error", "died"), [(ValueError("its own"), False), (torch.OutOfMemoryError("much"), True)]
)
def test_only_a_program_that_ends_for_its_memory_is_remembered(
    error: Exception, died: bool, kills: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = made()
    session = arm(model)
    model.inner[0].register_forward_hook(lambda m, i, o: exec("raise error", {"error": error}))

    with pytest.raises(type(error)):
        train(model, 1)
    monkeypatch.setattr(sys, "last_value", error, raising=False)  # nobody caught it
    session.close()

    notes = Notes(model, CPU)
    if notes._path.exists():
        text = json.loads(notes._path.read_text())
        notes._path.write_text(json.dumps({**text, "unplanned_of": gone()}))
    assert Notes(model, CPU).died is died


def test_room_is_what_the_tightest_limit_leaves() -> None:
    text = (
        "import resource, torch; from reprise.torch.meter.room import room_on\n"
        "used = int(next(l for l in open('/proc/self/status') if 'VmData' in l).split()[1]) << 10\n"
        "resource.setrlimit(resource.RLIMIT_DATA, (used + (64 << 20), resource.RLIM_INFINITY))\n"
        "room = room_on(torch.device('cpu')); print(room.bytes, room.what, room.host_apart)\n"
    )
    source = str(Path(startup.__file__).parents[3])
    out = subprocess.run(
        [sys.executable, "-c", text],
        env={**os.environ, "PYTHONPATH": source},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout.split()

    assert 0.9 * (64 << 20) <= int(out[0]) <= 64 << 20
    assert out[1:] == ["RLIMIT_DATA", "True"]
    room = room_on(CPU)
    assert room is not None
    assert room.bytes > 0
