# SPDX-License-Identifier: Apache-2.0
"""Under a dispatch mode of ours an op does to version counters what it does without one. Autograd
compares them to notice that a tensor it has saved was written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import referee
import torch
from jobs import captured, plain_step, planned_step, start_meter
from nets import WIDTH, job
from torch import Tensor, nn

from reprise.torch.internals.modes import Mode, Op

# Ops that write a list of tensors, here `w`; `r` is read.
MANY: dict[str, Callable[[list[Tensor], Tensor], Any]] = {
    "abs": lambda w, r: torch._foreach_abs_(w),
    "add": lambda w, r: torch._foreach_add_(w, 1.0),
    "add of many": lambda w, r: torch._foreach_add_(w, [r, r]),
    "addcdiv": lambda w, r: torch._foreach_addcdiv_(w, [r, r], [r, r]),
    "addcmul": lambda w, r: torch._foreach_addcmul_(w, [r, r], [r, r], 2.0),
    "clamp": lambda w, r: torch._foreach_clamp_max_(w, 1.0),
    "copy": lambda w, r: torch._foreach_copy_(w, [r, r]),
    "lerp": lambda w, r: torch._foreach_lerp_(w, [r, r], 0.5),
    "mul": lambda w, r: torch._foreach_mul_(w, r.sum()),
    "sqrt": lambda w, r: torch._foreach_sqrt_(w),
    "zero": lambda w, r: torch._foreach_zero_(w),
    "split": lambda w, r: torch.split_copy(r.repeat(2), 2, out=w),
    "split with sizes": lambda w, r: torch.split_with_sizes_copy(r.repeat(2), [2, 2], out=w),
    "unbind": lambda w, r: torch.unbind_copy(r.repeat(2, 1), out=w),
}
# Of these autograd counts no write.
UNCOUNTED: dict[str, Callable[[list[Tensor], Tensor], Any]] = {
    "unscale": lambda w, r: torch._amp_foreach_non_finite_check_and_unscale_(w, r[:1], r.sum()),
    "a fused optimizer": lambda w, r: torch._fused_sgd_(
        w,
        [r, r],
        [],
        weight_decay=0.0,
        momentum=0.0,
        lr=0.1,
        dampening=0.0,
        nesterov=False,
        maximize=False,
        is_first_step=True,
    ),
}


class Passes(Mode):
    """A mode that only calls."""

    def op(self, op: Op, types: Any) -> Any:
        return op.run()


class Fails(Mode):
    """A mode that has a fault."""

    def op(self, op: Op, types: Any) -> Any:
        raise RuntimeError("a fault")


def versions(write: Callable[[list[Tensor], Tensor], Any]) -> list[int]:
    """Returns the versions of two tensors that a call has written, and of one that it has not."""
    written, read = [torch.ones(2), torch.ones(2)], torch.ones(2)
    write(written, read)
    return [t._version for t in (*written, read)]


@pytest.mark.parametrize("mode", [Passes, Fails])
@pytest.mark.parametrize("name", [*MANY, *UNCOUNTED])
def test_a_write_of_many_tensors_is_counted_under_a_mode_as_without(
    name: str, mode: type[Mode]
) -> None:
    write = {**MANY, **UNCOUNTED}[name]
    plain = versions(write)
    with mode():
        found = versions(write)
    assert found == plain
    assert bool(found[0]) is (name in MANY)


@pytest.mark.parametrize("mode", [Passes, Fails])
def test_a_graph_notices_that_a_tensor_it_waits_for_was_written_with_others(
    mode: type[Mode],
) -> None:
    weight = torch.ones(3, requires_grad=True)
    loss = weight.square().sum()
    with mode(), torch.no_grad():
        torch._foreach_add_([weight, torch.ones(2)], 1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_what_is_counted_under_a_mode_stays_as_it_was_when_a_call_fails() -> None:
    key = torch._C.DispatchKey.ADInplaceOrView
    seen: list[bool] = []

    class Looks(Passes):
        def op(self, op: Op, types: Any) -> Any:
            before = torch._C._dispatch_tls_is_dispatch_key_excluded(key)
            try:
                return super().op(op, types)
            finally:
                seen.append(torch._C._dispatch_tls_is_dispatch_key_excluded(key) == before)

    wrong: list[Tensor] = [torch.ones(2), torch.ones(3)]
    with Looks(), pytest.raises(RuntimeError):
        torch._foreach_mul_(wrong, [torch.ones(5), torch.ones(4)])
    assert all(seen)


class Lists(nn.Module):
    """A forward that writes two buffers at once, and values of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.register_buffer("scale", torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x).sin()
        with torch.no_grad():
            seen = x.detach().mean(0)
            torch._foreach_mul_([self.mean, self.scale], 0.9)
            torch._foreach_add_([self.mean, self.scale, seen], [seen.clone()] * 3)
        return x.cos() * seen * self.scale.clone()


@pytest.mark.usefixtures("half")
def test_a_forward_that_writes_many_tensors_counts_as_much_in_each_kind_of_step() -> None:
    made = job(Lists())
    tensors = [*made.model.buffers(), *made.model.parameters()]

    def counted(step: Callable[[], Any]) -> tuple[Any, list[int]]:
        before = [t._version for t in tensors]
        result = step()
        return result, [t._version - b for t, b in zip(tensors, before, strict=True)]

    plain_step(made, 0)
    _, plain = counted(lambda: plain_step(made, 0))
    graph, in_capture = counted(lambda: captured(made, start_meter()))
    schedule = referee.random_plan(graph.message(), 0, 1.0, 0.3)
    _, planned = counted(lambda: planned_step(made, graph, schedule, 0))
    assert min(plain) > 0
    assert (in_capture, planned) == (plain, plain)
