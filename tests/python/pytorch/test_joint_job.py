# SPDX-License-Identifier: Apache-2.0
"""A compiled job keeps its budget and the bits of its gradients, or it gives up its plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from zoo import GPT

from reprise.torch.joint_job import CompiledJob

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("compiles_afresh")]

Loss = Callable[[Tensor, Tensor], Tensor]


def squares(y: Tensor, x: Tensor) -> Tensor:
    return y.square().mean()


def entropy(y: Tensor, x: Tensor) -> Tensor:
    return cross_entropy(y.flatten(0, 1), x.flatten())


def wasteful(y: Tensor, x: Tensor) -> Tensor:
    """Keeps many times the model's outputs until the backward."""
    return sum(((y * k).exp().log_softmax(-1)).mean() for k in range(1, 6))  # type: ignore[return-value]


def train(
    loss: Loss,
    *,
    budget: str | None = None,
    steps: int = 6,
    backend: str = "aot_eager",
    layers: int = 2,
    between: Callable[[int, CompiledJob], None] | None = None,
) -> tuple[list[float], dict[str, Tensor], CompiledJob | None]:
    """Losses, parameters after the last step."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, x = GPT(layers).train(), torch.randint(0, 64, (8, 64))
    optimizer = torch.optim.AdamW(model.parameters())
    compiled: nn.Module = torch.compile(model, backend=backend)
    job = None if budget is None else CompiledJob(compiled, budget, verify_every=3)
    torch.manual_seed(7)
    curve = []
    try:
        for step in range(steps):
            if between is not None and job is not None:
                between(step, job)
            optimizer.zero_grad()
            found = loss(compiled(x), x)
            found.backward()
            optimizer.step()
            curve.append(found.item())
    finally:
        if job is not None:
            job.remove()
    return curve, dict(model.named_parameters()), job


def same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize("loss", [squares, entropy])
def test_a_compiled_job_peaks_within_its_budget_and_where_it_was_predicted(
    loss: Loss, capsys: pytest.CaptureFixture[str]
) -> None:
    expected, end, _ = train(loss)

    found, after, job = train(loss, budget="0.8x")

    assert job is not None
    (plan,) = job.joint.plans
    assert plan.recomputed_ops
    assert found == expected
    assert same(end, after)
    assert job.checks == 3  # the first step, the third, the sixth
    assert "bit for bit equal" in capsys.readouterr().err
    if job.measured_peak_bytes:  # the meter here sees inside ops
        assert job.measured_peak_bytes <= plan.budget_bytes
        assert abs(job.measured_peak_bytes / job.predicted_peak_bytes - 1) <= 0.02


def test_a_loss_that_keeps_more_than_was_assumed_gets_another_plan_or_none(
    capsys: pytest.CaptureFixture[str],
) -> None:
    expected, end, _ = train(wasteful)

    found, after, job = train(wasteful, budget="0.8x")

    assert job is not None
    assert found == expected
    assert same(end, after)
    said = capsys.readouterr().err
    if job.measured_peak_bytes:
        assert job.measured_peak_bytes <= job.joint.budget_bytes
    elif job._meter is not None:
        assert said.count("they are planned and compiled again") == 1
        assert "compiled without a plan: No" in said


def test_bytes_are_for_the_whole_process(capsys: pytest.CaptureFixture[str]) -> None:
    """A tensor that no graph reads is alive all the same."""
    beside = torch.ones(1 << 20)

    _, _, job = train(squares, budget="4MiB", steps=1)

    del beside
    assert job is not None
    assert not job.joint.plans
    assert "compiled without a plan: No" in capsys.readouterr().err


def test_a_gradient_that_differs_in_a_bit_ends_the_plan_and_not_the_training(
    capsys: pytest.CaptureFixture[str],
) -> None:
    expected, end, _ = train(entropy)

    def lies(step: int, job: CompiledJob) -> None:
        if step == 0:
            honest = job._call
            job._call = lambda x: _Off.apply(honest(x))

    found, after, job = train(entropy, budget="0.8x", between=lies)

    assert job is not None
    assert "differ from those of the model compiled without a plan" in job.why
    assert capsys.readouterr().err.count("differ") == 1
    # The step that was checked was put right, and all later ones ran without the plan.
    assert found == expected
    assert same(end, after)


class _Off(torch.autograd.Function):
    """The same outputs; the gradients that go on are a little larger than those that came."""

    @staticmethod
    def forward(ctx: Any, y: Tensor) -> Tensor:
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0] * 1.000001


def test_what_is_armed_is_taken_out_again() -> None:
    import torch._functorch.config as functorch

    before = functorch.joint_custom_pass
    compiled: nn.Module = torch.compile(nn.Linear(4, 4), backend="aot_eager")
    own = compiled.forward

    job = CompiledJob(compiled, "0.8x", verify_every=1)
    assert compiled.forward is not own
    job.remove()
    job.remove()

    assert compiled.forward is own
    assert functorch.joint_custom_pass is before


def test_inductor_gives_the_bits_of_inductor_or_stops(capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    layers = [m for _ in range(4) for m in (nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64))]
    model = nn.Sequential(*layers)
    x = torch.randn(256, 64)

    def run(budget: str | None) -> tuple[list[float], CompiledJob | None]:
        torch._dynamo.reset()
        for layer in model:
            if hasattr(layer, "reset_parameters"):
                torch.manual_seed(3)
                layer.reset_parameters()
        compiled: nn.Module = torch.compile(model, backend="inductor")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        job = None if budget is None else CompiledJob(compiled, budget, verify_every=1)
        losses = []
        for _ in range(4):
            optimizer.zero_grad()
            loss = compiled(x).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        if job is not None:
            job.remove()
        return losses, job

    expected, _ = run(None)
    found, job = run("0.9x")

    assert job is not None
    assert job.checks >= 1
    assert job.why or job.joint.plans[0].recomputed_ops
    assert found == expected
