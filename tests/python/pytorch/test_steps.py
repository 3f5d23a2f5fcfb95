# SPDX-License-Identifier: Apache-2.0
"""Training loops as people write them: whatever a step does, the job is the one without Reprise."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from arming import arm, remove_all, sessions
from local_agent import LocalAgent
from nets import WIDTH, ConvNet, RandomNet
from test_session import TwoFaced
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import reprise
from reprise.torch.session import Session
from reprise.torch.stage import Stage


@pytest.fixture(autouse=True)
def _removed() -> Iterator[None]:
    yield
    remove_all()


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def curves(make: Callable[[bool], list[str]]) -> list[str]:
    """The loop without Reprise and with it; they must print the same losses."""
    torch.manual_seed(5)
    plain = make(False)
    torch.manual_seed(5)
    armed = make(True)
    assert armed == plain
    return armed


def deep(width: int = WIDTH) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(width, width), nn.Tanh(), nn.Dropout(0.2), nn.Linear(width, width), nn.GELU()
    )


# ---- Optimizers and models ------------------------------------------------------


def test_several_optimizers_of_one_model_are_one_step() -> None:
    agent = LocalAgent()

    def loop(armed: bool) -> list[str]:
        model = nn.Sequential(deep(), deep())
        if armed:
            arm(model, agent)
        first, second = sgd(model[0]), sgd(model[1])
        losses = []
        for _ in range(10):
            first.zero_grad(), second.zero_grad()
            loss = model(torch.randn(6, WIDTH)).square().mean()
            loss.backward()
            first.step(), second.step()
            losses.append(loss.item().hex())
        return losses

    curves(loop)

    assert sessions[0].stage is Stage.PLANNED
    # The first step ended at the first optimizer, before the second was known.
    assert len(agent.steps) == 10
    assert sum(s.get("mismatches", 0) for s in agent.steps) == 0
    assert len(agent.graphs[0]["ops"]) > 40  # both updates are in the captured step


def test_two_models_that_train_each_other_are_both_planned() -> None:
    agent = LocalAgent()

    def loop(armed: bool) -> list[str]:
        generator, critic = deep(), deep()
        if armed:
            arm(generator, agent), arm(critic, agent)
        of_generator, of_critic = sgd(generator), sgd(critic)
        losses = []
        for _ in range(16):
            real, noise = torch.randn(6, WIDTH), torch.randn(6, WIDTH)
            of_critic.zero_grad()
            loss = critic(real).mean() - critic(generator(noise).detach()).mean()
            loss.backward()
            of_critic.step()
            of_generator.zero_grad()
            fooled = critic(generator(noise)).mean()
            fooled.backward()
            of_generator.step()
            losses += [loss.item().hex(), fooled.item().hex()]
        return losses

    curves(loop)

    assert [s.stage for s in sessions] == [Stage.PLANNED, Stage.PLANNED]
    assert all(s.measured.planned_steps > 2 for s in sessions)
    assert all(s.measured.failed_checks == 0 for s in sessions)


def test_a_part_of_an_armed_model_that_is_armed_too_stands_aside() -> None:
    def loop(armed: bool) -> list[str]:
        model = nn.Sequential(deep(), deep())
        if armed:
            arm(model), arm(model[0])  # type: ignore[arg-type]
        return train(model, 8)

    curves(loop)

    assert sessions[0].stage is Stage.PLANNED
    assert sessions[1].measured.plain_steps == 0


def train(
    model: nn.Module, steps: int, batches: Callable[[int], Tensor] | None = None
) -> list[str]:
    optimizer = sgd(model)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        out = model(batches(step) if batches else torch.randn(6, WIDTH))
        outs = out if isinstance(out, tuple) else (out,)
        loss: Any = sum((o * o).mean() for o in outs)
        loss.backward()
        optimizer.step()
        losses.append(loss.item().hex())
    return losses


# ---- Steps that are not all alike -------------------------------------------------


def test_gradients_are_accumulated_over_any_number_of_batches() -> None:
    agent = LocalAgent()

    def loop(armed: bool) -> list[str]:
        model = ConvNet()
        if armed:
            arm(model, agent)
        optimizer = sgd(model)
        losses = []
        for step in range(10):
            optimizer.zero_grad()
            for _ in range(2 if step < 7 else 4):
                loss = model(torch.randn(4, 3, 8, 8)).square().mean()
                loss.backward()
                losses.append(loss.item().hex())
            optimizer.step()
        return losses

    curves(loop)

    assert agent.steps[-1]["mismatches"] == 0  # four where two were captured
    assert agent.steps[-1]["recomputed"] == 2 * agent.steps[5]["recomputed"] > 0
    assert all(c["differing"] == 0 and c["checked"] for c in agent.checks)


def test_a_batch_that_is_cut_short_runs_under_the_plan_of_a_full_one() -> None:
    agent = LocalAgent()

    def loop(armed: bool) -> list[str]:
        model = RandomNet(3)
        if armed:
            arm(model, agent)
        return train(model, 12, lambda step: torch.randn(5 if step % 4 == 3 else 6, WIDTH))

    curves(loop)

    assert len(agent.graphs) == 1
    assert sum(s.get("mismatches", 0) for s in agent.steps) == 0


def test_larger_inputs_get_rungs_of_their_own_and_one_is_asked_for_ahead() -> None:
    agent = LocalAgent()
    sizes = [4] * 6 + [8] * 4 + [11] * 4 + [4, 8, 11]

    def loop(armed: bool) -> list[str]:
        model = RandomNet(3)
        if armed:
            arm(model, agent)
        return train(model, len(sizes), lambda step: torch.randn(sizes[step], WIDTH))

    curves(loop)

    # Captured: 4 and 8. Fitted: 8 * 1.5 = 12, which covers 11.
    rungs = sessions[0].ladder.rungs
    assert [(r.size // WIDTH, r.fitted) for r in rungs] == [(4, False), (8, False), (12, True)]
    assert sum(s.get("mismatches", 0) for s in agent.steps) == 0
    assert [s["plan_id"] for s in agent.steps[-3:]] == [1, 2, 3]


def test_a_fitted_rung_predicts_the_peak_of_a_size_never_captured() -> None:
    agent = LocalAgent()
    sizes = [4] * 6 + [8] * 4 + [12] * 5

    session_of: list[Session] = []

    def loop(armed: bool) -> list[str]:
        model = ConvNet()
        if armed:
            session_of.append(arm(model, agent, verify_every=0))
        return train(model, len(sizes), lambda step: torch.randn(sizes[step], 3, 16, 16))

    curves(loop)

    rung = session_of[0].planning.rung
    assert rung is not None
    assert rung.fitted
    if session_of[0].meter.exact:
        measured = session_of[0].measured.planned_peak_bytes
        assert rung.plan is not None
        assert abs(measured / rung.plan.peak_bytes - 1) < 0.02


def test_two_ways_through_a_model_have_a_plan_each() -> None:
    agent = LocalAgent()

    def loop(armed: bool) -> list[str]:
        model = TwoFaced()
        if armed:
            arm(model, agent)

        def batch(step: int) -> Tensor:
            model.changed = step % 2 == 1
            return torch.randn(6, WIDTH)

        return train(model, 30, batch)

    curves(loop)

    structures = {r.graph.structure for r in sessions[0].ladder.rungs}
    assert len(structures) == 2
    assert sum(s.get("mismatches", 0) for s in agent.steps[-12:]) == 0
    assert {s["plan_id"] for s in agent.steps[-4:]} == {1, 2}


class ManyFaced(nn.Module):
    """Takes the way it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.way = nn.Linear(WIDTH, WIDTH), 0

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x).sin()
        return (y.exp().cos(), y.cos().tanh().sin(), y.tanh())[self.way]


