# SPDX-License-Identifier: Apache-2.0
"""Captures a step on fake tensors, which have sizes but no memory.

graph = fake_graph(model, step, inputs, optimizer, device)
fake = faked(model, mode, device)        # a copy of the model
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from reprise.agent.agent import Agent
from reprise.base.errors import RepriseError
from reprise.torch.capture.step_graph import CapturedGraph
from reprise.torch.estimation.once import capture_step

__all__ = ["NoMeter", "fake_graph", "faked", "resized"]

_STEP = "the step cannot be estimated from shapes alone"
_FAULT = "the step was not estimated: an internal error in Reprise"


class NoMeter:
    """A meter for fake tensors, which allocate nothing. Peaks come from the graph."""

    name, exact, why = "none", False, "nothing is allocated"

    def start(self, baseline_bytes: int) -> None: ...
    def stop(self) -> None: ...
    def reset_peak(self) -> None: ...
    def events_begin(self, agent: Agent) -> None: ...
    def events_end(self) -> None: ...
    def live(self) -> int:
        return 0

    def peak(self) -> int:
        return 0


def fake_graph(
    model: nn.Module,
    step: Callable[..., Tensor],
    inputs: tuple[Any, ...],
    optimizer: Callable[[Iterable[Tensor]], torch.optim.Optimizer] | None,
    device: str | None,
) -> CapturedGraph:
    """Returns the step graph of one step. The step runs twice: once so that gradients and optimizer
    state exist, and once captured. `device` is where it will run; None means where the model is.
    Raises RepriseError if the step depends on values."""
    state = torch.get_rng_state()
    what = _FAULT  # what an error at this point means
    try:
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            where = device or next((str(p.device) for p in model.parameters()), "cpu")
            where = "cpu" if where == "meta" else where
            what = _STEP
            fake = faked(model, mode, where)
            batch = [
                torch.empty_strided(x.size(), x.stride(), dtype=x.dtype, device=where)
                if isinstance(x, Tensor)
                else x
                for x in inputs
            ]
            made = optimizer(fake.parameters()) if optimizer is not None else None
            what = _FAULT

            def whole() -> None:
                nonlocal what
                what = _STEP
                if made is not None:
                    made.zero_grad()
                else:
                    fake.zero_grad()
                step(fake, *batch).backward()
                if made is not None:
                    made.step()
                what = _FAULT

            whole()

            def alive() -> list[Tensor]:
                found = [*fake.parameters(), *fake.buffers(), *filter(_is_tensor, batch)]
                found += [p.grad for p in fake.parameters() if p.grad is not None]
                for values in made.state.values() if made is not None else ():
                    found += filter(_is_tensor, values.values())
                return found

            total = sum({t.untyped_storage()._cdata: t.nbytes for t in alive()}.values())
            meter: Any = NoMeter()
            graph = capture_step(fake, whole, meter, alive)
    except RepriseError:
        raise
    except Exception as error:
        raise RepriseError(
            f"{what} ({type(error).__name__}: "
            f"{str(error).splitlines()[0][:200] if str(error) else 'no message'}); "
            "train one step for real with reprise.auto"
        ) from error
    finally:
        torch.set_rng_state(state)
    gone = sum(s.bytes for s in graph.storages if s.prior)
    object.__setattr__(graph, "static_bytes", max(0, total - gone))
    return graph


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def faked(model: nn.Module, mode: FakeTensorMode, device: str) -> nn.Module:
    """Returns a copy of the model without memory. Shared parameters stay shared."""
    memo: dict[int, Any] = {}
    for tensor in {id(t): t for t in (*model.parameters(), *model.buffers())}.values():
        with mode:
            fake = torch.empty_strided(
                tensor.size(), tensor.stride(), dtype=tensor.dtype, device=device
            )
        if isinstance(tensor, nn.Parameter):
            fake = nn.Parameter(fake, requires_grad=tensor.requires_grad)
        memo[id(tensor)] = fake
    return copy.deepcopy(model, memo)


def resized(inputs: tuple[Any, ...], size: int) -> tuple[Any, ...]:
    """Returns the inputs with another size of the first dimension, on the meta device."""
    return tuple(
        torch.empty((size, *x.shape[1:]), dtype=x.dtype, device="meta")
        if isinstance(x, Tensor) and x.dim()
        else x
        for x in inputs
    )
