# SPDX-License-Identifier: Apache-2.0
"""Facts about single operators: what they write without declaring it, and which are
nondeterministic."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from reprise.torch.internals import nondeterministic
from reprise.torch.internals.ops import OpKind, first_kind, mutated_positions, never_again

aten = torch.ops.aten


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """Makes tensors fake, so that they can claim to be on a device."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        yield request.param


# Argument by argument; what is `f` is a float tensor, `i` one of numbers.
DIFFERS: list[tuple[Any, tuple[Any, ...]]] = [
    (aten.scatter_add.default, ("f", 0, "i", "f")),
    (aten.scatter_reduce.two, ("f", 0, "i", "f", "sum")),
    (aten.scatter.reduce, ("f", 0, "i", "f", "add")),
    (aten.index_add.default, ("f", 0, "i", "f")),
    (aten.index_put.default, ("f", ["i"], "f", True)),
    (aten.index_put_.default, ("f", ["i"], "f", True)),
    (aten.cumsum.default, ("f", 0)),
    (aten.bincount.default, ("i", "f")),
    (aten.histc.default, ("f",)),
    (aten.embedding_dense_backward.default, ("f", "i", 4, -1, False)),
    (aten.upsample_bilinear2d_backward.default, ("f", [8, 8], [1, 1, 4, 4], False)),
    (aten.grid_sampler_2d_backward.default, ("f", "f", "f", 0, 0, False, [True, True])),
    (aten.convolution_backward.default, ("f", "f", "f", None, [1], [0], [1], False, [0], 1, [])),
    (aten.max_unpool2d.default, ("f", "i", [4, 4])),
]
SAME: list[tuple[Any, tuple[Any, ...]]] = [
    (aten.scatter.src, ("f", 0, "i", "f")),
    (aten.index_put.default, ("f", ["i"], "f", False)),
    (aten.index_put.default, ("f", ["i"], "f")),
    (aten.cumsum.default, ("i", 0)),
    (aten.bincount.default, ("i",)),
    (aten.mm.default, ("f", "f")),
    (aten.embedding.default, ("f", "i")),
    (aten.gather.default, ("f", 0, "i")),
    (aten.convolution.default, ("f", "f", None, [1], [0], [1], False, [0], 1)),
]


def of(value: Any, device: str) -> Any:
    if isinstance(value, list):
        return [of(v, device) for v in value]
    made = {"f": torch.float32, "i": torch.int64}.get(value) if isinstance(value, str) else None
    return value if made is None else torch.empty(4, dtype=made, device=device)


def test_ops_that_are_nondeterministic_on_a_device_are_never_replayed(device: str) -> None:
    for func, arguments in DIFFERS:
        args = tuple(of(value, device) for value in arguments)
        assert nondeterministic.adds_in_any_order(func, args, {}) == (device == "cuda"), func
        if device == "cuda":
            assert first_kind(func, args, {}) == OpKind.ONCE, func
    for func, arguments in SAME:
        args = tuple(of(value, device) for value in arguments)
        assert not nondeterministic.adds_in_any_order(func, args, {}), func


def test_every_name_on_the_list_is_an_operator() -> None:
    torchvision = {"_roi_align_backward", "_roi_pool_backward", "_ps_roi_align_backward"}
    torchvision |= {"_ps_roi_pool_backward", "_deform_conv2d_backward"}
    names = nondeterministic._ALWAYS - torchvision | nondeterministic._FLOATING
    names |= set(nondeterministic._IF_GIVEN) | nondeterministic._REDUCES
    assert [name for name in sorted(names) if not hasattr(aten, name)] == []


def test_a_program_that_asked_for_deterministic_algorithms_gets_them() -> None:
    func, arguments = DIFFERS[0]
    with FakeTensorMode():
        args = tuple(of(value, "cuda") for value in arguments)
    before = torch.are_deterministic_algorithms_enabled()
    try:
        torch.use_deterministic_algorithms(True)
        assert not nondeterministic.adds_in_any_order(func, args, {})
        torch.use_deterministic_algorithms(True, warn_only=True)
        assert nondeterministic.adds_in_any_order(func, args, {})
    finally:
        torch.use_deterministic_algorithms(before)


def test_several_threads_add_in_any_order_on_the_cpu_too() -> None:
    func, arguments = aten.index_put.default, ("f", ["i"], "f", True)
    args = tuple(of(value, "cpu") for value in arguments)
    assert not nondeterministic.adds_in_any_order(func, args, {})
    torch.set_num_threads(2)  # put back by conftest.py
    assert nondeterministic.adds_in_any_order(func, args, {})


@pytest.mark.parametrize(
    ("func", "written"),
    [
        (aten.batch_norm_gather_stats.default, (3, 4)),
        (aten.batch_norm_gather_stats_with_counts.default, (3, 4)),
        (aten.batch_norm_update_stats.default, (1, 2)),
        (aten._cudnn_rnn.default, (15,)),
        (aten.miopen_rnn.default, (13,)),
    ],
)
def test_writes_that_a_schema_does_not_declare_are_known(
    func: Any, written: tuple[int, ...]
) -> None:
    names = {"running_mean", "running_var", "dropout_state"}
    assert mutated_positions(func) == written
    assert {func._schema.arguments[at].name for at in written} <= names


def test_ops_that_were_seen_to_differ_are_never_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    from reprise.torch.internals import ops

    monkeypatch.setattr(ops, "_unsteady", set())
    args = (torch.ones(2),)
    assert first_kind(aten.sin.default, args, {}) == OpKind.PURE
    never_again([aten.sin.default])
    assert first_kind(aten.sin.default, args, {}) == OpKind.ONCE
