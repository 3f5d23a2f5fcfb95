# SPDX-License-Identifier: Apache-2.0
"""Questions before a long run: estimate, check, saved, keep, and the pytest mark."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from jobs import start_meter
from local_agent import LocalAgent
from nets import WIDTH, ConvNet, RandomNet
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.checkpoint import checkpoint
from zoo import GPT, ResNet

import reprise
from reprise.torch.capture.captured import BACKWARD
from reprise.torch.check.verify import Check
from reprise.torch.estimation import estimate as estimating
from reprise.torch.estimation import fake
from reprise.torch.estimation.fake_meter import FakeTensors
from reprise.torch.estimation.once import capture_step
from reprise.torch.job.job import Options
from reprise.torch.session import ab
from reprise.torch.session import start as starting
from reprise.torch.session.session import Session
from reprise.torch.tape.costs import Costs


def classify(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def real_peak(model: nn.Module, batch: tuple[Tensor, ...], step: Any) -> int:
    """Returns the peak of the third step."""
    meter = start_meter()
    before = meter.live()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        meter.reset_peak()
        optimizer.zero_grad()
        step(model, *batch).backward()
        optimizer.step()
    static = sum(p.nbytes for p in model.parameters()) + sum(b.nbytes for b in batch)
    return meter.peak() - before + static


@pytest.mark.train
@pytest.mark.parametrize("which", ["resnet", "gpt"])
def test_an_estimate_from_shapes_is_near_the_measured_peak(which: str) -> None:
    def language(model: nn.Module, tokens: Tensor, following: Tensor) -> Tensor:
        return F.cross_entropy(model(tokens).flatten(0, 1), following.flatten())

    step: Any
    if which == "resnet":
        make, step = ResNet, classify
        shapes = ((16, 3, 64, 64), torch.float32), ((16,), torch.int64)
    else:
        make, step = GPT, language  # type: ignore[assignment]
        shapes = ((16, 64), torch.int64), ((16, 64), torch.int64)
    model = make()
    state = copy.deepcopy(model.state_dict())

    est = reprise.estimate(
        model, step, *(meta(*s, dtype=d) for s, d in shapes), optimizer=torch.optim.AdamW
    )

    assert all(torch.equal(state[n], v) for n, v in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    batch = tuple(
        torch.zeros(s, dtype=d) if d is torch.int64 else torch.randn(s) for s, d in shapes
    )
    measured = real_peak(model, batch, step)
    assert abs(est.peak_bytes / measured - 1) < 0.1
    assert next(iter(est.by_module.values())) > 0


def test_gradients_of_the_step_before_do_not_count_once_they_are_freed() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*[m for _ in range(4) for m in (nn.Linear(64, 64), nn.GELU())])
    batch = torch.randn(16, 64), torch.randint(0, 64, (16,))

    estimate = reprise.estimate(model, classify, *batch, optimizer=torch.optim.AdamW)

    assert abs(estimate.peak_bytes / real_peak(model, batch, classify) - 1) <= 0.01


class Partly(nn.Module):
    """A layer in a reentrant checkpoint, which hides its parameters from the graph, and one that
    nobody calls."""

    def __init__(self, *, has_unused: bool) -> None:
        super().__init__()
        self.first, self.hidden = nn.Linear(64, 64), nn.Linear(64, 64)
        self.unused = nn.Linear(64, 64) if has_unused else None

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = checkpoint(self.hidden, self.first(x), use_reentrant=True)
        return out


@pytest.mark.parametrize("has_unused", [False, True])
def test_there_is_optimizer_state_of_every_parameter_with_a_gradient(has_unused: bool) -> None:
    model = Partly(has_unused=has_unused)
    layer = sum(p.nbytes for p in model.first.parameters())
    inputs = torch.empty(8, 64)
    counters = 4 * 4  # one per parameter

    made = reprise.estimate(
        model, lambda m, x: m(x).sum(), inputs, optimizer=torch.optim.AdamW
    ).static_bytes

    assert made == (6 + has_unused) * layer + counters + inputs.nbytes


def test_fakes_of_a_wrapper_are_counted_by_what_it_wraps() -> None:
    with FakeTensors() as fakes:
        image, weight = torch.empty(1, 3, 8, 8), torch.empty(4, 3, 3, 3)
        pair = TwoTensor(image, image.clone())  # type: ignore[no-untyped-call]

        with fakes.counted([]) as meter:
            made = F.conv2d(pair, weight)

        assert type(made) is TwoTensor
        assert meter.live() == 2 * 4 * 6 * 6 * 4


def test_a_model_on_the_meta_device_is_estimated_without_allocating_memory() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(100_000, 100_000), nn.ReLU())

    est = reprise.estimate(model, lambda m, x: m(x).sum(), meta(64, 100_000))

    # Weight and its gradient: 40 GB each.
    assert est.peak_bytes > 80e9
    assert est.fits is None


def test_a_step_that_depends_on_values_is_refused_in_one_sentence() -> None:
    def step(model: nn.Module, x: Tensor) -> Tensor:
        return model(x).sum() if x.sum().item() > 0 else model(-x).sum()

    with pytest.raises(reprise.RepriseError, match="cannot be estimated from shapes alone"):
        reprise.estimate(nn.Linear(4, 4), step, torch.ones(2, 4))


def test_an_internal_error_while_estimating_is_not_blamed_on_the_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*_: Any) -> None:
        raise KeyError("lost")

    monkeypatch.setattr(fake, "capture_step", fails)

    with pytest.raises(reprise.RepriseError, match=r"internal error in Reprise \(KeyError"):
        reprise.estimate(nn.Linear(4, 4), lambda m, x: m(x).sum(), torch.ones(2, 4))


@pytest.mark.long
@pytest.mark.e2e
def test_an_estimate_says_what_a_plan_would_make_of_it(
    home: Path, agent_library: Path, daemon_binary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPRISE_AGENT", str(agent_library))
    monkeypatch.setenv("REPRISE_DAEMON", str(daemon_binary))
    model, batch = ResNet((1, 1)), (meta(16, 3, 32, 32), meta(16, dtype=torch.int64))
    plain = reprise.estimate(model, classify, *batch)
    bound = str(plain.static_bytes + (plain.peak_bytes - plain.static_bytes) * 7 // 10)

    est = reprise.estimate(model, classify, *batch, budget=bound)

    assert est.fits
    assert est.planned_peak_bytes <= int(bound) < est.peak_bytes
    assert est.overhead is not None
    assert est.overhead > 0
    none = reprise.estimate(model, classify, *batch, budget="100kB")
    assert not none.fits
    assert none.fitting_batch == 0  # the parameters alone are more

    smaller = reprise.estimate(model, classify, *batch, budget="700kB")
    assert not smaller.fits
    assert smaller.fitting_batch is not None
    assert 0 < smaller.fitting_batch < 16
    assert f"A batch of {smaller.fitting_batch} would fit." in str(smaller)
    half = [meta(smaller.fitting_batch, *x.shape[1:], dtype=x.dtype) for x in batch]
    assert reprise.estimate(model, classify, *half, budget="700kB").fits


# ---- check, saved, keep ---------------------------------------------------------------


@pytest.fixture
def local(monkeypatch: pytest.MonkeyPatch) -> LocalAgent:
    """`reprise.auto` with a planner in this process."""
    agent = LocalAgent()

    def start(model: nn.Module, options: Options) -> Session:
        return Session(
            model,
            agent=agent,  # type: ignore[arg-type]
            meter=start_meter(),
            wait_s=1.0,
            costs=Costs(0, 0, 1000),
            options=options,
        )

    monkeypatch.setattr(starting, "_start", start)
    return agent


def loop_of(model: nn.Module) -> Any:
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        out = model(torch.randn(6, WIDTH))
        outs = out if isinstance(out, tuple) else (out,)
        sum((o * o).mean() for o in outs).backward()  # type: ignore[union-attr]
        optimizer.step()

    return step


def test_a_check_compares_gradients_and_restores_everything(local: LocalAgent) -> None:
    model = RandomNet(3)
    step = loop_of(model)
    step()
    state = copy.deepcopy(model.state_dict())
    grads = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    random = torch.get_rng_state()

    report = reprise.check(model, step)

    assert report.gradients_equal
    assert all(torch.equal(v, model.state_dict()[n]) for n, v in state.items())
    assert all(torch.equal(grads[n], p.grad) for n, p in model.named_parameters() if n in grads)
    assert torch.equal(random, torch.get_rng_state())
    assert "forward" not in vars(model)


def test_a_check_raises_when_a_gradient_differs(
    local: LocalAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = RandomNet(3)
    step = loop_of(model)
    monkeypatch.setattr(Check, "_differs", lambda *_: True)  # and the same each time

    with pytest.raises(reprise.RepriseError, match="gradients differ"):
        reprise.check(model, step)
    assert ab.STEPS > 3


def test_saved_lists_what_the_backward_keeps_and_why() -> None:
    model = ConvNet(1)

    def step() -> None:
        model(torch.randn(4, 3, 8, 8)).square().mean().backward()

    found = reprise.saved(model, step)

    graph = capture_step(model, step)
    kept = [s for s in graph.storages if s.saved and not s.prior]
    backward = next(i for i, op in enumerate(graph.step.ops) if op.phase == BACKWARD)
    assert found.bytes == sum(s.bytes for s in kept if s.birth < backward)
    largest = found.storages[0]
    assert largest.bytes == 4 * 8 * 8 * 8 * 4
    assert any("norm" in s.op and s.readers for s in found.storages)
    assert "are kept for the backward pass" in str(found)


def test_saved_refuses_a_model_that_reprise_has_armed(local: LocalAgent) -> None:
    model = reprise.auto(ConvNet(1))

    with pytest.raises(reprise.RepriseError, match="already armed"):
        reprise.saved(model, lambda: None)
    reprise.remove(model)


class Keeping(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x).sin()
        if self.how == "tensor":
            y = reprise.keep(y)
        z = y.cos()
        if self.how == "block":
            with reprise.keep():
                return z.exp().sigmoid().square()
        return z.exp().sigmoid().square()


@pytest.mark.parametrize(("how", "pinned"), [("", []), ("tensor", ["sin"]), ("block", ["exp"])])
def test_tensors_that_the_user_keeps_are_pinned_in_the_step_graph(
    local: LocalAgent, how: str, pinned: list[str]
) -> None:
    model = reprise.auto(Keeping(how), warmup=1, verify_every=1)
    step = loop_of(model)
    for _ in range(4):
        step()
    reprise.remove(model)

    graph = local.graphs[-1]
    names = {s["name"] for s in graph["storages"] if s["pinned"]}
    for op in ("sin", "cos", "exp"):
        assert any(f"aten.{op}." in n for n in names) == (op in pinned)
    assert all(c["differing"] == 0 for c in local.checks)


@pytest.mark.long
def test_the_pytest_mark_fails_a_peak_above_its_bound(root: Path, tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import pytest, torch, reprise\n"
        "from torch import nn\n"
        "def size(n):\n"
        "    reprise.estimate(nn.Linear(n, n), lambda m, x: m(x).sum(), torch.empty(8, n))\n"
        "@pytest.mark.reprise_peak('1MiB')\n"
        "def test_small(): size(100)\n"
        "@pytest.mark.reprise_peak('1MiB')\n"
        "def test_large(): size(1000)\n"
        "@pytest.mark.reprise_peak('1MiB')\n"
        "def test_nothing(): pass\n"
    )
    path = os.pathsep.join([str(root / "clients/python/src"), os.environ.get("PYTHONPATH", "")])

    command = [sys.executable, "-m", "pytest", "-q", str(tmp_path)]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )

    assert "2 failed, 1 passed" in done.stdout
    assert "the predicted peak is 7.7 MiB, more than 1.0 MiB" in done.stdout
    assert "checks nothing" in done.stdout
    assert estimating.recorded_peaks() == []
