# SPDX-License-Identifier: Apache-2.0
"""Shortcuts compute the same bits in less time, and their cost is known."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import referee
import torch
from jobs import (
    CapturedGraph,
    Job,
    captured,
    compile_plan,
    different,
    plain_step,
    planned_step,
    start_meter,
    sum_of,
)
from torch import Tensor, nn

from reprise.torch.capture.step_graph import RNG_STATE_BYTES
from reprise.torch.compiled import fast
from reprise.torch.compiled import shortcut as shortcuts
from reprise.torch.compiled.shortcut import has_shortcut, shortcut
from reprise.torch.tape.tape import Tape

NORM = torch.ops.aten.native_batch_norm.default
MASK = torch.ops.aten.bernoulli_.float


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(7, 5), (4, 33, 6), (3, 16, 5, 7), (2, 8, 3, 2, 2)])
@pytest.mark.parametrize("affine", [True, False])
def test_a_batch_norm_recomputed_from_its_statistics_has_the_same_bits(
    shape: tuple[int, ...], dtype: torch.dtype, affine: bool
) -> None:
    for seed in range(20):
        torch.manual_seed(seed)
        x = torch.randn(shape, dtype=dtype) * 3 + torch.randn(shape[1]).view(
            1, -1, *(1,) * (len(shape) - 2)
        )
        weight, bias = torch.randn(2, shape[1], dtype=dtype) if affine else (None, None)
        if weight is not None and bias is not None:
            weight[0], bias[1], bias[2] = 0.0, 0.0, -0.0
        if seed % 2 and x.dim() == 4:
            x = x.to(memory_format=torch.channels_last)
        args = (x, weight, bias, None, None, True, 0.1, 1e-5)
        assert has_shortcut(NORM, args)
        out = NORM(*args)

        made = shortcut(NORM, args, out)(args)

        assert all(torch.equal(a, b) for a, b in zip(out, made, strict=True))
        assert out[0].stride() == made[0].stride()
        assert torch.equal(out[0].signbit(), made[0].signbit())


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.bool]
)
@pytest.mark.parametrize("count", [1, 7, 8, 9, 64, 1001])
def test_a_mask_made_from_its_bits_is_the_one_that_was_drawn(
    dtype: torch.dtype, count: int
) -> None:
    mask = torch.empty(count, 3, dtype=dtype).t()
    assert has_shortcut(MASK, (mask, 0.7))
    MASK(mask, 0.7)

    made = shortcut(MASK, (mask, 0.7), mask)
    other = torch.empty(count, 3, dtype=dtype).t().fill_(1)
    state = torch.get_rng_state()
    made((other, 0.7))

    assert torch.equal(mask, other)
    assert torch.equal(state, torch.get_rng_state())
    assert made.bytes == (3 * count + 7) // 8


@pytest.mark.parametrize(
    ("func", "args"),
    [
        (
            NORM,
            (
                torch.ones(2, 3, 4).transpose(1, 2),
                None,
                None,
                None,
                None,
                True,
                0.1,
                1e-5,
            ),
        ),
        (NORM, (torch.ones(2, 3).bfloat16(), None, None, None, None, True, 0.1, 1e-5)),
        (
            NORM,
            (
                torch.ones(2, 3),
                None,
                None,
                torch.zeros(3),
                torch.ones(3),
                False,
                0.1,
                1e-5,
            ),
        ),
        (
            NORM,
            (torch.ones(2, 3), torch.ones(6)[::2], None, None, None, True, 0.1, 1e-5),
        ),
        (MASK, (torch.ones(6, 4)[::2], 0.5)),
        (MASK, (torch.ones(6, dtype=torch.int64), 0.5)),
        (torch.ops.aten.sin.default, (torch.ones(3),)),
    ],
)
def test_if_a_shortcut_could_change_bits_the_call_itself_is_replayed(func: Any, args: Any) -> None:
    assert not has_shortcut(func, args)


MASKS = (torch.bool, torch.float32, torch.float64, torch.float16, torch.bfloat16)


@pytest.mark.parametrize("dtype", MASKS)
@pytest.mark.parametrize("count", [1, 7, 8, 63, 64, 65, 200])
def test_a_mask_is_packed_and_written_back_bit_for_bit(dtype: torch.dtype, count: int) -> None:
    library = fast.library()
    mask = torch.randint(0, 2, (count,)).to(dtype)

    bits = library.bits_of(mask)
    again = torch.full_like(mask, True if dtype is torch.bool else 7)
    library.spread_bits(bits, again)

    assert bits.numel() == (count + 7) // 8
    assert [int(bits[i // 8]) >> (i % 8) & 1 for i in range(count)] == mask.int().tolist()
    assert torch.equal(again, mask)


@pytest.mark.parametrize("dtype", MASKS[1:])
@pytest.mark.parametrize("at", [0, 64, 129])
@pytest.mark.parametrize("value", [-1.0, 0.5, 2.0, -0.0, float("nan")])
def test_what_is_no_mask_is_not_packed(dtype: torch.dtype, at: int, value: float) -> None:
    mask = torch.ones(130, dtype=dtype)
    mask[at] = value

    with pytest.raises(TypeError, match="zeros and ones"):
        fast.library().bits_of(mask)


def test_invalid_arguments_of_shortcuts_are_refused() -> None:
    library = fast.library()

    with pytest.raises(TypeError, match="zeros and ones"):
        library.bits_of(torch.tensor([0.0, 1.0, 0.5]))
    with pytest.raises(TypeError, match="do not match the size"):
        library.spread_bits(torch.zeros(2, dtype=torch.uint8), torch.ones(8))
    with pytest.raises(TypeError, match="do not define a batch norm"):
        library.normalized(torch.ones(2, 3), None, None, torch.ones(4), torch.ones(3), True)


class Net(nn.Module):
    """Batch norm and dropout, twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (
            nn.Conv2d(3, 8, 3, padding=1),
            nn.Conv2d(8, 8, 3, padding=1),
        )
        self.norm, self.again = nn.BatchNorm2d(8), nn.BatchNorm2d(8)
        self.drop = nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(self.norm(self.first(x)).relu_()).sin()
        return self.drop(self.again(self.second(x)).sigmoid()).exp()


