# SPDX-License-Identifier: Apache-2.0
"""Training loops of many kinds: whatever a step does, the job trains as without Reprise."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from arming import arm, sessions
from local_agent import LocalAgent
from loops import curves, deep, sgd, train
from nets import WIDTH, ConvNet, RandomNet, TwoFaced
from torch import Tensor, nn

from reprise.agent import abi
from reprise.torch.policy.state import Stage
from reprise.torch.session.session import Session

pytestmark = pytest.mark.usefixtures("removed")


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

    assert sessions[0].job.stage is Stage.PLANNED
    # The first step ended at the first optimizer, before the second was known.
    assert len(agent.steps) == 10
    assert sum(s.get("mismatches", 0) for s in agent.steps) == 0
    assert len(agent.graphs[0]["ops"]) > 40  # both updates are in the captured step


def test_a_second_fit_with_an_optimizer_of_its_own_keeps_to_the_plan_in_every_step() -> None:
    class Fit:
        """Refers to itself, as trainers do, so that only the garbage collector frees it."""

        def __init__(self, model: nn.Module) -> None:
            self.optimizer = torch.optim.AdamW(model.parameters())
            self.self = self

    agent = LocalAgent(again=1.0)

    def loop(armed: bool) -> list[str]:
        model = nn.Sequential(deep(128), deep(128))
        if armed:
            arm(model, agent)
        losses = []
        for _ in range(2):
            fit = Fit(model)
            for _ in range(8):
                fit.optimizer.zero_grad()
                loss = model(torch.randn(256, 128)).square().mean()
                loss.backward()
                fit.optimizer.step()
                losses.append(loss.item().hex())
        return losses

    gc.disable()
    try:
        curves(loop)
    finally:
        gc.enable()

    assert len(agent.steps) == 16
    if not sessions[0].job.meter.exact:
        pytest.skip("needs the exact meter")
    planned = [step["peak_bytes"] for step in agent.steps if step["recomputed"]]
    assert len(planned) >= 12
    assert max(planned) <= agent.plan_peak + 8192


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

    assert [s.job.stage for s in sessions] == [Stage.PLANNED, Stage.PLANNED]
    assert all(s.job.measured.planned_steps > 2 for s in sessions)
    assert all(s.job.record.verdict().checks_differing == 0 for s in sessions)


def test_a_part_of_an_armed_model_that_is_armed_too_is_not_planned() -> None:
    def loop(armed: bool) -> list[str]:
        model = nn.Sequential(deep(), deep())
        if armed:
            arm(model), arm(model[0])  # type: ignore[arg-type]
        return train(model, 8)

    curves(loop)

    assert sessions[0].job.stage is Stage.PLANNED
    assert sessions[1].job.measured.plain_steps == 0


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

    # Four where two were captured: those beyond run as the second one did, whatever it runs again.
    assert agent.steps[-1]["mismatches"] == 0
    assert agent.steps[-1]["recomputed"] >= agent.steps[5]["recomputed"] > 0
    assert all(c["differing"] == 0 and c["checked"] for c in agent.checks)


def test_a_shorter_batch_runs_under_the_plan_of_a_full_one() -> None:
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
    rungs = sessions[0].job.plans.ladder.rungs
    assert [(r.size // WIDTH, r.fitted) for r in rungs] == [(4, False), (8, False), (12, True)]
    assert sum(s.get("mismatches", 0) for s in agent.steps) == 0
    assert [s["plan_id"] for s in agent.steps[-3:]] == [1, 2, 3]


def test_no_cuda_graph_is_captured_under_the_plan_of_a_size_that_was_only_foreseen() -> None:
    """The plan that it would be captured under is made of the captured graph of another size."""
    agent = LocalAgent()
    sizes = [4] * 6 + [8] * 6
    model = RandomNet(3)
    session = arm(model, agent)
    train(model, len(sizes), lambda step: torch.randn(sizes[step], WIDTH))
    (foreseen,) = [r for r in session.job.plans.ladder.rungs if r.foreseen is not None]
    asked = len(agent.graphs)

    why = session.parts.beside.in_graph(foreseen)

    assert foreseen.tape is not None
    assert why == "no step with an input as large was captured yet"
    assert len(agent.graphs) == asked


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

    rung = session_of[0].job.plans.rung
    assert rung is not None
    assert rung.fitted
    if session_of[0].job.meter.exact:
        measured = session_of[0].job.measured.under(rung.number).covered_peak_bytes
        assert rung.plan is not None
        assert abs(measured / rung.plan.peak_bytes - 1) < 0.02


def test_two_paths_through_a_model_have_a_plan_each() -> None:
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

    structures = {r.graph.structure for r in sessions[0].job.plans.ladder.rungs}
    assert len(structures) == 2
    assert sum(s.get("mismatches", 0) for s in agent.steps[-12:]) == 0
    assert {s["plan_id"] for s in agent.steps[-4:]} == {1, 2}


class ManyFaced(nn.Module):
    """Takes the path that it is told to take."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.way = nn.Linear(WIDTH, WIDTH), 0

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x).sin()
        return (y.exp().cos(), y.cos().tanh().sin(), y.tanh())[self.way]


def test_three_alternating_paths_have_a_plan_each() -> None:
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

    assert len({r.graph.structure for r in sessions[0].job.plans.ladder.rungs}) == 3
    assert sum(s.get("mismatches", 0) for s in agent.steps[-9:]) == 0
    assert {s["plan_id"] for s in agent.steps[-6:]} == {1, 2, 3}


def test_a_program_that_never_repeats_a_step_keeps_its_plan_and_says_how_it_leaves_it(
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

    assert sessions[0].job.stage is Stage.PLANNED
    said = capsys.readouterr().err
    agent: Any = sessions[0].job.agent
    why = [told for _, state, told in agent.states if state == abi.PLAN_LEFT][-1]
    assert why.startswith("in different ways, first as op ")
    assert " is aten.sin.default, captured was " in why or "the forward ended after" in why
    assert f" steps left the plan and kept everything from there on: {why}" in said
    assert f" times and kept everything then: {why}." in sessions[0].job.record.verdict().sentence


def test_training_in_eval_mode_is_training_and_evaluation_is_not() -> None:
    agent = LocalAgent()

    def loop(armed: bool) -> list[str]:
        model = ConvNet().eval()  # frozen statistics
        if armed:
            arm(model, agent)
        return train(model, 9, lambda step: torch.randn(4, 3, 8, 8))

    curves(loop)

    assert sessions[0].job.stage is Stage.PLANNED
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
