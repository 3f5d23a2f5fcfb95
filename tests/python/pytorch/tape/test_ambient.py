# SPDX-License-Identifier: Apache-2.0
"""What a kernel reads besides the arguments of its op is, when the op runs again, what it was in
the forward."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from arming import arm, remove_all
from jobs import different, plain_step, planned_step, start_meter
from local_agent import LocalAgent
from nets import job
from tapes import plan, prepared
from torch import Tensor, nn

from reprise.torch.compiled import fast
from reprise.torch.internals import ambient
from reprise.torch.policy.state import Stage

# Random programs. REPRISE_AMBIENT_PROGRAMS=1000 looks longer.
PROGRAMS = int(os.environ.get("REPRISE_AMBIENT_PROGRAMS", "30"))
SMALLEST = 2.2250738585072014e-308  # half of it is denormal
BATCH, WIDTH = 6, 16


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Puts back what a program has left changed."""
    before = ambient.Ambient([])
    yield
    remove_all()
    ambient.enter(before)


def as_default(x: Tensor) -> Tensor:
    return x.to(torch.get_default_dtype())


def linspace(x: Tensor) -> Tensor:
    return (as_default(x) * torch.linspace(0.1, 0.7, WIDTH)).to(x.dtype)


def full(x: Tensor) -> Tensor:
    return (as_default(x) * torch.full((WIDTH,), 1 / 3)).to(x.dtype)


def rand(x: Tensor) -> Tensor:
    return (as_default(x) * torch.rand(BATCH, WIDTH)).to(x.dtype)


def normal(x: Tensor) -> Tensor:
    return (as_default(x) * torch.randn(WIDTH).cos()).to(x.dtype)


def unwritten(x: Tensor) -> Tensor:
    return x * torch.empty(WIDTH).nan_to_num(0.5).clamp(0.5, 0.5).to(x.dtype)


def denormal(x: Tensor) -> Tensor:
    return x + (x.double() * SMALLEST / 4).mul(2.0**1022).to(x.dtype)


def sums(x: Tensor) -> Tensor:
    return x * (x.sum() / x.numel()).tanh()


def product(x: Tensor) -> Tensor:
    return (x @ x.t()).sigmoid() @ x / BATCH


def convolved(x: Tensor) -> Tensor:
    return torch.conv1d(x[:, None], x[:2, None, :3].contiguous(), padding=1).mean(1)


def attends(x: Tensor) -> Tensor:
    heads = x.view(1, 2, BATCH, WIDTH // 2)
    out = nn.functional.scaled_dot_product_attention(heads, heads, heads)
    return out.reshape(BATCH, WIDTH)


LAYERS = (linspace, full, rand, normal, unwritten, denormal, sums, product, convolved, attends)


class Net(nn.Module):
    """Layers that make tensors without saying of which dtype; `between` runs after each."""

    def __init__(self, layers: tuple[Callable[[Tensor], Tensor], ...] = (linspace, full, rand)):
        super().__init__()
        self.layers = layers
        self.weights = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in layers)
        self.between: Callable[[int], Any] = lambda at: None

    def forward(self, x: Tensor) -> Tensor:
        for at, (layer, weight) in enumerate(zip(self.layers, self.weights, strict=True)):
            x = layer(weight(x)).tanh().sin()
            self.between(at)
        return x


def around(monkeypatch: pytest.MonkeyPatch, made: Any, before: Any, after: Any) -> None:
    """Calls `before` when a forward begins and `after` when it ends."""
    forward = made.model.forward

    def changed(x: Tensor) -> Tensor:
        before()
        out: Tensor = forward(x)
        after()
        return out

    monkeypatch.setattr(made.model, "forward", changed)


def doubles() -> None:
    torch.set_default_dtype(torch.float64)


