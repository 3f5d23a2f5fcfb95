# SPDX-License-Identifier: Apache-2.0
"""The oracle: a traced step that is executed exactly as a schedule says has the live bytes that the
planner's evaluator predicts after every exec and every free, and the gradients of the plain
step."""

from __future__ import annotations

import copy
import json
import os
import random
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anywhere
import pytest
import referee
import torch
from jobs import start_meter, sum_of
from nets import WIDTH, Chain, ConvNet, Custom, RandomNet
from oracle.calls import Traced
from oracle.graph import Execution, agreement, execute, first_difference
from oracle.trace import trace, untouched
from torch import Tensor, nn
from zoo import GPT, CellLSTM, Experts, ResNet, ViT

from reprise.base.errors import RepriseError
from reprise.torch.meter.meter import Meter

# Random programs, and schedules for each. REPRISE_PROGRAMS=504 makes it 504 programs,
# 6,048 schedules.
PROGRAMS = int(os.environ.get("REPRISE_PROGRAMS", "42"))
SCHEDULES = 12
BUNDLES = 6
Step = Callable[..., Tensor]


@dataclass
class Case:
    """A traced step and the gradients of the plain one."""

    model: nn.Module
    traced: Traced
    expected: dict[str, Tensor]

    def run(self, schedule: list[int], meter: Meter) -> Execution:
        with untouched(self.model):
            return execute(self.traced, schedule, meter)

    def differing(self, done: Execution) -> list[str]:
        assert done.gradients.keys() == self.expected.keys()
        return [n for n, g in self.expected.items() if not torch.equal(g, done.gradients[n])]


def loss_of(model: nn.Module, x: Tensor) -> Tensor:
    return sum_of(model(x))


def case_of(model: nn.Module, *inputs: Tensor, step: Step = loss_of) -> Case:
    model.train()
    parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
    with untouched(model):
        loss = step(model, *inputs)
        grads = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    del loss
    expected = {n: g for n, g in zip(parameters, grads, strict=True) if g is not None}
    return Case(model, trace(step, model, *inputs), expected)


def random_case(seed: int) -> Case:
    torch.manual_seed(seed)
    return case_of(RandomNet(seed, 4 + seed % 9), torch.randn(4, WIDTH))


@pytest.fixture
def meter() -> Meter:
    meter = start_meter()
    if not meter.exact:
        pytest.fail(f"this machine has no exact meter: {meter.why}")
    return meter


