# SPDX-License-Identifier: Apache-2.0
"""From the first step to the planned ones, and removal."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Iterator

import pytest
import torch
from arming import arm, remove_all, sessions
from local_agent import LocalAgent
from nets import WIDTH, ConvNet, RandomNet, TwoFaced
from torch import Tensor, nn

import reprise
from reprise.agent import abi
from reprise.agent.agent import PlanReply
from reprise.torch.meter import room
from reprise.torch.meter.room import Room
from reprise.torch.policy.state import Stage
from reprise.torch.session import session as session_of
from reprise.torch.session import start as starting


@pytest.fixture(autouse=True)
def _removed() -> Iterator[None]:
    yield
    remove_all()


def train(model: nn.Module, steps: int, shape: tuple[int, ...] = ()) -> list[str]:
    """Trains; returns the losses to the last bit."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model.train()
    losses = []
    torch.manual_seed(5)
    for _ in range(steps):
        optimizer.zero_grad()
        out = model(torch.randn(*(shape or (6, WIDTH))))
        outs = out if isinstance(out, tuple) else (out,)
        loss = sum((o * o).mean() for o in outs)
        loss.backward()
        optimizer.step()
        losses.append(loss.item().hex())
    return losses


def made(seed: int = 0) -> RandomNet:
    torch.manual_seed(seed)
    return RandomNet(3)