def singles() -> None:
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("half")
@pytest.mark.parametrize("seed", range(4))
def test_a_forward_under_another_default_dtype_than_its_backward_has_its_own_gradients(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = job(Net(), BATCH, WIDTH)
    around(monkeypatch, made, doubles, singles)
    graph = prepared(made)
    expected = plain_step(made, seed, step=False)

    found, counts, _ = planned_step(made, graph, plan(graph, seed, again=0.5), seed, step=False)

    assert different(expected, found) == []
    assert counts.replayed > 0
    assert counts.mismatches == 0, counts.first_mismatch
    assert torch.get_default_dtype() is torch.float32


@pytest.mark.usefixtures("half")
def test_every_op_runs_again_in_its_own_state_if_the_state_changes_in_a_forward() -> None:
    made = job(Net((rand, rand, linspace, rand, full, rand)), BATCH, WIDTH)

    def alternate(at: int) -> None:
        torch.set_default_dtype(torch.float64 if at % 2 else torch.float32)

    made.model.between = alternate  # type: ignore[assignment]
    graph = prepared(made)
    for seed in range(4):
        expected = plain_step(made, seed, step=False)

        found, counts, _ = planned_step(made, graph, plan(graph, seed, again=0.5), seed, step=False)

        assert different(expected, found) == []
        assert counts.mismatches == 0, counts.first_mismatch
        assert torch.get_default_dtype() is torch.float64


@pytest.mark.usefixtures("half")
def test_what_is_made_on_demand_is_made_in_its_own_state(monkeypatch: pytest.MonkeyPatch) -> None:
    made = job(Net(), BATCH, WIDTH)
    around(monkeypatch, made, doubles, singles)
    graph = prepared(made)
    loss = made.loss
    expected = plain_step(made, 1, step=False)

    class Kept:
        """A loss whose backward keeps the graph, as the captured one did not."""

        def __init__(self, out: Tensor) -> None:
            self.loss = loss(out)

        def backward(self) -> None:
            self.loss.backward(retain_graph=True)

    made.loss = Kept  # type: ignore[assignment]
    found, counts, _ = planned_step(made, graph, plan(graph), 1, step=False)

    assert different(expected, found) == []
    assert counts.on_demand > 0


def other(value: Any) -> Any:
    """Returns another value of a fact."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, tuple):
        return (not value[0], *value[1:])
    if isinstance(value, torch.dtype):
        return torch.float64
    if isinstance(value, int):
        return value + 1
    return {"none": "ieee", "ieee": "tf32", "tf32": "ieee", "highest": "high"}[value]


WATCHED = [fact for fact in ambient.FACTS if fact.watched]


@pytest.mark.parametrize("fact", WATCHED, ids=lambda fact: fact.name)
def test_both_engines_see_every_fact_that_is_on_the_list(fact: ambient.Fact) -> None:
    module = fast.library()
    assert module is not None
    first, mark, before = ambient.current(), module.mark(False), fact.read()

    try:
        fact.write(other(before))
    except RuntimeError as error:
        pytest.skip(str(error))  # this CPU has no such arithmetic

    assert fact.read() != before
    assert ambient.current().marks != first.marks
    assert module.mark(False) != mark
    ambient.leave(ambient.enter(first))
    assert fact.read() != before  # `leave` puts back what was there
    ambient.enter(first)
    assert fact.read() == before
    assert module.mark(False) == mark
    assert ambient.current().values == first.values


def test_a_state_that_torch_refuses_leaves_everything_as_it_is() -> None:
    before = ambient.Ambient([])
    wrong = ambient.Ambient([])
    torch.set_default_dtype(torch.float64)
    wrong.values = list(wrong.values)
    wrong.values[[fact.name for fact in ambient.FACTS].index("mkldnn_enabled")] = "neither"

    with pytest.raises(RuntimeError, match="bool"):
        ambient.enter(wrong)

    assert torch.get_default_dtype() is torch.float64
    torch.set_default_dtype(torch.float32)
    assert ambient.Ambient([]).values == before.values


@pytest.mark.usefixtures("half")
def test_a_backward_in_inference_mode_has_the_gradients_of_the_plain_one() -> None:
    made = job(Net((product, sums, convolved)), BATCH, WIDTH)
    graph = prepared(made)
    loss = made.loss

    class Inferring:
        def __init__(self, out: Tensor) -> None:
            self.loss = loss(out)

        def backward(self) -> None:
            with torch.inference_mode():
                self.loss.backward()

    made.loss = Inferring  # type: ignore[assignment]
    expected = plain_step(made, 1, step=False)

    found, counts, _ = planned_step(made, graph, plan(graph), 1, step=False)

    assert different(expected, found) == []
    assert counts.replayed > 0


# ---- Random programs --------------------------------------------------------------------


def fill_uninitialized(on: bool) -> None:
    torch.utils.deterministic.fill_uninitialized_memory = on


BOTH = (False, True)
CHANGES: tuple[tuple[Callable[[Any], Any], tuple[Any, ...]], ...] = (
    *3 * ((torch.set_default_dtype, (torch.float32, torch.float64)),),
    (torch.set_num_threads, (1, 2, 3)),
    (torch.set_float32_matmul_precision, ("highest", "high", "medium")),
    (torch.use_deterministic_algorithms, BOTH),
    (lambda on: torch.use_deterministic_algorithms(on, warn_only=True), BOTH),
    (fill_uninitialized, BOTH),
    (torch._C._set_mkldnn_enabled, BOTH),
    (torch._C._set_mkldnn_deterministic, BOTH),
    (torch.set_flush_denormal, BOTH),
    (torch.backends.cuda.enable_flash_sdp, BOTH),
    (torch.set_anomaly_enabled, BOTH),
)


def change(dice: random.Random) -> Callable[[], Any]:
    """Returns a random change of the state."""
    do, values = dice.choice(CHANGES)
    return partial(do, dice.choice(values))


class Program:
    """A random program, which changes the state around its ops at random places."""

    def __init__(self, seed: int) -> None:
        dice = random.Random(seed)
        layers = tuple(dice.choice(LAYERS) for _ in range(dice.randint(5, 8)))
        torch.manual_seed(seed)
        self.model = Net(layers)
        self.changes = {
            place: [change(dice) for _ in range(dice.randint(2, 5))]
            for place in ("forward", "backward", "optimizer", *range(len(layers)))
            if not isinstance(place, int) or dice.random() < 0.2
        }
        self.model.between = self.change  # type: ignore[assignment]
        self.infers = dice.random() < 0.15
        self.keeps = dice.random() < 0.1

    def change(self, place: int | str) -> None:
        for do in self.changes.get(place, ()):
            do()

    def train(self, steps: int) -> list[str]:
        """Trains; returns losses, weights and exceptions to the last bit."""
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        torch.manual_seed(5)
        said: list[str] = []
        for step in range(steps):
            x = torch.randn(BATCH, WIDTH, dtype=torch.float32)
            try:
                optimizer.zero_grad()
                self.change("forward")
                loss = self.model(x).square().mean()
                self.change("backward")
                with torch.inference_mode() if self.infers else nullcontext():
                    loss.backward(retain_graph=self.keeps and step == 6)
                self.change("optimizer")
                optimizer.step()
                said.append(loss.item().hex())
            except Exception as error:
                said.append(f"{type(error).__name__}: {error}")
        said += [p.detach().numpy().tobytes().hex() for p in self.model.parameters()]
        return said


@pytest.mark.train
@pytest.mark.usefixtures("half")
@pytest.mark.mostly_long(1)
@pytest.mark.parametrize("bundle", range(3))
def test_random_programs_that_change_the_state_around_their_ops_train_as_they_do_plainly(
    bundle: int,
) -> None:
    start_meter()
    outside = ambient.Ambient([])
    planned = 0
    for seed in range(bundle, PROGRAMS, 3):
        torch.set_anomaly_enabled(False)
        ambient.enter(outside)
        expected = Program(seed).train(10)
        state = ambient.Ambient([]).values
        torch.set_anomaly_enabled(False)
        ambient.enter(outside)
        program, agent = Program(seed), LocalAgent(seed=seed, again=0.5)
        session = arm(program.model, agent)

        found = program.train(10)

        assert found == expected, f"program {seed}"
        assert ambient.Ambient([]).values == state, f"program {seed}"
        assert all(c["differing"] == 0 for c in agent.checks), f"program {seed}"
        planned += session.job.stage is Stage.PLANNED
        remove_all()
    torch.set_anomaly_enabled(False)
    assert planned > PROGRAMS // 6
