# SPDX-License-Identifier: Apache-2.0
"""Saved tensors on the host: less is alive on the device, the captured step is the same, no bit
changes."""

from __future__ import annotations

import copy
import gc
from typing import Any

import pytest
import referee
import torch
from jobs import Job, captured, different, plain_step, start_meter, sum_of
from nets import Chain, Checkpointed, ConvNet, Custom, RandomNet, job
from torch import Tensor, nn
from zoo import GPT, LSTM, CellLSTM, Experts, ResNet, UNet

from reprise.torch.internals.host import HostSaves


def tokens(model: nn.Module, *shape: int) -> Job:
    x = torch.randint(0, 32, shape)
    return Job(model, (x,), sum_of, torch.optim.SGD(model.parameters(), lr=0.01))


MODELS: dict[str, Any] = {
    "convolutions": lambda: job(ConvNet(), 4, 3, 8, 8),
    "chain": lambda: job(Chain(20)),
    "custom function": lambda: job(Custom()),
    "checkpointed": lambda: job(Checkpointed()),
    "resnet": lambda: job(ResNet((1, 1)), 4, 3, 32, 32),
    "unet": lambda: job(UNet(), 2, 3, 32, 32),
    "gpt": lambda: tokens(GPT(2), 4, 16),
    "experts": lambda: job(Experts(), 4, 8, 64),
    "lstm": lambda: tokens(LSTM(), 4, 12),
    "lstm of cells": lambda: tokens(CellLSTM(), 4, 12),
    **{f"random {seed}": (lambda seed=seed: job(RandomNet(seed))) for seed in range(5)},
}


def on_host(made: Job, seed: int) -> tuple[Any, HostSaves]:
    host = HostSaves(made.model)
    return captured(made, start_meter(), seed=seed, host=host), host


@pytest.mark.parametrize("name", MODELS)
def test_no_bit_changes_and_the_step_graph_is_that_of_a_plain_capture(name: str) -> None:
    made = MODELS[name]()
    for seed in range(2):
        plain_step(made, seed)
    state = copy.deepcopy((made.model.state_dict(), made.optimizer.state_dict()))

    def again() -> None:
        made.model.load_state_dict(state[0])
        made.optimizer.load_state_dict(copy.deepcopy(state[1]))

    expected = plain_step(made, 5, step=False)
    again()
    plain = captured(made, start_meter(), seed=5)
    again()

    graph, host = on_host(made, 5)

    assert not different(expected, made.state())
    assert host.peak_bytes > 0
    left, right = plain.message(), graph.message()
    assert right["structure"] == left["structure"]
    assert right["required"] == left["required"]
    for key in ("bytes", "release_op", "pinned", "saved_for_backward"):
        assert [s[key] for s in right["storages"]] == [s[key] for s in left["storages"]], key
    for key in ("reads", "writes", "mutates", "kind"):
        assert [o[key] for o in right["ops"]] == [o[key] for o in left["ops"]], key
    peaks = [
        referee.evaluate(m, referee.base_schedule(m))[0] - m["static_bytes"] for m in (left, right)
    ]
    assert abs(peaks[1] - peaks[0]) <= max(0.02 * peaks[0], 512)


def test_saved_tensors_move_from_the_device_to_the_host() -> None:
    made = job(Chain(40))
    meter = start_meter()
    plain = captured(made, meter).step
    gc.collect()

    graph, host = on_host(made, 0)

    saved = {id(s.storage): s.storage.bytes for s in plain.slots if not s.storage.prior}
    assert host.peak_bytes >= 0.9 * sum(saved.values())
    # All but what one op of the backward has in its hands.
    assert plain.peak_bytes - graph.step.peak_bytes >= 0.8 * sum(saved.values())
    gc.collect()
    assert host.bytes == 0  # nothing outlives the step


class Writes(nn.Module):
    """Writes a saved tensor, with or without moving its version counter."""

    def __init__(self, past: bool) -> None:
        super().__init__()
        self.linear, self.past = nn.Linear(8, 8), past

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x).exp()
        z = y.sum()
        (y.data if self.past else y).mul_(2)
        return z


def test_a_write_that_bypasses_the_version_counter_is_copied_to_the_host() -> None:
    made = job(Writes(past=True), 4, 8)
    expected = plain_step(made, 1, step=False)

    on_host(made, 1)

    assert not different(expected, made.state())


def test_a_write_that_autograd_refuses_is_refused() -> None:
    made = job(Writes(past=False), 4, 8)
    with pytest.raises(RuntimeError) as plainly:
        plain_step(made, 1)

    with pytest.raises(RuntimeError, match="is at version 1; expected version 0") as found:
        on_host(made, 1)

    assert "[4, 8]" in str(found.value)
    assert "modified by an inplace operation" in str(plainly.value)


def test_views_of_one_storage_share_one_copy_and_one_storage() -> None:
    model = nn.Linear(1, 1)
    host = HostSaves(model)
    whole = torch.randn(64, 64)
    copies = [whole[3], whole.t(), whole.view(-1)[5:]]
    expected = [c.clone() for c in copies]
    guard = torch._C._DisableTorchDispatch()
    packed = [host.pack(c) for c in copies]
    del copies, whole
    found = [host.unpack(p) for p in packed if p is not None]
    del guard

    assert host.bytes == 64 * 64 * 4
    assert len({f.untyped_storage()._cdata for f in found}) == 1
    assert [f.stride() for f in found] == [(1,), (1, 64), (1,)]
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert host.pack(model.weight) is None  # lives anyway


def test_pinned_memory_is_returned_when_no_saved_tensor_needs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    emptied: list[int] = []
    monkeypatch.setattr(torch._C, "_host_emptyCache", lambda: emptied.append(1), raising=False)
    model = nn.Linear(2, 2)
    host = HostSaves(model)
    host.pins = True  # as the copies of a model on a GPU are
    saved = [host.pack(torch.ones(1000)) for _ in range(2)]

    host.give_back()
    saved.pop()
    host.give_back()
    assert emptied == []  # the other one is still there
    saved.clear()
    host.give_back()
    host.give_back()

    assert emptied == [1]
