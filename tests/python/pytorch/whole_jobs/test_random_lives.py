# SPDX-License-Identifier: Apache-2.0
"""Random programs of forwards, backwards, optimizer steps, dropped graphs, evaluations, graphs kept
over several steps, and one or two models. The plain program is the oracle: a planned one has the
same bits, and raises where plain training raises and nowhere else.

    REPRISE_LIFE_PROGRAMS=2000 pytest tests/python/pytorch/whole_jobs/test_random_lives.py
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from arming import arm, remove_all
from local_agent import LocalAgent
from nets import WIDTH
from torch import Tensor, nn

from reprise.torch.offload.slow_tier import SlowTier

pytestmark = pytest.mark.usefixtures("removed")

PROGRAMS = int(os.environ.get("REPRISE_LIFE_PROGRAMS", "40"))
STEPS = 9
# Programs in which a graph did not notice that an optimizer had written its tensors all at once.
ONCE_WRONG = (393, 658, 699, 1744, 1802)


class Net(nn.Module):
    """Layers of which autograd saves some inputs and not others; a buffer that each forward writes,
    and one that the program fills."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.norm = nn.BatchNorm1d(WIDTH) if rng.random() < 0.5 else nn.LayerNorm(WIDTH)
        self.register_buffer("seen", torch.zeros(WIDTH))
        self.register_buffer("shift", torch.zeros(WIDTH))
        for layer in self.layers[1:] if rng.random() < 0.4 else ():
            layer.requires_grad_(False)  # autograd saves no weight of the first layer
        self.drops = nn.Dropout(0.1) if rng.random() < 0.5 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = self.drops(layer(x + self.shift).sin()).tanh() * 0.5 + x
        with torch.no_grad():
            self.seen.mul_(0.9).add_(x.detach().mean(0))
        return (self.norm(x).sigmoid() * self.seen).square()  # type: ignore[no-any-return]


@dataclass
class Draw:
    """One program: which step does what, and how the models are trained."""

    seed: int
    models: int = 1
    steps: list[list[tuple[str, int]]] = field(default_factory=list)


KINDS = (
    ("train", 30),  # a forward and its backward
    ("drop", 6),  # a forward whose graph goes
    ("hold", 5),  # a forward whose backward comes later
    ("late", 8),  # the backward of one that was held
    ("evaluate", 5),
    ("look", 3),  # an evaluation with gradients, whose result is kept
    ("twice", 3),  # a graph that is kept for a second backward
    ("sum", 3),  # two forwards, one backward
    ("fill", 6),  # the program writes a buffer between a forward and its backward
    ("average", 2),  # weights are averaged in place
)


def drawn(seed: int) -> Draw:
    """Returns a random program whose usual step is one forward and one backward of each model."""
    rng = random.Random(seed)
    draw = Draw(seed, models=rng.choice((1, 1, 2)))
    kinds, weights = zip(*KINDS, strict=True)
    for step in range(STEPS):
        usual = [("train", model) for model in range(draw.models)]
        if step > 3 and rng.random() < 0.7:
            more = rng.choices(kinds, weights, k=rng.randint(1, 3))
            usual += [(kind, rng.randrange(draw.models)) for kind in more]
            rng.shuffle(usual)
        draw.steps.append(usual)
    return draw


def run(draw: Draw, prepared: Callable[[nn.Module], object]) -> list[str]:
    """Runs a program; returns what it has seen: losses, gradients, weights, exceptions."""
    torch.manual_seed(draw.seed)
    rng = random.Random(draw.seed)
    models = [Net(rng) for _ in range(draw.models)]
    optimizers = [
        torch.optim.AdamW(m.parameters(), lr=0.01)
        if rng.random() < 0.5
        else torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9, foreach=rng.random() < 0.5)
        for m in models
    ]
    for model in models:
        prepared(model)
    seen: list[str] = []
    held: list[tuple[Tensor, int]] = []
    looked: list[Tensor] = []

    def backward(loss: Tensor, **how: bool) -> None:
        try:
            loss.backward(**how)
        except RuntimeError as error:
            seen.append(" ".join(str(error).split(":")[0].split()))  # without shape and version

    for step in draw.steps:
        for optimizer in optimizers:
            optimizer.zero_grad()
        for kind, which in step:
            model = models[which]
            x = torch.randn(6, WIDTH)
            if kind == "train":
                backward(model(x).mean())
            elif kind == "drop":
                model(x).mean()
            elif kind == "hold":
                held.append((model(x).mean(), which))
            elif kind == "late" and held:
                backward(held.pop(0)[0])
            elif kind == "evaluate":
                model.eval()
                with torch.no_grad():
                    seen.append(model(x).sum().item().hex())
                model.train()
            elif kind == "look":
                looked.append(model(x).mean())
            elif kind == "twice":
                loss = model(x).mean()
                backward(loss, retain_graph=True)
                backward(loss)
            elif kind == "sum":
                backward((model(x) + model(x + 1)).mean())
            elif kind == "fill":
                loss = model(x).mean()
                with torch.no_grad():
                    model.shift.copy_(torch.randn(WIDTH) * 0.1)  # type: ignore[operator]
                backward(loss)
            elif kind == "average":
                with torch.no_grad():
                    for p in model.parameters():
                        p.mul_(0.99)
        for model, optimizer in zip(models, optimizers, strict=True):
            seen += [p.grad.sum().item().hex() for p in model.parameters() if p.grad is not None]
            optimizer.step()
    for model in models:
        seen += [t.double().sum().item().hex() for t in model.state_dict().values()]
    return seen


@pytest.mark.mostly_long(6)
@pytest.mark.parametrize("part", range(10))
@pytest.mark.usefixtures("half")
def test_a_random_life_of_graphs_and_models_has_the_bits_and_the_errors_of_plain_training(
    part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SlowTier, "least_bytes", 1)
    monkeypatch.setenv("REPRISE_SLOW_TIER", "20GB/s")
    planned, moved = 0, set()
    for seed in (*range(part, PROGRAMS, 10), *(s for s in ONCE_WRONG if s % 10 == part)):
        draw = drawn(seed)
        plain = run(draw, lambda _: None)
        sessions = []
        try:
            found = run(
                draw,
                lambda m, to=sessions, seed=seed: to.append(  # type: ignore[misc]
                    arm(
                        m,
                        LocalAgent(seed=seed),
                        verify_every=(1, 3, 100)[seed % 3],
                        host_bytes=(seed // 2 % 2) << 24,
                    )
                ),
            )
            moved |= {name for s in sessions for name in s.job.agent.moved}
            planned += sum(session.job.measured.planned_steps for session in sessions)
            assert not any(session.job.fault for session in sessions), seed
        finally:
            remove_all()
        assert found == plain, (seed, draw.steps)
    assert planned
    assert any("optimizer state" in name for name in moved)
    assert any("optimizer state" not in name for name in moved)