def prepared() -> tuple[Job, CapturedGraph, Any]:
    net = Net()
    made = Job(
        net,
        (torch.randn(2, 3, 16, 16),),
        sum_of,
        torch.optim.SGD(net.parameters(), lr=0.1),
    )
    meter = start_meter()
    plain_step(made, 0)
    return made, captured(made, meter), meter


def test_the_step_graph_has_the_time_and_the_bytes_of_a_shortcut() -> None:
    _, graph, _ = prepared()

    message = graph.message()
    norms = [op for op in message["ops"] if op["name"] == "aten.native_batch_norm.default"]
    masks = [op for op in message["ops"] if op["name"] == "aten.bernoulli_.float"]
    assert len(norms) == len(masks) == 2
    assert all(op["again_ns"] > 0 for op in (*norms, *masks))
    assert [op["state_bytes"] for op in masks] == [2 * 8 * 16 * 16 // 8] * 2
    for op in norms:
        out, *statistics = (message["storages"][s] for s in op["writes"])
        assert not out["pinned"]
        assert statistics
        assert all(s["pinned"] and s["bytes"] == 8 * 4 for s in statistics)
    others = [op for op in message["ops"] if op not in norms and op not in masks]
    assert not any("again_ns" in op for op in others)


def test_without_the_native_engine_there_is_no_shortcut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("REPRISE_FAST", "0")

    _, graph, _ = prepared()

    message = graph.message()
    assert not any("again_ns" in op for op in message["ops"])
    kept = {op["state_bytes"] for op in message["ops"] if "state_bytes" in op}
    assert kept == {RNG_STATE_BYTES}


@pytest.mark.parametrize("half", ["compiled", "audited", "python"])
@pytest.mark.parametrize("seed", range(4))
def test_planned_steps_that_take_shortcuts_have_equal_gradients_and_peak_as_predicted(
    half: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, graph, _ = prepared()
    message = graph.message()
    schedule = referee.random_plan(message, seed, 1.0, (0.0, 0.3, 0.6, 1.0)[seed])
    state = copy.deepcopy(made.model.state_dict())
    expected = plain_step(made, seed, step=False)
    made.model.load_state_dict(state)
    taken: list[str] = []
    for kind in (shortcuts._Norm, shortcuts._Mask):
        call = kind.__call__
        monkeypatch.setattr(
            kind, "__call__", lambda s, args, c=call: (taken.append(""), c(s, args))[1]
        )
    if half == "python":
        monkeypatch.setattr(fast, "load", lambda *_: None)
    tape = Tape(compile_plan(graph, schedule))
    assert (tape._compiled is None) == (half == "python")
    if half == "audited":
        begin = tape.begin

        def audited(*args: Any) -> Any:
            run = begin(*args)
            run.in_python()
            return run

        monkeypatch.setattr(tape, "begin", audited)

    found, counts, _ = planned_step(made, graph, schedule, seed, tape=tape, step=False)

    assert different(expected, found) == []
    assert (counts.mismatches, counts.on_demand) == (0, 0)
    assert any(row.short and row.replays for row in tape.program.rows)
    assert bool(taken) == (half != "compiled")


@pytest.mark.parametrize("seed", range(4))
def test_the_peak_with_shortcuts_is_the_one_that_was_predicted(seed: int) -> None:
    made, graph, meter = prepared()
    if not meter.exact:
        pytest.skip(f"needs the exact meter: {meter.why}")
    message = graph.message()
    schedule = referee.random_plan(message, seed, 1.0, (0.0, 0.3, 0.6, 1.0)[seed])
    tape = Tape(compile_plan(graph, schedule))

    # Not the first: torch keeps some of what it makes then.
    peaks = [
        planned_step(made, graph, schedule, seed, meter=meter, tape=tape, step=False)[2]
        for _ in range(2)
    ]

    assert any(row.short and row.replays for row in tape.program.rows)
    assert abs(peaks[-1] - referee.evaluate(message, schedule)[0]) <= 64
