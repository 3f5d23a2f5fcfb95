# SPDX-License-Identifier: Apache-2.0
"""Whatever is needed again is present or is recomputed: as planned under any valid plan, and on
demand if the plan's counts are wrong or the backward comes in another order."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import random
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import referee
import torch
from jobs import (
    CapturedGraph,
    Counts,
    Job,
    Tape,
    captured,
    compile_plan,
    different,
    plain_step,
    start_meter,
)
from nets import WIDTH, job
from torch import Tensor, nn
from torch.nn import functional as F
from zoo import CellLSTM

from reprise.torch.tape.program import Program, Replay, rehearse

# A busy machine finds a plan too, only later.
LIMITS = ("--time-limit", "15s", "--gap", "20%")


@dataclasses.dataclass
class Case:
    """A step with many chains of in-place ops on one storage, and its plain gradients."""

    job: Job
    graph: CapturedGraph
    expected: dict[str, Tensor]

    def plan(self, seed: int) -> list[int]:
        rng = random.Random(seed)
        share, again = rng.choice((0.1, 0.3, 0.6, 1.0)), rng.choice((0.0, 0.1, 0.3, 0.9, 1.0))
        message = self.graph.message()
        schedule = referee.random_plan(message, seed, share, again)
        schedule = referee.wasteful_plan(message, schedule, seed, rng.choice((0.0, 0.1, 0.3, 0.6)))
        referee.evaluate(message, schedule)
        return schedule

    def run(self, program: Program, before: Callable[[Tensor], None] | None = None) -> Counts:
        """Runs a step; its gradients must be the plain ones."""
        made = self.job
        run = Tape(program)
        counts = run.begin().counts
        made.begin(0)
        with run.region():
            out = made.model(*made.inputs)
        loss = made.loss(out)
        del out
        if before is not None:
            before(loss)
        loss.backward()
        assert different(self.expected, made.state()) == []
        return counts


@pytest.fixture(scope="module")
def case() -> Iterator[Case]:
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    model = CellLSTM()
    tokens = torch.randint(0, 64, (8, 20))
    made = Job(
        model,
        (tokens[:, :-1],),
        lambda out: F.cross_entropy(out.flatten(0, 1), tokens[:, 1:].flatten()),
        torch.optim.SGD(model.parameters(), lr=0.0),
    )
    plain_step(made, 0)
    graph = captured(made, start_meter())
    yield Case(made, graph, plain_step(made, 0, step=False))
    torch.set_num_threads(threads)


@pytest.mark.parametrize("seed", range(0, 60, 10))
def test_replays_whose_results_are_not_used_do_not_affect_the_others(case: Case, seed: int) -> None:
    for number in range(seed, seed + 10):
        counts = case.run(compile_plan(case.graph, case.plan(number)))

        assert (counts.mismatches, counts.on_demand) == (0, 0), f"plan {number}"


def test_a_replay_whose_result_is_not_used_is_left_out(case: Case) -> None:
    message = case.graph.message()
    schedule = referee.random_plan(message, 3, 1.0, 0.3)
    wasteful = referee.wasteful_plan(message, schedule, 3, 0.6)

    assert len([e for e in wasteful if e >= 0]) > len([e for e in schedule if e >= 0])
    useful = compile_plan(case.graph, schedule).replays
    assert compile_plan(case.graph, wasteful).replays <= useful


@pytest.mark.e2e
@pytest.mark.mostly_long(1)
@pytest.mark.parametrize("budget", ["0.7x", "0.8x"])
def test_plans_of_the_planner_run_as_planned(
    case: Case, budget: str, daemon_binary: Path, tmp_path: Path
) -> None:
    for seed in range(2):
        message, rng = case.graph.message(), random.Random(seed)
        for op in message["ops"]:  # other times, other plans
            op["time_ns"] = int(op["time_ns"] * rng.lognormvariate(0, 0.7))
        path, out = tmp_path / f"{seed}.graph.json", tmp_path / f"{seed}.plan.json"
        path.write_text(json.dumps(message))
        program = daemon_binary.parent / "reprise"
        command = [program, "plan", path, "--budget", budget, "--executor", "tape"]
        done = subprocess.run(
            [*map(str, command), "--seed", str(seed), *LIMITS, "-o", str(out)],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        entries = json.loads(out.read_text())["schedule"]
        schedule = [int(n) if what == "exec" else -int(n) - 1 for what, n in entries]

        counts = case.run(compile_plan(case.graph, schedule))

        assert (counts.mismatches, counts.on_demand) == (0, 0)
        assert counts.replayed > 0


# ---- Wrong counts -------------------------------------------------------------------


def too_few_uses(program: Program, rng: random.Random) -> Program:
    def fewer(replay: Replay) -> Replay:
        less = {s: max(1, n - rng.choice((0, 0, 1, 2))) for s, n in replay.keep.items()}
        return Replay(replay.op, less)

    bursts = tuple(tuple(fewer(r) for r in burst) for burst in program.bursts)
    return dataclasses.replace(program, bursts=bursts)


def left_out_replays(program: Program, rng: random.Random) -> Program:
    bursts = tuple(tuple(r for r in burst if rng.random() < 0.9) for burst in program.bursts)
    return dataclasses.replace(program, bursts=bursts)


def too_few_replays(program: Program, rng: random.Random) -> Program:
    rows = tuple(
        dataclasses.replace(row, replays=row.replays - 1)
        if row.replays > 1 and rng.random() < 0.2
        else row
        for row in program.rows
    )
    return dataclasses.replace(program, rows=rows)


@pytest.mark.parametrize("spoil", [too_few_uses, left_out_replays, too_few_replays])
def test_wrong_counts_are_refused_and_would_not_stop_a_step(
    case: Case, spoil: Callable[[Program, random.Random], Program]
) -> None:
    on_demand = refused = 0
    for seed in range(12):
        program = compile_plan(case.graph, case.plan(seed))
        spoiled = spoil(program, random.Random(seed))

        why = rehearse(spoiled, case.graph.step)
        counts = case.run(spoiled)

        assert why or counts.on_demand == 0
        refused += bool(why)
        on_demand += counts.on_demand > 0
    assert refused > 3
    assert on_demand > 3


# ---- Another order ------------------------------------------------------------------


def asks_for_saved_tensors(loss: Tensor, rng: random.Random) -> None:
    """Hooks that read what other nodes saved, in the middle of the backward."""
    nodes: list[Any] = []
    todo: list[Any] = [loss.grad_fn]
    while todo:
        node = todo.pop()
        if node is not None and node not in nodes:
            nodes.append(node)
            todo += [following for following, _ in node.next_functions]

    def asks(of: Any) -> Callable[[Any], None]:
        def hook(_: Any) -> None:
            for name in dir(of):
                if name.startswith("_saved_"):
                    with contextlib.suppress(RuntimeError):  # freed: the node has run
                        getattr(of, name)

        return hook

    for node in rng.sample(nodes, 3):
        node.register_prehook(asks(rng.choice(nodes)))


def test_a_backward_in_another_order_from_any_point_gives_equal_gradients(case: Case) -> None:
    left = 0
    for seed in range(16):
        rng = random.Random(seed)
        program = compile_plan(case.graph, case.plan(seed))

        counts = case.run(program, lambda loss, rng=rng: asks_for_saved_tensors(loss, rng))

        left += counts.mismatches
    assert left > 3


class Twice(torch.autograd.Function):
    """Reads what it saved once more than usual, when told to."""

    more = False

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        twice = 2 * x
        del x
        if Twice.more:
            (x,) = ctx.saved_tensors
            twice = x + x
        return grad * twice


class Square(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return Twice.apply(self.linear(x).sin()).exp()  # type: ignore[no-any-return]


def test_a_node_that_unpacks_twice_gets_the_same_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    made = job(Square())
    plain_step(made, 0)
    graph = captured(made, start_meter())
    program = compile_plan(graph, referee.random_plan(graph.message(), 0, 1.0, 1.0))
    monkeypatch.setattr(Twice, "more", True)
    case = Case(made, graph, plain_step(made, 0, step=False))

    counts = case.run(program)

    assert counts.dropped > 0


class Halves(nn.Module):
    """Writes two halves of one storage, with other code in between."""

    def __init__(self) -> None:
        super().__init__()
        self.away, self.inner = False, nn.Linear(WIDTH, 2 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.inner(x).sin().unsafe_chunk(2, 1)
        left.sigmoid_()
        if self.away:
            x = x.neg()
        right.tanh_()
        return (left * right).exp()


def test_a_storage_that_is_half_written_when_the_step_leaves_its_plan_is_kept() -> None:
    made = job(Halves())
    plain_step(made, 0)
    graph = captured(made, start_meter())
    program = compile_plan(graph, referee.random_plan(graph.message(), 0, 1.0, 0.3))
    made.model.away = True  # type: ignore[assignment]
    case = Case(made, graph, plain_step(made, 0, step=False))

    counts = case.run(program)

    assert counts.mismatches == 1
    assert counts.dropped > 0
