# SPDX-License-Identifier: Apache-2.0
"""Captures one step of a model that is not armed.

    graph = capture_step(model, step)     # step() runs a whole training step once
    step = capture_once(model, step)      # the same, before it is a graph

Used by `reprise.saved` and `reprise.estimate`. The model is restored afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from reprise.base.errors import RepriseError
from reprise.torch.capture.capture import Capture
from reprise.torch.capture.captured import CapturedStep
from reprise.torch.capture.step_graph import CapturedGraph, build
from reprise.torch.internals.forward import ArmedForward
from reprise.torch.internals.optimizers import remove_unused
from reprise.torch.internals.stand_ins import Forward
from reprise.torch.meter.meter import Meter
from reprise.torch.meter.state import (
    alive_tensors,
    known_names,
    model_device,
    open_meter,
    start_counting,
)


def capture_step(
    model: nn.Module,
    step: Callable[[], Any],
    meter: Meter | None = None,
    prior: Callable[[], list[Tensor]] | None = None,
) -> CapturedGraph:
    """Returns the step graph of one call of `step`. Raises RepriseError if the model is armed, or
    if `step` does not call it with gradients enabled."""
    captured = capture_once(model, step, meter, prior)
    return build(
        captured,
        name=type(model).__name__,
        measured_peak_bytes=captured.peak_bytes,
        measured_step_ns=0,
    )


def capture_once(
    model: nn.Module,
    step: Callable[[], Any],
    meter: Meter | None = None,
    prior: Callable[[], list[Tensor]] | None = None,
) -> CapturedStep:
    """Returns what one call of `step` did, and raises as `capture_step` does."""
    # `isinstance` would ask the replaced forward for its class, and it says that it is a method.
    if type(vars(model).get("forward")) is Forward:
        raise RepriseError("this model is already armed: call reprise.remove(model) first")
    device = model_device(model)
    own_meter = meter is None
    if meter is None:
        meter = open_meter(device)
        start_counting(meter, device)
    capture = Capture(model, meter)

    def around(call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not torch.is_grad_enabled():
            return call(*args, **kwargs)
        with capture.region() as pin:
            out = call(*args, **kwargs)
            pin(out)
        return out

    armed = ArmedForward(model, around)
    handle = register_optimizer_step_pre_hook(lambda *_: capture.enter_optimizer())
    try:
        before = alive_tensors(device) if prior is None else prior()
        capture.begin(before, known_names(model, []))
        del before
        try:
            step()
        except BaseException:
            capture.leave()
            raise
        captured = capture.finish()
    finally:
        handle.remove()
        remove_unused()
        armed.remove()
        if own_meter:
            meter.stop()
    if not captured.regions:
        raise RepriseError("the step did not call the model with gradients on")
    return captured
