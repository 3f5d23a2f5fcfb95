# SPDX-License-Identifier: Apache-2.0
"""What a collective writes is never made again, and no gradient changes because of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from jobs import Job, different, plain_step, planned_step, sum_of
from nets import WIDTH
from tapes import plan, prepared
from torch import Tensor, distributed, nn

from reprise.torch.capture.step_graph import CapturedGraph
from reprise.torch.internals.ops import OpKind


@pytest.fixture(autouse=True)
def one_rank() -> Iterator[None]:
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


class _Gathered(torch.autograd.Function):
    """Overwrites its input by what a collective brings, as sums over ranks in place do."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor, other: Tensor) -> Tensor:
        distributed.all_gather_single(x, other)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(_: torch.autograd.function.FunctionCtx, *grads: Tensor) -> tuple[Tensor, Tensor]:
        return grads[0] * 0.5, grads[0] * 0.5


class Talking(nn.Module):
    """Three blocks, each with a collective that writes what an op has made."""

    def __init__(self) -> None:
        super().__init__()
        self.ups = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.downs = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for up, down in zip(self.ups, self.downs, strict=True):
            y = up(x).tanh() * 2
            before = y * 0.5
            total = _Gathered.apply(y, x.sin())
            x = down(total).sigmoid() * total + before
        return x


def talking() -> Job:
    torch.manual_seed(0)
    model = Talking()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    return Job(model, (torch.randn(16, WIDTH),), sum_of, optimizer)


def _written(graph: CapturedGraph) -> dict[int, int]:
    """Returns the storages that a collective writes, each with the number of the last one."""
    found = {}
    for storage in graph.step.storages:
        if storage.collected:
            found[storage.id] = storage.collected[-1][0]
    return found


def test_storages_that_a_collective_writes_are_kept_and_their_makers_never_run_again() -> None:
    graph = prepared(talking())

    written = _written(graph)
    assert len(written) == 3
    for storage in graph.storages:
        assert storage.pinned or storage.id not in written
    for number, op in enumerate(graph.step.ops):
        if op.name.startswith("c10d."):
            assert op.kind is OpKind.COLLECTIVE
        used = {s.id for s in (*op.reads, *op.writes, *op.mutates)}
        if any(number < last for s, last in written.items() if s in used):
            assert op.kind not in (OpKind.PURE, OpKind.SEEDED), op.name


@pytest.mark.parametrize("seed", range(6))
def test_whatever_the_plan_gradients_are_those_of_the_plain_program(seed: int) -> None:
    plain = plain_step(talking(), 0, step=False)
    graph = prepared(talking())

    state, counts, _ = planned_step(talking(), graph, plan(graph, seed, again=0.6), 0, step=False)

    assert counts.replayed > 0
    assert counts.mismatches == 0
    assert not different(state, plain)
