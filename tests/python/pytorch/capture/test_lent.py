# SPDX-License-Identifier: Apache-2.0
"""Parameters that are gathered when a step begins take memory until they are emptied."""

from __future__ import annotations

import pytest
import referee
import torch
from jobs import start_meter
from torch import nn
from torch.distributed import fsdp

from reprise.torch.capture.capture import Capture
from reprise.torch.capture.step_graph import build
from reprise.torch.meter.state import alive_tensors

assert fsdp  # its ops
WIDTH = 64


@pytest.mark.parametrize("filled_again", [False, True])
def test_what_was_gathered_before_the_step_is_not_static(filled_again: bool) -> None:
    """As where the step begins inside the forward of a larger model, which is sharded."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 2000))
    shard, x = torch.randn(30_000), torch.randn(64, WIDTH)
    gathered = shard.clone()
    meter = start_meter()
    capture = Capture(model, meter)
    capture.begin(alive_tensors(torch.device("cpu")), {})

    with capture.region() as pin:
        out = model(x)
        pin(out)
    gathered.untyped_storage().resize_(0)
    out.square().mean().backward()  # at its peak
    if filled_again:
        gathered.untyped_storage().resize_(4 * 30_000)
        torch.ops.fsdp.split_with_sizes_copy(shard, [30_000], 0, out=[gathered])
    step = capture.finish()
    meter.stop()
    graph = build(step, name="lent", measured_peak_bytes=0, measured_step_ns=0)

    _, _, alive = referee.evaluate(graph.message(), referee.base_schedule(graph.message()))
    assert max(alive) == step.peak_bytes
    assert graph.static_bytes == step.live_begin - sum(s.bytes for s in graph.storages if s.prior)
    assert 4 * 30_000 in [s.bytes for s in graph.storages if s.prior]
    assert sum(s.bytes == 4 * 30_000 for s in graph.storages) == 1 + filled_again