def test_three_ways_in_turn_have_a_plan_each() -> None:
    agent = LocalAgent()

    def loop(armed: bool) -> list[str]:
        model = ManyFaced()
        if armed:
            arm(model, agent)

        def batch(step: int) -> Tensor:
            model.way = step % 3
            return torch.randn(6, WIDTH)

        return train(model, 60, batch)

    curves(loop)

    assert len({r.graph.structure for r in sessions[0].ladder.rungs}) == 3
    assert sum(s.get("mismatches", 0) for s in agent.steps[-9:]) == 0
    assert {s["plan_id"] for s in agent.steps[-6:]} == {1, 2, 3}


def test_a_program_that_is_never_the_same_is_given_up_and_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Restless(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.calls = nn.Linear(WIDTH, WIDTH), 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            x = self.linear(x)
            for _ in range(self.calls % 17):
                x = x.sin()
            return x

    def loop(armed: bool) -> list[str]:
        model = Restless()
        if armed:
            arm(model, verify_every=0)
        return train(model, 70)

    curves(loop)

    assert sessions[0].stage is Stage.PLAIN
    assert capsys.readouterr().err.count("keeps changing") == 1


def test_training_in_eval_mode_is_training_and_evaluation_is_not() -> None:
    agent = LocalAgent()

    def loop(armed: bool) -> list[str]:
        model = ConvNet().eval()  # frozen statistics
        if armed:
            arm(model, agent)
        return train(model, 9, lambda step: torch.randn(4, 3, 8, 8))

    curves(loop)

    assert sessions[0].stage is Stage.PLANNED
    assert len(agent.steps) == 8  # the first showed that an optimizer follows


def test_evaluation_with_gradients_on_between_steps_is_no_step() -> None:
    agent = LocalAgent()

    def loop(armed: bool) -> list[str]:
        model = ConvNet()
        if armed:
            arm(model, agent)
        losses = []
        for _ in range(4):
            losses += train(model, 2, lambda step: torch.randn(4, 3, 8, 8))
            model.eval()
            losses.append(model(torch.randn(4, 3, 8, 8)).sum().item().hex())
            model.train()
        return losses

    curves(loop)

    assert len(agent.steps) == 8


# ---- Backward in its many forms ---------------------------------------------------


def test_several_backward_calls_through_one_graph_are_equal_and_said_once() -> None:
    agent = LocalAgent()

    def loop(armed: bool) -> list[str]:
        model = RandomNet(5)
        if armed:
            arm(model, agent)
        optimizer = sgd(model)
        losses = []
        for _ in range(9):
            optimizer.zero_grad()
            first, second = model(torch.randn(6, WIDTH))
            first.square().mean().backward(retain_graph=True)
            second.square().mean().backward()
            optimizer.step()
            losses.append(model.linears[0].weight.grad.sum().item().hex())  # type: ignore[union-attr]
        return losses

    curves(loop)

    assert all(c["differing"] == 0 for c in agent.checks)


def test_gradients_of_gradients_are_equal() -> None:
    def loop(armed: bool) -> list[str]:
        model = nn.Sequential(
            nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1), nn.Softplus()
        )
        if armed:
            arm(model, verify_every=0)
        optimizer = sgd(model)
        losses = []
        for _ in range(9):
            x = torch.randn(6, WIDTH, requires_grad=True)
            optimizer.zero_grad()
            out = model(x)
            (grad,) = torch.autograd.grad(out.sum(), x, create_graph=True)
            loss = out.mean() + (grad.norm(dim=1) - 1).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item().hex())
        return losses

    curves(loop)


