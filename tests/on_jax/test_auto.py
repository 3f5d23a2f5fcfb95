# SPDX-License-Identifier: Apache-2.0
"""Steps of JAX under budgets: XLA's bytes, predictions, results; what a step may contain."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from bench.jax import nets
from flax import linen

import reprise
import reprise.jax
from reprise.jax.clusters import cluster
from reprise.jax.compiled import memory_of
from reprise.jax.program import trace
from reprise.jax.rewrite import TABLE_BYTES, run_cluster, run_light
from reprise.jax.ulps import difference
from reprise.plan import evaluate

# A plan found in this time serves as well here as the best one.
SECONDS = 1.0


def leaves(made: Any) -> list[Any]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(made)]


def assert_close(plain: Any, planned: Any) -> None:
    found = difference(leaves(plain), leaves(planned))
    assert found.most_relative < 1e-5, found.sentence


@pytest.mark.parametrize(
    ("net", "share"),
    [
        (nets.mlp(8, 64, 512), "0.5x"),
        (nets.transformer(1, 32, 2, 4, 32), "0.6x"),
        (nets.resnet(2, 8, 4, 16), "0.5x"),
        (nets.scan(2, 32, 2, 4, 32), "0.5x"),
    ],
    ids=["mlp", "transformer", "resnet", "scan"],
)
def test_a_planned_step_compiles_to_its_budget_and_computes_the_same(net: Any, share: str) -> None:
    loss, params, data = net
    plain = jax.jit(jax.value_and_grad(loss))(params, *data)

    step = reprise.jax.value_and_grad(loss, budget=share, time_limit_s=SECONDS)
    planned = step(params, *data)

    found = step.found
    assert found is not None
    assert found.plan is not None
    assert found.compiled is not None
    assert found.compiled == memory_of(found.program)
    assert found.compiled.total <= found.budget_bytes < found.plain.total
    assert abs(found.compiled.total / found.predicted_bytes - 1) < 0.1
    assert found.plan.recomputed_ops
    assert_close(plain, planned)


def test_temporaries_lie_in_the_memory_of_results_that_are_made_last() -> None:
    """A scan stacks the gradients of its iterations at the end, and XLA uses that memory before."""
    loss, params, data = nets.scan(4, 32, 2, 4, 32)
    step = reprise.jax.value_and_grad(loss, budget="0.5x", time_limit_s=SECONDS)

    step(params, *data)

    found = step.found
    assert found is not None
    assert found.plan is not None
    assert found.compiled is not None
    assert found.step is not None
    schedule = found.plan.schedule
    counted = evaluate(found.step.graph, schedule).peak_bytes
    counted += TABLE_BYTES * sum(entry >= 0 for entry in schedule)
    assert 0 < counted - found.predicted_bytes <= found.plain.outputs
    off = abs(found.compiled.total - found.predicted_bytes)
    assert off < abs(found.compiled.total - counted)
    assert off / found.predicted_bytes < 0.05


def test_lean_clusters_read_less_at_once() -> None:
    """The gradient of gelu reads its input and what comes from behind, or all that lies between."""

    def loss(w: Any, x: Any) -> Any:
        return (jax.nn.gelu(x @ w) @ w).sum()

    shape = jax.ShapeDtypeStruct((64, 64), np.float32)
    program = trace(jax.make_jaxpr(jax.grad(loss))(shape, shape))

    usual, lean = (
        max(len(one.reads) for one in cluster(program, lean).order) for lean in (False, True)
    )

    assert usual == 4
    assert lean == 2


@pytest.mark.parametrize("length", [3, 17, 100])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("room", [10_000, 60])
def test_a_scan_in_parts_computes_the_same(length: int, reverse: bool, room: int) -> None:
    def run(xs: Any, w: Any) -> Any:
        def body(c: Any, x: Any) -> Any:
            c = jnp.tanh(c * w + x)
            return c, (c.sum(), x * c)

        carry, (sums, made) = jax.lax.scan(body, xs[0], xs, reverse=reverse)
        _, again = jax.lax.scan(body, carry, made, reverse=not reverse)
        return carry, sums, made, again

    xs, w = (jnp.asarray(np.random.default_rng(0).normal(size=s)) for s in ((length, 4), (4,)))
    program = trace(jax.make_jaxpr(run)(xs, w), room)
    names = [equation.name for equation in program.equations]
    clusters = cluster(program)
    values = dict(zip(program.inputs, (xs, w), strict=True))
    for one in clusters.order:
        made = run_cluster(clusters, one, {v: values[v] for v in one.reads})
        values.update(zip(one.writes, made, strict=True))
    run_light(clusters, [v for v in program.outputs if isinstance(v, int)], values)

    assert len(names) <= max(room, 60) + 4 * length
    assert names.count("scan") <= 2 * 16
    assert_close(run(xs, w), [values[v] for v in program.outputs])


def test_another_order_of_axes_takes_no_memory_unless_it_is_a_result() -> None:
    def turned(x: Any, w: Any) -> Any:
        y = jnp.tanh(x @ w).T
        return y, (w @ y).sum()

    shape = jax.ShapeDtypeStruct((64, 64), np.float32)
    found = cluster(trace(jax.make_jaxpr(turned)(shape, shape)))
    inside = cluster(trace(jax.make_jaxpr(lambda x, w: turned(x, w)[1])(shape, shape)))

    def names(clusters: Any) -> list[str]:
        return [one.equations[-1].name for one in clusters.order]

    assert names(found).count("transpose") == 1
    assert "transpose" not in names(inside)


def test_a_step_with_its_optimizer_keeps_its_donation_and_trains_as_before() -> None:
    loss, params, data = nets.mlp(10, 32, 512)
    optimizer = optax.adam(1e-3)

    def train(params: Any, state: Any, x: Any, y: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, x, y)
        updates, state = optimizer.update(grads, state)
        return optax.apply_updates(params, updates), state, value

    plain = jax.jit(train)
    step = reprise.jax.auto(
        jax.jit(train, donate_argnums=(0, 1)), budget="0.6x", time_limit_s=SECONDS
    )
    one = (params, optimizer.init(params))
    other = jax.tree.map(jnp.copy, one)
    for _ in range(3):
        *one, value = plain(*one, *data)
        *other, same = step(*other, *data)

    assert step.found is not None
    assert step.found.plan is not None
    assert step.found.compiled is not None
    assert step.found.compiled.aliased == step.found.plain.aliased > 0
    assert step.found.compiled.total <= step.found.budget_bytes
    assert_close((one, value), (other, same))


def test_dropout_of_flax_drops_the_same_units_again() -> None:
    class Net(linen.Module):
        @linen.compact
        def __call__(self, x: Any) -> Any:
            for _ in range(4):
                x = linen.Dropout(0.5, deterministic=False)(linen.relu(linen.Dense(64)(x)))
            return (linen.Dense(1)(x) ** 2).mean()

    x, key = jnp.ones((1024, 64)), jax.random.key(0)
    net = Net()
    params = net.init({"params": key, "dropout": key}, x)

    def loss(params: Any, x: Any, key: Any) -> Any:
        return net.apply(params, x, rngs={"dropout": key})

    plain = jax.jit(jax.value_and_grad(loss))(params, x, key)
    step = reprise.jax.value_and_grad(loss, budget="0.6x", time_limit_s=SECONDS)

    assert_close(plain, step(params, x, key))
    assert step.found is not None
    assert step.found.plan is not None


def test_a_step_that_fits_runs_as_it_is() -> None:
    loss, params, data = nets.mlp(2, 16, 32)
    step = reprise.jax.value_and_grad(loss, budget="1GiB")

    made = step(params, *data)

    assert step.found is not None
    assert step.found.plan is None
    assert "nothing is planned" in step.found.sentence
    plain = jax.jit(jax.value_and_grad(loss))(params, *data)
    assert difference(leaves(plain), leaves(made)).differing == 0


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"budget": "much"}, 'budget "much": does not start with a number'),
        ({"budget": "1x", "time_limit_s": "1"}, "time_limit_s: must be above 0"),
        ({"budget": "1x", "most_equations": "all"}, "most_equations: must be an integer"),
        ({"budget": "1x", "donate_argnums": "params"}, "donate_argnums: must be positions"),
        ({"budget": "1x", "donate_argnums": 9}, "donate_argnums: there is no argument 9"),
        ({"budget": "1x", "static_argnums": (1, -1)}, "static_argnums: must be positions"),
    ],
)
def test_what_no_plan_can_be_asked_with_is_refused(how: dict[str, Any], said: str) -> None:
    loss, params, data = nets.mlp(2, 8, 16)

    with pytest.raises(reprise.RepriseError, match=re.escape(said)):
        reprise.jax.auto(loss, **how)(params, *data)


def test_what_is_no_function_is_refused() -> None:
    for call in (reprise.jax.auto, reprise.jax.value_and_grad):
        with pytest.raises(reprise.RepriseError, match="must be a function, got None"):
            call(None, "1x")


def test_a_plan_that_xla_contradicts_is_made_again_and_then_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from dataclasses import replace

    from reprise.jax import planning

    loss, params, data = nets.mlp(10, 32, 512)
    asked: list[int] = []
    plan, memory = planning.ask, planning.memory_of

    def remembered(*args: Any, **how: Any) -> Any:
        asked.append(how["reserve_bytes"])
        return plan(*args, **how)

    def worse(program: Any) -> Any:
        found = memory(program)
        return replace(found, temporaries=found.temporaries * (2 if asked else 1))

    monkeypatch.setattr(planning, "ask", remembered)
    monkeypatch.setattr(planning, "memory_of", worse)
    step = reprise.jax.value_and_grad(
        loss, budget="0.9x", time_limit_s=SECONDS, on_infeasible="raise"
    )

    with pytest.raises(reprise.InfeasibleBudget, match="the smallest plan for this budget to"):
        step(params, *data)

    # More is held back each time; other clusters, tried once, begin anew.
    less = [at for at in range(1, len(asked)) if asked[at] <= asked[at - 1]]
    assert len(less) <= 1
    assert 2 <= len(asked) <= 6
    assert step.found is None


def test_a_callback_runs_once_a_step() -> None:
    seen: list[float] = []

    def loss(params: Any, x: Any) -> Any:
        for weight in params:
            x = jnp.tanh(x @ weight)
        jax.debug.callback(lambda value: seen.append(float(value)), x.sum())
        return (x**2).mean()

    params = [jnp.eye(32) for _ in range(10)]
    step = reprise.jax.value_and_grad(loss, budget="0.6x", time_limit_s=SECONDS)

    for _ in range(2):
        jax.block_until_ready(step(params, jnp.ones((512, 32))))
    jax.effects_barrier()

    assert step.found is not None
    assert step.found.plan is not None
    assert len(seen) == 2


def test_a_derivative_of_ones_own_is_kept() -> None:
    @jax.custom_vjp
    def odd(x: Any) -> Any:
        return jnp.sin(x)

    odd.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (3.0 * g,))

    def loss(weights: Any, x: Any) -> Any:
        for weight in weights:
            x = odd(x @ weight)
        return (x**2).mean()

    weights, x = [jnp.eye(32) * 0.5 for _ in range(6)], jnp.ones((512, 32))
    step = reprise.jax.value_and_grad(loss, budget="0.7x", time_limit_s=SECONDS)

    assert_close(jax.jit(jax.value_and_grad(loss))(weights, x), step(weights, x))


def test_new_shapes_are_planned_anew_and_known_ones_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from reprise.jax import function

    planned: list[Any] = []
    find = function.find
    monkeypatch.setattr(function, "find", lambda *a, **k: planned.append(a) or find(*a, **k))
    step = reprise.jax.auto(lambda x: (x**2).sum(), budget="1GiB")

    for rows in (4, 8, 4):
        assert float(step(jnp.ones(rows))) == rows

    assert len(planned) == 2