class Halves(nn.Module):
    """A module whose outputs come from one node of autograd."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*[m for _ in range(4) for m in (nn.Linear(8, 8), nn.Tanh())])

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.layers(x).chunk(2, 1)  # type: ignore[no-any-return]


def test_a_checked_step_goes_on_if_an_output_gets_no_gradient() -> None:
    torch.manual_seed(0)
    model = Halves()
    agent = LocalAgent()
    session = arm(model, agent, verify="gradients")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    for _ in range(8):
        optimizer.zero_grad()
        model(torch.randn(6, 8))[1].square().mean().backward()
        optimizer.step()

    assert session.job.stage is Stage.PLANNED
    assert [c["checked"] for c in agent.checks] == [8, 8]
    assert all(c["differing"] == 0 for c in agent.checks)


def test_losses_under_a_plan_equal_those_without() -> None:
    expected = train(made(), 10)
    model = made()
    agent = LocalAgent()
    session = arm(model, agent)

    found = train(model, 10)

    assert found == expected
    assert session.job.stage is Stage.PLANNED
    flags = [s["flags"] for s in agent.steps]
    # Two plain, one captured, a checked one, a traced one, plain planned ones.
    assert flags == [0, 0, 8, 1, 9, 1, 1, 1, 1, 1]
    assert all(c["differing"] == 0 and c["checked"] > 0 for c in agent.checks)
    assert [c["step"] for c in agent.checks] == [4, 7, 10]
    assert agent.states == [(1, 1, "")]


def test_every_planned_step_peaks_as_predicted() -> None:
    model = ConvNet()
    agent = LocalAgent()
    session = arm(model, agent)

    train(model, 8, shape=(4, 3, 8, 8))

    if not session.job.meter.exact:
        pytest.skip("needs the exact meter")
    planned = [s["peak_bytes"] for s in agent.steps if s["flags"] & 1]
    assert len(planned) == 5
    assert max(planned) <= agent.plan_peak * 1.02 + 512
    report = reprise.report(model)
    assert report.measured_peak_bytes == max(planned)
    assert report.values_equal
    assert "values made again bit for bit equal in 2 checks" in str(report)


def test_evaluation_and_no_grad_are_not_steps() -> None:
    model = made()
    agent = LocalAgent()
    arm(model, agent)

    model.eval()
    model(torch.randn(2, WIDTH))
    model.train()
    with torch.no_grad():
        model(torch.randn(2, WIDTH))

    assert agent.steps == []


def test_removing_the_hooks_restores_the_model() -> None:
    model = made()
    before = {n: dict(vars(m)) for n, m in model.named_modules()}
    keys = {n: set(v) for n, v in before.items()}
    session = arm(model)
    train(model, 6)

    reprise.remove(model)

    assert {n: set(vars(m)) for n, m in model.named_modules()} == keys
    assert type(model).forward is RandomNet.forward
    assert "forward" not in vars(model)
    assert all(not p._backward_hooks for p in model.parameters())
    assert session.job.stage is Stage.PLAIN
    sessions.clear()
    train(model, 1)


def test_copies_and_pickles_of_an_armed_model_are_plain() -> None:
    model = made()
    arm(model)
    x = torch.randn(4, WIDTH)

    copied = copy.deepcopy(model)
    unpickled = pickle.loads(pickle.dumps(nn.Sequential(nn.Linear(WIDTH, WIDTH))))
    simple = nn.Linear(WIDTH, WIDTH)
    arm(simple)
    again = pickle.loads(pickle.dumps(simple))
    with torch.no_grad():
        copied.linears[0].weight.zero_()

    assert not torch.equal(copied.linears[0].weight, model.linears[0].weight)
    torch.manual_seed(1)
    expected = model(x)
    torch.manual_seed(1)
    assert not torch.equal(copied(x)[0], expected[0])
    assert torch.equal(again(x), simple(x))
    assert unpickled(x).shape == x.shape


def test_a_refused_budget_is_logged_and_training_goes_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    expected = train(made(), 6)
    model = made()
    agent = LocalAgent()
    agent.refuse = "Nothing fits in 3.0 GiB: op 17 aten.bmm.default needs at least 3.4 GiB."
    session = arm(model, agent)

    found = train(model, 6)

    assert found == expected
    assert session.job.stage is Stage.PLAIN
    assert capsys.readouterr().err.count("Nothing fits in 3.0 GiB") == 1
    assert session.job.measured.smallest_budget == 7
    report = str(reprise.report(model))
    assert report.startswith(f"{agent.refuse} 6 steps ran without a plan, at up to ")


def test_a_late_plan_is_logged_in_one_line_and_applied_when_it_arrives(
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Late(LocalAgent):
        comes = False

        def poll_plan(self, graph_id: int, have: int = 0) -> PlanReply:
            return super().poll_plan(graph_id, have) if self.comes else PlanReply("pending")

    expected = train(made(), 12)
    model, agent = made(), Late()
    session = arm(model, agent, wait_s=0.0)

    found = train(model, 6)
    without = session.job.measured.planned_steps
    waiting = reprise.report(model)
    agent.comes = True
    found_later = train(model, 6)

    assert waiting.stage == "training without a plan until one arrives"
    assert waiting.why == "no plan after 0 s"
    assert reprise.report(model).stage == "training under a plan"
    assert reprise.report(model).why == ""
    assert found == expected[:6]
    assert (without, session.job.stage) == (0, Stage.PLANNED)
    assert session.job.measured.planned_steps >= 5
    assert len(found_later) == 6
    assert capsys.readouterr().err.count("no plan after") == 1


def test_a_plan_that_cannot_run_is_refused_with_the_reason() -> None:
    model = made()
    agent = LocalAgent()
    agent.break_plan = True
    session = arm(model, agent)

    train(model, 6)

    assert session.job.stage is Stage.PLAIN
    (plan_id, state, why), ended = agent.states
    assert (plan_id, state) == (1, abi.PLAN_REFUSED)
    assert "never runs" in why or "required" in why
    assert ended == (0, abi.PLAN_NONE, why)
    assert f"It was not run: {why.rstrip('.')}." in str(reprise.report(model))


def test_a_step_that_changed_for_good_is_captured_again() -> None:
    model = TwoFaced()
    agent = LocalAgent()
    session = arm(model, agent)
    train(model, 5)
    assert session.job.stage is Stage.PLANNED

    model.changed = True
    train(model, 6)

    assert len(agent.graphs) == 2
    assert session.job.stage is Stage.PLANNED
    kept = [s for s in agent.steps if s["flags"] & 2]
    assert [s["mismatches"] for s in kept] == [1, 1, 1]


def test_a_check_restores_generators_and_buffers() -> None:
    expected_model, model = ConvNet(), ConvNet()
    model.load_state_dict(expected_model.state_dict())
    train(expected_model, 7, shape=(4, 3, 8, 8))
    expected_random = torch.rand(3)
    arm(model, verify_every=1, verify="gradients")

    train(model, 7, shape=(4, 3, 8, 8))

    assert torch.equal(torch.rand(3), expected_random)
    for (name, left), (_, right) in zip(
        expected_model.state_dict().items(), model.state_dict().items(), strict=True
    ):
        assert torch.equal(left, right), name


def test_a_step_that_raises_does_not_stop_the_next_ones() -> None:
    model = TwoFaced()
    agent = LocalAgent()
    session = arm(model, agent)
    train(model, 2)

    with pytest.raises(RuntimeError):
        model(torch.randn(2, WIDTH + 1))  # during the captured step
    train(model, 4)
    with pytest.raises(RuntimeError):
        model(torch.randn(2, WIDTH + 1))  # during a planned one
    train(model, 2)

    assert session.job.stage is Stage.PLANNED
    assert torch._C._len_torch_dispatch_stack() == 0
    assert agent.steps[-1]["flags"] & 1
    assert agent.steps[-1]["mismatches"] == 0


def test_hooks_of_the_program_around_the_model_are_respected() -> None:
    model = made()
    agent = LocalAgent()
    arm(model, agent)
    train(model, 5)
    packed = 0

    def pack(t: Tensor) -> Tensor:
        nonlocal packed
        packed += 1
        return t

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        out = model(torch.randn(6, WIDTH))
    (out[0] * out[0]).mean().backward()
    optimizer.step()

    assert packed > 0
    assert agent.steps[-1]["flags"] & 2


def test_a_job_without_a_budget_looks_through_its_modules_in_the_warm_up_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[nn.Module] = []

    def none(model: nn.Module) -> list[str]:
        asked.append(model)
        return []

    monkeypatch.setattr("reprise.torch.planning.page.compiled_parts", none)
    model = RandomNet(3)
    arm(model, LocalAgent(), budget=None, warmup=2)

    train(model, 8)

    assert len(asked) == 2


def test_without_a_budget_one_step_is_captured_for_the_page_and_none_is_planned(
    capsys: pytest.CaptureFixture[str],
) -> None:
    torch.manual_seed(3)
    plain = made()
    torch.manual_seed(3)
    model = made()
    agent = LocalAgent()
    session = arm(model, agent, budget=None)

    train(plain, 9)
    train(model, 9)

    assert session.job.stage is Stage.PLAIN
    assert [graph["measured_peak_bytes"] > 0 for graph in agent.graphs] == [True]
    assert agent.budgets == [""]
    assert [bool(step["flags"] & abi.STEP_WINDOW) for step in agent.steps].count(True) == 1
    assert len(agent.steps) == 9
    assert capsys.readouterr().err.count("was captured for the page, once, and took") == 1
    for mine, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine, other)


def test_a_budget_that_is_sent_to_a_job_without_one_plans_its_next_steps(
    capsys: pytest.CaptureFixture[str],
) -> None:
    torch.manual_seed(3)
    plain = made()
    torch.manual_seed(3)
    model = made()
    agent = LocalAgent(again=1.0)
    session = arm(model, agent, budget=None)

    for steps in (9, 1, 8):
        train(plain, steps)
    train(model, 9)
    agent.offer = "0.7x"
    train(model, 1)
    agent.offer = ""
    train(model, 8)

    assert session.job.stage is Stage.PLANNED
    assert session.job.budget == "0.7x"
    assert agent.budgets == ["", "0.7x"]
    assert any(step["flags"] & abi.STEP_PLANNED for step in agent.steps)
    assert capsys.readouterr().err.count("a budget of 0.7x was sent to the job") == 1
    for mine, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine, other)


def test_a_plan_that_the_job_cannot_run_is_not_taken_for_a_budget_that_was_sent() -> None:
    model = made()
    agent = LocalAgent()
    agent.break_plan = True
    session = arm(model, agent)

    train(model, 12)

    assert session.job.stage is Stage.PLAIN
    assert len(agent.graphs) == 1


@pytest.mark.parametrize("why", ["left out", "several threads"])
def test_a_job_without_a_budget_that_cannot_be_captured_trains_on(
    why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = made()
    agent = LocalAgent()
    if why == "left out":
        monkeypatch.setenv("REPRISE_CAPTURE", "0")
    else:
        monkeypatch.setattr("reprise.torch.session.steps.blocked", lambda: why)
    session = arm(model, agent, budget=None)

    train(model, 9)

    assert session.job.stage is Stage.PLAIN
    assert agent.graphs == []
    assert len(agent.steps) == 9


def test_a_disabled_reprise_touches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPRISE_DISABLE", "1")
    model = made()

    assert reprise.auto(model, budget="0.5x") is model
    assert "forward" not in vars(model)
    assert "REPRISE_DISABLE=1" in str(reprise.report(model))


def test_a_budget_that_cannot_be_read_is_refused_at_once() -> None:
    with pytest.raises(reprise.RepriseError, match="8G"):
        reprise.auto(made(), budget="8G")


def test_an_armed_model_dies_with_its_last_user() -> None:
    model = made()
    arm(model)
    train(model, 5)
    sessions.clear()
    watch = weakref.ref(model)

    del model
    gc.collect()

    assert watch() is None


def test_a_forward_that_a_cuda_graph_captures_is_skipped_and_logged_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    captures = [False]
    monkeypatch.setattr(session_of, "captures_graph", lambda device: captures[0])
    expected, model = train(made(), 8), made()
    agent = LocalAgent()
    session = arm(model, agent, verify_every=0)
    modes: list[int] = []
    model.register_forward_pre_hook(
        lambda *_: modes.append(torch._C._len_torch_dispatch_stack()) if captures[0] else None
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    torch.manual_seed(5)
    losses = []
    for step in range(8):
        captures[0] = step in (3, 4)
        optimizer.zero_grad()
        out = model(torch.randn(6, WIDTH))
        loss = sum((o * o).mean() for o in (out if isinstance(out, tuple) else (out,)))
        loss.backward()
        optimizer.step()
        losses.append(loss.item().hex())

    assert losses == expected
    assert modes == [0, 0]  # nothing of ours lies over it
    assert session.job.step.number == 6
    assert session.job.stage is Stage.PLANNED
    said = capsys.readouterr().err
    assert said.count("not planned: a CUDA graph is captured of the model") == 1


@pytest.mark.parametrize("asked", ["0.5x", "fit", "90%", "8 GB of it", True])
def test_a_host_budget_that_is_no_size_is_refused(asked: object) -> None:
    with pytest.raises(reprise.RepriseError, match="host_budget: must be a size such as"):
        reprise.auto(nn.Linear(1, 1), "0.5x", host_budget=asked)  # type: ignore[arg-type]


def test_a_host_budget_of_auto_is_half_of_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    free = Room(10 << 30, "the control group's memory", host_apart=False)
    monkeypatch.setattr(room, "room_on", lambda device: free if device.type == "cpu" else None)
    started: list[int] = []
    monkeypatch.setattr(starting, "start", lambda _, options: started.append(options.host_bytes))

    reprise.auto(nn.Linear(1, 1), "0.5x", host_budget="auto")
    monkeypatch.setattr(room, "room_on", lambda _: None)
    reprise.auto(nn.Linear(1, 1), "0.5x", host_budget="auto")

    assert started == [5 << 30, 0]