class Checkpoints(nn.Module):
    """The program recomputes a part by itself, its own way."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.first, self.inner, self.last = deep(), deep(), deep()

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = checkpoint(self.inner, x, use_reentrant=self.reentrant)
        return self.last(x)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints_of_the_program_stay_what_they_are(reentrant: bool) -> None:
    agent = LocalAgent()

    def loop(armed: bool) -> list[str]:
        model = Checkpoints(reentrant)
        if armed:
            arm(model, agent)
        return train(model, 9)

    curves(loop)

    assert sessions[0].stage is Stage.PLANNED
    assert sum(s.get("mismatches", 0) for s in agent.steps) == 0
    assert all(c["differing"] == 0 for c in agent.checks)


def test_saved_tensor_hooks_inside_the_model_keep_their_tensors() -> None:
    packed = [0]

    class Hooked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.inner = deep(), deep()

        def pack(self, tensor: Tensor) -> Tensor:
            packed[0] += 1
            return tensor.double()

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            with torch.autograd.graph.saved_tensors_hooks(self.pack, lambda t: t.float()):
                return self.inner(x)

    def loop(armed: bool) -> list[str]:
        model = Hooked()
        packed[0] = 0
        if armed:
            arm(model, verify_every=0)
        losses = train(model, 9)
        counts.append(packed[0])
        return losses

    counts: list[int] = []
    curves(loop)

    assert counts[0] == counts[1] > 0
    assert sessions[0].stage is Stage.PLANNED


def test_an_exception_in_the_backward_does_not_spoil_the_next_steps() -> None:
    agent = LocalAgent()

    class Trap(torch.autograd.Function):
        set = False

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 1.0

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            if Trap.set:
                raise ValueError("a trap")
            return grad

    class Trapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = deep(), deep()

        def forward(self, x: Tensor) -> Tensor:
            return self.last(Trap.apply(self.first(x)))  # type: ignore[no-untyped-call]

    def loop(armed: bool) -> list[str]:
        model = Trapped()
        if armed:
            arm(model, agent)
        losses = train(model, 5)
        Trap.set = True
        with pytest.raises(ValueError, match="a trap"):
            train(model, 1)
        Trap.set = False
        return losses + train(model, 8)

    curves(loop)

    assert sessions[0].stage is Stage.PLANNED
    assert agent.steps[-1]["mismatches"] == 0


# ---- Models that change -----------------------------------------------------------


def test_a_model_that_changes_its_type_trains_on_to_the_bit() -> None:
    def loop(armed: bool) -> list[str]:
        model = deep()
        if armed:
            arm(model)
        losses = train(model, 6)
        model.double()
        return losses + train(model, 10, lambda step: torch.randn(6, WIDTH).double())

    curves(loop)

    assert sessions[0].stage is Stage.PLANNED


def test_a_new_head_is_trained_and_captured() -> None:
    agent = LocalAgent()

    def loop(armed: bool) -> list[str]:
        model = nn.Sequential(deep(), nn.Linear(WIDTH, 4))
        if armed:
            arm(model, agent)
        losses = train(model, 6)
        model[1] = nn.Sequential(
            nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True), nn.Linear(WIDTH, 2)
        )
        model[0].requires_grad_(False)
        optimizer = torch.optim.SGD(model[1].parameters(), lr=0.05)
        for _ in range(10):
            optimizer.zero_grad()
            loss = model(torch.randn(6, WIDTH)).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item().hex())
        return losses

    curves(loop)

    assert sessions[0].stage is Stage.PLANNED
    assert agent.steps[-1]["mismatches"] == 0


def test_hidden_states_the_program_keeps_are_there_and_right() -> None:
    class Keeping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(deep() for _ in range(3))
            self.hidden: list[Tensor] = []

        def forward(self, x: Tensor) -> Tensor:
            self.hidden = []
            for layer in self.layers:
                x = layer(x)
                self.hidden.append(x)
            return x

    agent = LocalAgent()

    def loop(armed: bool) -> list[str]:
        model = Keeping()
        if armed:
            arm(model, agent)
        optimizer = sgd(model)
        losses = []
        for _ in range(9):
            optimizer.zero_grad()
            out = model(torch.randn(6, WIDTH))
            loss = out.mean() + sum(h.square().mean() for h in model.hidden)
            loss.backward()
            optimizer.step()
            losses += [loss.item().hex(), *(h.sum().item().hex() for h in model.hidden)]
        return losses

    curves(loop)

    assert sessions[0].stage is Stage.PLANNED
    assert sum(s.get("mismatches", 0) for s in agent.steps) == 0
    assert all(c["checked"] > 3 and c["differing"] == 0 for c in agent.checks)


class Scaled(Tensor):
    """A tensor subclass that goes through every op."""


def test_tensor_subclasses_pass_through() -> None:
    def loop(armed: bool) -> list[str]:
        model = deep()
        if armed:
            arm(model, verify_every=0)
        return train(model, 8, lambda step: torch.randn(6, WIDTH).as_subclass(Scaled))

    curves(loop)


# ---- What is not the program's fault ------------------------------------------------


def test_out_of_memory_in_the_forward_is_survived_when_it_can_be() -> None:
    agent = LocalAgent()

    class Hungry(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last, self.fail = deep(), deep(), 0

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            if self.fail:
                self.fail -= 1
                raise torch.OutOfMemoryError("too much")
            return self.last(x)

    model = Hungry()
    session = arm(model, agent, verify_every=0)
    train(model, 6)

    model.fail = 1
    with pytest.raises(torch.OutOfMemoryError):  # nobody was ready for the first
        train(model, 1)
    model.fail = 1
    expected = Hungry()
    expected.load_state_dict(model.state_dict())
    state = torch.get_rng_state()
    found = train(model, 3)
    torch.set_rng_state(state)

    assert train(expected, 3) == found
    assert agent.ooms == 2
    assert any(s["flags"] & 4 for s in agent.steps)
    assert "within" in agent.graphs[1]["name"]  # asked again for less
    assert session.stage is Stage.PLANNED


def test_ops_of_traced_steps_are_recorded_in_pairs() -> None:
    agent = LocalAgent()
    model = RandomNet(2)
    arm(model, agent)

    train(model, 7)

    # A captured step and the second planned one: forward, backward, replays, optimizer.
    assert len(agent.ops) == len(set(agent.ops)) > 2 * len(agent.graphs[0]["ops"]) * 0.8
    assert sorted(agent.ops) == sorted(agent.ended)


def test_a_plan_that_was_found_wrong_is_kept_for_others_and_never_applied_again(
    tmp_path: Any,
) -> None:
    from test_session import Forgetful

    agent = LocalAgent()
    model = Forgetful()
    arm(model, agent)
    train(model, 6)
    again = Forgetful()
    second = arm(again, LocalAgent())  # the same plan once more
    agent = second.agent  # type: ignore[assignment]

    train(again, 6)

    (bundle,) = (tmp_path / "reprise" / "quarantine").iterdir()
    assert {f.name for f in bundle.iterdir()} == {"graph.json", "plan.json", "report.json"}
    assert "found to change gradients before" in agent.states[-1][2]
    assert second.measured.planned_steps == 0


def test_nothing_of_a_planned_step_outlives_it() -> None:
    model = RandomNet(4)
    session = arm(model, verify_every=0)
    train(model, 8)
    gc.collect()
    before = session.meter.live()

    train(model, 3)
    gc.collect()

    assert session.meter.live() - before <= 4 * 4096
    assert F.relu(torch.ones(1)) == 1
    assert reprise.report(model).planned_steps > 4


@pytest.mark.parametrize("first", ["armed", "compiled"])
def test_a_compiled_model_trains_on_and_is_left_alone(first: str) -> None:
    def loop(armed: bool) -> list[str]:
        torch._dynamo.reset()
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
        if armed and first == "armed":
            arm(model)
        call = torch.compile(model, backend="aot_eager")
        if armed and first == "compiled":
            arm(model)
        optimizer = sgd(model)
        losses = []
        for _ in range(8):
            optimizer.zero_grad()
            loss = call(torch.randn(6, WIDTH)).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item().hex())
        return losses

    curves(loop)
