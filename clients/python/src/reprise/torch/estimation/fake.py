# SPDX-License-Identifier: Apache-2.0
"""Captures a step on fake tensors, which have sizes but no memory.

graph = fake_graph(model, step, inputs, optimizer, device)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from reprise.base.errors import RepriseError
from reprise.torch.capture.step_graph import CapturedGraph
from reprise.torch.estimation.copied import faked
from reprise.torch.estimation.fake_meter import FakeTensors
from reprise.torch.estimation.once import capture_step
from reprise.torch.estimation.shape import Shape
from reprise.torch.internals.engine import leaves

_STEP = "the step cannot be estimated from shapes alone"
_FAULT = "the step was not estimated: an internal error in Reprise"


def device_of(model: nn.Module, device: str | None) -> str:
    """Returns where a step will run: where it is said, else where the model is; on the CPU, if that
    is nowhere."""
    where = device or next((str(p.device) for p in model.parameters()), "cpu")
    return "cpu" if where == "meta" else where


def fake_graph(
    model: nn.Module,
    step: Callable[..., Tensor],
    inputs: tuple[Any, ...],
    optimizer: Callable[[Iterable[Tensor]], torch.optim.Optimizer] | None,
    device: str,
) -> CapturedGraph:
    """Returns the step graph of one step. The step runs twice: once so that gradients and optimizer
    state exist, for which its backward need not run, and once captured. `device` is where it will
    run. Raises RepriseError if the step depends on values."""
    state = torch.get_rng_state()
    what = _FAULT  # what an error at this point means
    try:
        with FakeTensors() as mode:
            what = _STEP
            fake = faked(model, mode, device)
            batch = [Shape.of(x).fake(device) if isinstance(x, Tensor) else x for x in inputs]
            made = optimizer(fake.parameters()) if optimizer is not None else None
            what = _FAULT

            def whole(backward: Callable[[Tensor], None] = Tensor.backward) -> None:
                nonlocal what
                what = _STEP
                if made is not None:
                    made.zero_grad()
                else:
                    fake.zero_grad()
                backward(step(fake, *batch))
                if made is not None:
                    made.step()
                what = _FAULT

            whole(lambda loss: _make_gradients(fake, loss))

            def alive() -> list[Tensor]:
                found = [*fake.parameters(), *fake.buffers(), *filter(_is_tensor, batch)]
                found += [p.grad for p in fake.parameters() if p.grad is not None]
                for values in made.state.values() if made is not None else ():
                    found += filter(_is_tensor, values.values())
                return found

            with mode.counted(alive()) as meter:
                return capture_step(fake, whole, meter, alive)
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


def _make_gradients(model: nn.Module, loss: Tensor) -> None:
    """Gives every parameter the gradient that the backward of a loss will make. Runs the backward
    only where its graph does not show that they all will have one."""
    trained = {p for p in model.parameters() if p.requires_grad}
    if trained <= set(leaves([loss])):
        for parameter in trained:
            parameter.grad = torch.empty_like(parameter)
    else:
        loss.backward()


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def resized(inputs: tuple[Any, ...], size: int) -> tuple[Any, ...]:
    """Returns the inputs with another size of the first dimension, on the meta device."""
    return tuple(
        Shape.of(x).resized(0, size).fake("meta") if isinstance(x, Tensor) and x.dim() else x
        for x in inputs
    )
