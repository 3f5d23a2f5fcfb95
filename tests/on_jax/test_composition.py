# SPDX-License-Identifier: Apache-2.0
"""Planned functions inside of others: `jax.jit`, `jax.grad`, `jax.shard_map`; checks."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bench.jax import nets
from jax.sharding import PartitionSpec

import reprise
import reprise.jax
from reprise.jax.ulps import difference

SECONDS = 1.0


def assert_close(plain: Any, planned: Any) -> None:
    one, other = ([np.asarray(x) for x in jax.tree.leaves(tree)] for tree in (plain, planned))
    found = difference(one, other)
    assert found.most_relative < 1e-5, found.sentence


def test_a_planned_gradient_is_a_part_of_a_jitted_step() -> None:
    loss, params, data = nets.mlp(10, 32, 512)
    planned = reprise.jax.value_and_grad(loss, budget="0.6x", time_limit_s=SECONDS)

    def train(grad: Any) -> Any:
        def step(params: Any, x: Any, y: Any) -> Any:
            value, found = grad(params, x, y)
            return jax.tree.map(lambda p, g: p - 0.1 * g, params, found), value

        return step

    plain = jax.jit(train(jax.value_and_grad(loss))).lower(params, *data).compile()
    options = reprise.jax.compiler_options()
    whole = jax.jit(train(planned), compiler_options=options).lower(params, *data).compile()

    assert whole.as_text().count("opt-barrier") > 10
    temporaries = whole.memory_analysis().temp_size_in_bytes
    assert temporaries < 0.8 * plain.memory_analysis().temp_size_in_bytes
    assert_close(plain(params, *data), whole(params, *data))


def test_a_shard_is_planned_at_the_shapes_of_its_device() -> None:
    loss, params, (x, y) = nets.mlp(10, 32, 1024)
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
    rows, whole = PartitionSpec("data"), PartitionSpec()

    def mapped(grad: Any) -> Any:
        def step(params: Any, x: Any, y: Any) -> Any:
            return jax.tree.map(lambda g: jax.lax.pmean(g, "data"), grad(params, x, y))

        return jax.shard_map(
            step, mesh=mesh, in_specs=(whole, rows, rows), out_specs=whole, check_vma=False
        )

    planned = reprise.jax.value_and_grad(loss, budget="0.6x", time_limit_s=SECONDS)
    plain = jax.jit(mapped(jax.value_and_grad(loss)))(params, x, y)
    options = reprise.jax.compiler_options()
    made = jax.jit(mapped(planned), compiler_options=options)(params, x, y)

    assert planned.found is not None
    assert planned.found.plan is not None
    each = sum(w.nbytes for w in params) + (x.nbytes + y.nbytes) // 2
    assert planned.found.plain.arguments == each
    assert_close(plain, made)


def test_a_planned_function_under_a_transformation_is_refused_with_the_other_order() -> None:
    step = reprise.jax.auto(lambda x: (x**2).sum(), budget="0.5x")

    with pytest.raises(reprise.RepriseError, match="plan the function that these make"):
        jax.vmap(step)(jnp.ones((2, 3)))


def test_arrays_on_several_devices_are_refused_with_the_way_to_plan_them() -> None:
    mesh = jax.make_mesh((2,), ("data",))
    x = jax.device_put(jnp.ones(8), jax.NamedSharding(mesh, PartitionSpec("data")))

    with pytest.raises(reprise.RepriseError, match=r"inside jax\.shard_map"):
        reprise.jax.auto(lambda x: (x**2).sum(), budget="0.5x")(x)


def test_a_check_says_which_bits_differ() -> None:
    loss, params, data = nets.transformer(1, 32, 2, 4, 32)
    step = reprise.jax.value_and_grad(loss, budget="0.6x", time_limit_s=SECONDS)

    found = step.check(params, *data)

    assert found.plan is not None
    plain = jax.jit(jax.value_and_grad(loss))(params, *data)
    same = difference(jax.tree.leaves(plain), jax.tree.leaves(step(params, *data)))
    assert step.difference == same
    assert str(found) == same.sentence
    assert found.bits is (same.differing == 0)


def test_a_check_of_shapes_is_refused_with_what_takes_them() -> None:
    loss, params, data = nets.mlp(10, 32, 512)
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (params, *data))
    step = reprise.jax.value_and_grad(loss, budget="0.6x", time_limit_s=SECONDS)

    with pytest.raises(reprise.RepriseError, match="`plan` takes shapes"):
        step.check(*shapes)


@pytest.mark.parametrize(
    ("plain", "planned", "ulps"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0),
        ([1.0, 2.0], [1.0, np.nextafter(np.float32(2), np.float32(3))], 1),
        ([0.0], [-np.float32(1e-45)], 1),
    ],
)
def test_differences_are_counted_in_steps_of_the_last_place(
    plain: list[float], planned: list[float], ulps: int
) -> None:
    found = difference([np.float32(plain)], [np.float32(planned)])

    assert found.most_ulps == ulps
    assert found.differing == int(ulps > 0)
