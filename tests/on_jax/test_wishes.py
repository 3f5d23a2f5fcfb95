# SPDX-License-Identifier: Apache-2.0
"""What happens where no plan fits, the environment, reports; refusals say what they are about."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bench.jax import nets
from tests.on_jax.test_auto import assert_close, leaves

import reprise
import reprise.jax
from reprise.base.units import format_bytes
from reprise.jax import planning, workspace
from reprise.jax.compiled import compile_flat, memory_of
from reprise.jax.ulps import difference

SECONDS = 1.0
NET = nets.mlp(4, 32, 256)


def gradient(budget: str | int, **how: Any) -> reprise.jax.PlannedFunction:
    return reprise.jax.value_and_grad(NET[0], budget=budget, time_limit_s=SECONDS, **how)


def plain_bytes(net: Any = NET) -> int:
    loss, params, data = net
    return memory_of(compile_flat(jax.value_and_grad(loss), [params, *data])).total


def test_a_budget_that_nothing_fits_costs_a_line_and_no_step(
    capsys: pytest.CaptureFixture[str],
) -> None:
    loss, params, data = NET
    step = gradient("0.05x")

    made = [step(params, *data) for _ in range(2)]

    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "Training continues without a plan." in said
    plain = jax.jit(jax.value_and_grad(loss))(params, *data)
    assert difference(leaves(plain), leaves(made[1])).differing == 0
    result = reprise.report(step)
    assert result.plan is None
    assert result.overhead is None
    assert result.sentence.endswith("The step runs without a plan.")


def test_where_an_error_is_wanted_it_has_the_compiled_bytes() -> None:
    _, params, data = NET
    step = gradient("0.05x", on_infeasible="raise")

    with pytest.raises(reprise.InfeasibleBudget) as refusal:
        step(params, *data)

    said = format_bytes(plain_bytes())
    assert f"XLA compiles the plain step to {said}" in str(refusal.value)


@pytest.mark.parametrize("on_infeasible", ["plain", "nearest", "raise"])
@pytest.mark.parametrize("ask", [lambda s, *a: s.plan(*a), lambda s, *a: s.check(*a)])
def test_what_runs_nothing_raises_whatever_is_wished(ask: Any, on_infeasible: str) -> None:
    _, params, data = NET

    with pytest.raises(reprise.InfeasibleBudget):
        ask(gradient("0.05x", on_infeasible=on_infeasible), params, *data)


def test_the_nearest_budget_is_above_the_wished_one_and_kept(
    capsys: pytest.CaptureFixture[str],
) -> None:
    loss, params, data = nets.mlp(10, 32, 512)
    step = reprise.jax.value_and_grad(loss, budget="0.15x", on_infeasible="nearest")

    made = step(params, *data)

    found = step.found
    assert found is not None
    assert found.plan is not None
    assert found.compiled is not None
    assert found.compiled.total <= found.budget_bytes < found.plain.total
    assert "the nearest budget" in capsys.readouterr().err
    assert_close(jax.jit(jax.value_and_grad(loss))(params, *data), made)


def test_a_plan_that_takes_more_than_is_wished_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    loss, params, data = nets.mlp(10, 32, 512)
    step = reprise.jax.value_and_grad(loss, budget="0.5x", max_overhead=0.001, time_limit_s=SECONDS)

    step(params, *data)

    assert step.found is not None
    assert step.found.plan is None
    assert "max_overhead" in step.found.why
    assert "max_overhead" in capsys.readouterr().err


def test_the_environment_names_another_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPRISE_BUDGET", "3GiB")
    _, params, data = NET
    step = gradient("0.05x")

    step(params, *data)

    assert reprise.report(step).budget_bytes == 3 << 30


@pytest.mark.parametrize("around", [lambda f: f, jax.jit], ids=["called", "traced"])
def test_the_environment_switches_everything_off(
    around: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPRISE_DISABLE", "1")
    monkeypatch.setattr(planning, "ask", None)
    loss, params, data = NET
    step = gradient("0.05x")

    made = around(lambda *args: step(*args))(params, *data)

    assert step.found is None
    assert_close(jax.value_and_grad(loss)(params, *data), made)


def test_a_failure_of_ours_ends_no_training(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("of ours")

    monkeypatch.setattr(planning, "ask", broken)
    _, params, data = NET

    gradient("0.5x")(params, *data)

    assert "ZeroDivisionError: of ours" in capsys.readouterr().err
    with pytest.raises(ZeroDivisionError):
        gradient("0.5x", on_infeasible="raise")(params, *data)


def test_a_report_has_what_every_framework_reports() -> None:
    loss, params, data = nets.mlp(10, 32, 512)
    step = reprise.jax.value_and_grad(loss, budget="0.6x", time_limit_s=SECONDS, name="digits")
    before = reprise.report(step)

    checked = step.check(params, *data)
    result = reprise.report(step)

    assert before.plan is None
    assert before.sentence
    assert result.plan is not None
    assert result.overhead == result.plan.overhead
    assert 0 < result.measured_bytes <= result.budget_bytes
    assert result.measured_by == "XLA"
    assert step.difference is not None
    assert result.bits is checked.bits is (step.difference.differing == 0)
    assert step.found is not None
    assert step.found.step is not None
    assert step.found.step.graph.name == "digits"


@pytest.mark.parametrize(
    ("net", "budget", "how"),
    [
        (nets.mlp(4, 32, 256), "0.05x", {}),
        (nets.scan(2, 16, 2, 2, 16), "0.3x", {"most_equations": 10}),
        (nets.transformer(1, 32, 2, 2, 16), "0.01x", {}),
    ],
    ids=["mlp", "a scan as one op", "transformer"],
)
def test_a_refusal_is_about_clusters_and_never_about_the_step(
    net: Any, budget: str, how: dict[str, Any]
) -> None:
    loss, params, data = net
    step = reprise.jax.value_and_grad(loss, budget=budget, time_limit_s=SECONDS, **how)

    with pytest.raises(reprise.InfeasibleBudget) as refusal:
        step.plan(params, *data)

    for said in (str(refusal.value), refusal.value.plan.sentence):  # type: ignore[union-attr]
        assert said.startswith("Of the step as inferred, nothing fits in ")
        assert "(an estimate: clusters of equations are its ops)" in said
        assert "Other clusters of the same step may need less." in said
        assert "Nothing fits" not in said
    assert ("most_equations=10" in str(refusal.value)) is bool(how)


def test_a_proof_is_of_clusters_and_says_so() -> None:
    loss, params, data = nets.mlp(10, 32, 512)
    step = reprise.jax.value_and_grad(loss, budget="0.6x", time_limit_s=SECONDS)

    plan = step.plan(params, *data).plan

    assert plan is not None
    assert not plan.proven_optimal
    assert (
        "not proven of the step (an estimate: clusters of equations are its ops)" in plan.sentence
    )
    claimed = plan.sentence.count("proven optimal") + plan.sentence.count("above optimal")
    assert claimed == plan.sentence.count("optimal for these ")


def test_clusters_are_compiled_by_themselves_only_where_that_decides(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Four kinds of products; only the large ones can exceed the budget beside what is alive."""

    def loss(params: Any, x: Any) -> Any:
        for w in params["large"]:
            x = jnp.tanh(x @ w)
        for w in params["small"]:
            x = jnp.tanh(x[:64] @ w)
        return (x**2).mean()

    normal = lambda *shape: jnp.asarray(np.ones(shape, np.float32))  # noqa: E731
    params = {"large": [normal(64, 64)] * 8, "small": [normal(64, 32), normal(32, 64)]}
    monkeypatch.setattr(workspace, "_known", {})
    made = workspace._measured
    asked: list[int] = []

    def counted(clusters: Any, one: Any) -> int:
        asked.append(1)
        return made(clusters, one)

    monkeypatch.setattr(workspace, "_measured", counted)
    step = reprise.jax.value_and_grad(loss, budget="0.7x", time_limit_s=SECONDS)

    found = step.plan(params, normal(1024, 64))

    assert found.compiled is not None
    assert found.compiled.total <= found.budget_bytes
    assert found.step is not None
    kinds = {
        workspace._key(found.step.clusters, one)
        for one in found.step.clusters.order
        if any(e.name == "dot_general" for e in one.equations)
    }
    assert len(asked) < len(kinds) / 2
