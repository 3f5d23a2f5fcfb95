# SPDX-License-Identifier: Apache-2.0
"""Plans inside torch.compile: tags on the joint graph, the same gradients, less saved."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import referee
import torch
from torch import nn
from zoo import GPT

import reprise
from reprise.plan import Plan
from reprise.torch.joint import install

pytestmark = pytest.mark.e2e


@pytest.fixture(autouse=True)
def _machine(
    home: Path, agent_library: Path, daemon_binary: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    monkeypatch.setenv("REPRISE_AGENT", str(agent_library))
    monkeypatch.setenv("REPRISE_DAEMON", str(daemon_binary))
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def mlp() -> nn.Module:
    torch.manual_seed(0)
    layers = [m for _ in range(4) for m in (nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64))]
    return nn.Sequential(*layers)


def gradients(model: nn.Module, backend: str, x: torch.Tensor) -> tuple[dict[str, Any], int]:
    """And the bytes that autograd keeps of what the forward made."""
    saved: dict[int, int] = {}
    static = {p.untyped_storage()._cdata for p in (*model.parameters(), x)}

    def pack(t: torch.Tensor) -> torch.Tensor:
        if t.untyped_storage()._cdata not in static:
            saved[t.untyped_storage()._cdata] = t.untyped_storage().nbytes()
        return t

    call = torch.compile(model, backend=backend)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        out = call(x)
    out.square().mean().backward()
    found = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    return found, sum(saved.values())


@pytest.mark.parametrize("backend", ["aot_eager", "aot_eager_decomp_partition", "inductor"])
def test_a_compiled_model_saves_less_and_its_gradients_are_equal(backend: str) -> None:
    x = torch.randn(256, 64)
    model = mlp()
    plain, before = gradients(copy.deepcopy(model), "aot_eager", x)
    torch._dynamo.reset()
    joint = install("0.7x")
    try:
        planned, after = gradients(copy.deepcopy(model), backend, x)
    finally:
        joint.remove()

    (plan,) = joint.plans
    assert plan.recomputed_ops
    assert after < before
    if backend == "aot_eager":
        assert all(torch.equal(plain[n], planned[n]) for n in plain)
    else:  # decomposed or fused into other kernels
        assert all(torch.allclose(plain[n], planned[n], atol=1e-5) for n in plain)


def test_a_budget_that_no_plan_meets_leaves_the_graph_as_it_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    x = torch.randn(64, 64)
    model = mlp()
    plain, _ = gradients(copy.deepcopy(model), "aot_eager", x)
    torch._dynamo.reset()
    joint = install("0.01x")
    try:
        found, _ = gradients(copy.deepcopy(model), "aot_eager", x)
    finally:
        joint.remove()

    assert joint.plans == []
    assert "compiled without a plan" in capsys.readouterr().err
    assert all(torch.equal(plain[n], found[n]) for n in plain)


def test_auto_plans_a_compiled_model_where_it_is_compiled(
    capsys: pytest.CaptureFixture[str],
) -> None:
    import torch._functorch.config as config

    x = torch.randn(256, 64)
    plain, _ = gradients(mlp(), "aot_eager", x)
    torch._dynamo.reset()
    model = torch.compile(mlp(), backend="aot_eager")
    reprise.auto(model, budget="0.7x")
    try:
        model(x).square().mean().backward()
    finally:
        reprise.remove(model)

    assert "It fits in" in capsys.readouterr().err
    assert all(torch.equal(plain[n], p.grad) for n, p in model._orig_mod.named_parameters())
    assert config.joint_custom_pass is None


def test_the_hook_is_taken_out_again() -> None:
    import torch._functorch.config as config

    before = config.joint_custom_pass

    joint = install("0.5x")
    assert config.joint_custom_pass is joint
    joint.remove()

    assert config.joint_custom_pass is before


def test_a_joint_graph_is_a_step_graph_that_runs() -> None:
    seen: list[dict[str, Any]] = []

    def planner(message: dict[str, Any], budget: str) -> tuple[Plan | None, str]:
        seen.append(message)
        return None, "only looking"

    joint = install("0.5x", planner)
    try:
        model = GPT(1)
        torch.compile(model, backend="aot_eager")(
            torch.zeros(2, 8, dtype=torch.int64)
        ).sum().backward()
    finally:
        joint.remove()

    (message,) = seen
    peak, _, _ = referee.evaluate(message, referee.base_schedule(message))
    assert peak > message["static_bytes"] > 0
    kinds = {op["name"]: op["kind"] for op in message["ops"] if op["phase"] == "PHASE_FORWARD"}
    assert any(s["saved_for_backward"] for s in message["storages"])
    assert "OP_KIND_PURE" in kinds.values()
