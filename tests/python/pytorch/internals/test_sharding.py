# SPDX-License-Identifier: Apache-2.0
"""The hooks of fully_shard run without our function modes; code of the program does not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn

from reprise.torch.internals.calls import Call
from reprise.torch.internals.modes import FunctionMode
from reprise.torch.internals.sharding import unwatched
from reprise.torch.meter.state import missing_gradients

fsdp = pytest.importorskip("torch.distributed.fsdp._fully_shard._fsdp_param_group")


class Seeing(FunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Any] = []

    def seen(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.calls.append(call.do)
        return call(*args, **kwargs)


@pytest.fixture
def sharded() -> Iterator[nn.Module]:
    from torch.distributed.fsdp import fully_shard

    store = distributed.HashStore()
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    for layer in model:
        fully_shard(layer)
    yield fully_shard(model)
    distributed.destroy_process_group()


def run(loss: Tensor) -> None:
    """Runs a backward below `Tensor.backward`, which is a torch function itself."""
    torch.autograd.Variable._execution_engine.run_backward(  # type: ignore[attr-defined]
        (loss,), (torch.ones(()),), False, False, (), allow_unreachable=True, accumulate_grad=True
    )


def backward(model: nn.Module, *, without: bool) -> list[Any]:
    """Returns what the mode sees of a backward, with or without the hooks' own calls."""
    loss = model(torch.ones(2, 8)).sum()
    with Seeing() as mode:
        if without:
            with unwatched(Seeing):
                run(loss)
        else:
            run(loss)
        assert torch._C._len_torch_function_stack() == 1
    return mode.calls


def test_gathered_parameters_have_the_gradients_of_their_shards(sharded: nn.Module) -> None:
    whole = sum(p.numel() * 4 for p in sharded.parameters())

    sharded.unshard()
    before = missing_gradients(sharded)
    sharded(torch.ones(2, 8)).sum().backward()
    sharded.unshard()
    sharded[1].unshard()

    assert before == whole
    assert all(p.grad is None for p in sharded[1].parameters())  # as they are gathered
    assert missing_gradients(sharded) == 0


def test_hooks_of_fully_shard_are_not_seen_and_are_what_they_were_afterwards(
    sharded: nn.Module,
) -> None:
    hooks = {name: vars(fsdp.FSDPParamGroup)[name] for name in ("pre_backward", "post_backward")}

    seen = backward(sharded, without=False)
    left = backward(sharded, without=True)

    assert len(seen) > 20
    assert len(left) < len(seen) / 2
    for name, hook in hooks.items():
        assert vars(fsdp.FSDPParamGroup)[name] is hook


def test_a_hook_of_the_program_within_those_of_fully_shard_is_seen(sharded: nn.Module) -> None:
    other = torch.ones(3)

    def write(_: Tensor) -> None:
        other.mul_(2)

    next(sharded.parameters()).register_post_accumulate_grad_hook(write)

    seen = backward(sharded, without=True)

    assert other[0] == 2
    assert Tensor.mul_ in seen


def test_a_hook_of_fully_shard_that_raises_leaves_the_mode_in_place(
    sharded: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise ValueError("no gradients today")

    monkeypatch.setattr(fsdp.FSDPParamGroup, "post_backward", fails)
    loss = sharded(torch.ones(2, 8)).sum()

    with Seeing(), unwatched(Seeing), pytest.raises(ValueError, match="no gradients"):
        run(loss)

    assert torch._C._len_torch_function_stack() == 0
    assert vars(fsdp.FSDPParamGroup)["post_backward"] is fails