class Planner:
    """The planner and its evaluator, called through the command."""

    def __init__(self, program: Path, folder: Path) -> None:
        self._program, self._folder = str(program), folder

    def _command(self, *arguments: str) -> Any:
        done = subprocess.run(
            [self._program, "--json", *arguments],
            cwd=self._folder, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.stdout, done.stderr
        return json.loads(done.stdout)

    def _graph(self, message: dict[str, Any]) -> str:
        (self._folder / "a.graph.json").write_text(json.dumps(message))
        return "a.graph.json"

    def curve(self, message: dict[str, Any], schedule: list[int], policy: str) -> list[int]:
        """Returns the live bytes while every exec runs, according to the evaluator."""
        graph = self._graph(message)
        entries = [["exec", e] if e >= 0 else ["free", -e - 1] for e in schedule]
        plan = {
            "format": "reprise.plan/1", "graph": graph, "executor": "graph",
            "free_policy": policy, "budget_bytes": 1 << 60, "feasible": True,
            "peak_bytes": 1 << 60, "base_peak_bytes": 0, "time_ns": 0, "base_time_ns": 0,
            "overhead": 0, "bound": 0, "bound_scope": "order", "proven_optimal": False,
            "saved": [], "recomputed_ops": [], "schedule": entries,
        }  # fmt: skip
        (self._folder / "a.plan.json").write_text(json.dumps(plan))
        return list(self._command("show", "a.plan.json")["memory"])

    def plan(self, message: dict[str, Any], budget: str, policy: str, seed: int = 0) -> list[int]:
        """Returns the planner's own schedule; empty if there is none."""
        executor = f"graph:free_policy={policy}"
        found = self._command(
            "plan", self._graph(message), "--budget", budget, "--executor", executor,
            "--time-limit", "1s", "--seed", str(seed),
        )  # fmt: skip
        return [int(n) if what == "exec" else -int(n) - 1 for what, n in found["schedule"]]


@pytest.fixture
def planner(daemon_binary: Path, tmp_path: Path) -> Planner:
    return Planner(daemon_binary.parent / "reprise", tmp_path)


# ---- Random programs under random schedules --------------------------------------------


@pytest.mark.train
@pytest.mark.mostly_long(2)
@pytest.mark.parametrize("bundle", range(BUNDLES))
def test_random_programs_have_the_bytes_and_gradients_that_the_evaluator_says(
    bundle: int, meter: Meter
) -> None:
    again = backward = 0
    for program in range(bundle, PROGRAMS, BUNDLES):
        case = random_case(program)
        message = case.traced.message()
        for seed in range(SCHEDULES):
            policy, rate = ("eager", "program")[seed % 2], (0.05, 0.12, 0.3)[seed % 3]
            schedule = anywhere.plan(message, seed, policy, rate)
            predicted = referee.evaluate(message, schedule)[2]

            done = case.run(schedule, meter)

            found = first_difference(case.traced, schedule, done.bytes, predicted)
            assert found == "", f"program {program}, schedule {seed}"
            assert case.differing(done) == [], f"program {program}, schedule {seed}"
            again += anywhere.most_runs(schedule) > 2
            backward += anywhere.runs_backward_again(message, schedule)
    assert again > SCHEDULES
    assert backward > SCHEDULES


@pytest.mark.e2e
@pytest.mark.parametrize("policy", ["eager", "program"])
def test_the_planners_evaluator_predicts_the_execution_exactly(
    policy: str, meter: Meter, planner: Planner
) -> None:
    for number in range(8):
        case = random_case(1000 + number)
        message = case.traced.message()
        schedule = anywhere.plan(message, number, policy)

        done = case.run(schedule, meter)

        predicted = planner.curve(message, schedule, policy)
        assert first_difference(case.traced, schedule, done.bytes, predicted) == "", number
        assert case.differing(done) == [], number


# ---- The planner's own plans ------------------------------------------------------------


def labelled(model: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(x).flatten(0, -2), labels)


def text(model: nn.Module) -> Case:
    tokens = torch.randint(0, 64, (4, 17))
    return case_of(model, tokens[:, :-1], tokens[:, 1:].flatten(), step=labelled)


def images(model: nn.Module) -> Case:
    return case_of(model, torch.randn(4, 3, 32, 32), torch.randint(0, 10, (4,)), step=labelled)


MODELS: dict[str, Callable[[], Case]] = {
    "random": lambda: random_case(7),
    "convolutions": lambda: case_of(ConvNet(), torch.randn(4, 3, 8, 8)),
    "chain": lambda: case_of(Chain(30), torch.randn(64, WIDTH)),
    "custom function": lambda: case_of(Custom(), torch.randn(64, WIDTH)),
    "gpt": lambda: text(GPT(2)),
    "lstm-cell": lambda: text(CellLSTM()),
    "moe": lambda: text(GPT(2, mlp=Experts)),
    "resnet": lambda: images(ResNet()),
    "vit": lambda: images(ViT()),
}


@pytest.mark.e2e
@pytest.mark.mostly_long(3)
@pytest.mark.parametrize("name", MODELS)
def test_plans_of_the_planner_run_exactly_as_predicted(
    name: str, meter: Meter, planner: Planner
) -> None:
    case = MODELS[name]()
    message = case.traced.message()
    reruns = 0
    for policy, budget in (("eager", "0.9x"), ("eager", "0.7x"), ("program", "0.9x")):
        schedule = planner.plan(message, budget, policy)
        if not schedule:
            continue  # nothing fits

        done = case.run(schedule, meter)

        predicted = planner.curve(message, schedule, policy)
        assert first_difference(case.traced, schedule, done.bytes, predicted) == ""
        assert case.differing(done) == []
        reruns += len([e for e in schedule if e >= 0]) - len(message["ops"])
    assert reruns > 0


# ---- It would notice ----------------------------------------------------------------------


def moved(schedule: list[int], at: int, to: int) -> list[int]:
    entry = schedule[at]
    rest = schedule[:at] + schedule[at + 1 :]
    return [*rest[:to], entry, *rest[to:]]


@pytest.mark.parametrize("late", [True, False])
def test_an_evaluator_that_frees_too_late_or_too_early_is_detected(
    late: bool, meter: Meter
) -> None:
    """Executes one schedule and evaluates another that differs in the position of one free."""
    rng = random.Random(0)
    for number in range(4):
        case = random_case(number)
        message = case.traced.message()
        right = anywhere.plan(message, number, "eager")
        at = rng.choice([i for i in range(len(right)) if _may_wait(message, right, i)])
        wrong = moved(right, at, at + 1)
        executed, evaluated = (right, wrong) if late else (wrong, right)

        done = case.run(executed, meter)

        same = referee.evaluate(message, executed)[2]
        assert first_difference(case.traced, executed, done.bytes, same) == ""
        other = referee.evaluate(message, evaluated)[2]
        assert "bytes are alive" in first_difference(case.traced, executed, done.bytes, other)


def _may_wait(message: dict[str, Any], schedule: list[int], at: int) -> bool:
    """Returns whether an entry frees a storage that the exec right after it does not make."""
    if schedule[at] >= 0 or at + 1 == len(schedule) or schedule[at + 1] < 0:
        return False
    storage = -schedule[at] - 1
    return (
        message["storages"][storage]["bytes"] > 0
        and storage not in message["ops"][schedule[at + 1]]["writes"]
    )


def test_a_free_before_the_last_reader_is_refused(meter: Meter) -> None:
    case = random_case(3)
    schedule = anywhere.plan(case.traced.message(), 3, "eager")
    at = next(i for i, e in enumerate(schedule) if e < 0)

    with pytest.raises(RepriseError, match="is not present"):
        case.run(moved(schedule, at, at - 1), meter)


@pytest.mark.train
def test_versions_that_are_not_counted_are_detected(meter: Meter) -> None:
    """Executes schedules that are valid for a graph in which in-place ops leave no new version."""
    refused = 0
    for number in range(8, 16):
        case = random_case(number)
        message = copy.deepcopy(case.traced.message())
        if not any(op["mutates"] for op in message["ops"]):
            continue
        for op in message["ops"]:
            op["mutates"] = []
        schedule = anywhere.plan(message, number, "eager")
        referee.evaluate(message, schedule)
        try:
            done = case.run(schedule, meter)
        except RepriseError as error:
            refused += "version" in str(error)
        else:
            assert case.differing(done) == []
    assert refused > 4


def test_a_random_op_that_draws_other_numbers_is_noticed(
    meter: Meter, monkeypatch: pytest.MonkeyPatch
) -> None:
    from reprise.torch.internals.ambient import GeneratorState

    torch.manual_seed(0)  # or two masks of few elements may be the same by chance
    case = case_of(ConvNet(), torch.randn(2, 3, 8, 8), step=lambda m, x: noisy(m, x))
    message = case.traced.message()
    schedule = anywhere.plan(message, 1, "eager")
    assert case.differing(case.run(schedule, meter)) == []
    monkeypatch.setattr(GeneratorState, "restore", lambda _: None)

    assert case.differing(case.run(schedule, meter)) != []


def noisy(model: nn.Module, x: Tensor) -> Tensor:
    return (nn.functional.dropout(model(x), 0.5) * model(x).exp()).square().mean()


# ---- What users call ----------------------------------------------------------------------


@pytest.mark.e2e
def test_a_user_can_ask_whether_the_planner_is_right_about_a_model(
    home: Path, agent_library: Path, daemon_binary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPRISE_AGENT", str(agent_library))
    monkeypatch.setenv("REPRISE_DAEMON", str(daemon_binary))
    model = ConvNet().train()
    before = {n: t.clone() for n, t in model.state_dict().items()}

    found = agreement(loss_of, model, torch.randn(4, 3, 16, 16), budget="0.6x")

    assert found.agrees
    assert "memory as predicted after each of" in str(found)
    assert all(torch.equal(before[n], t) for n, t in model.state_dict().items())


def test_a_step_that_draws_from_its_own_generator_is_refused() -> None:
    generator = torch.Generator()

    def step(model: nn.Module) -> Tensor:
        return model(torch.randn(4, WIDTH, generator=generator)).sum()  # type: ignore[no-any-return]

    with pytest.raises(RepriseError, match="generator of its own"):
        trace(step, nn.Linear(WIDTH, WIDTH))


def test_a_step_that_is_not_made_of_tensor_calls_is_refused() -> None:
    def step(model: nn.Module, x: Tensor) -> Tensor:
        return model(x.to_sparse().to_dense() if x.sum() > 100 else x.to_sparse()).sum()  # type: ignore[no-any-return]

    with pytest.raises(RepriseError, match="cannot be traced"):
        trace(step, nn.Linear(WIDTH, WIDTH), torch.randn(4, WIDTH))
