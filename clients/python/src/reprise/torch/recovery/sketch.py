# SPDX-License-Identifier: Apache-2.0
"""The step graph of a model that has not run: from its first arguments, on fake tensors.

    graph = sketched(model, args, kwargs, live_bytes)      # RepriseError: says why there is none

For the first step of a job that does not fit. Nothing is allocated. The loss is not known when the
forward begins: what leads from the outputs to a scalar is outside the root and no plan touches it,
so the outputs themselves stand for it, or the scalar ones where the model computes its loss. A copy
of the model runs, generators are put back; the program's own state is not touched.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map

from reprise.base.errors import RepriseError
from reprise.torch.capture.step_graph import CapturedGraph
from reprise.torch.estimation.assumed import with_rooflines
from reprise.torch.estimation.fake import NoMeter, faked
from reprise.torch.estimation.once import capture_step
from reprise.torch.internals.guard import described
from reprise.torch.internals.ops import tensors_in
from reprise.torch.meter.state import model_device
from reprise.torch.rerun.snapshot import Generators

__all__ = ["sketched"]

_SHAPES = "shapes alone do not determine the step"
_FAULT = "an internal error in Reprise"


def sketched(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], live_bytes: int
) -> CapturedGraph:
    """Returns the graph of a step made from shapes alone. `live_bytes`: what is alive on the
    device now. Times are a roofline of this machine."""
    device = str(model_device(model))
    generators = Generators()
    what = _FAULT  # of what fails now
    try:
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            what = "the model has no copy without memory"
            fake = faked(model, mode, device)
            what = _FAULT
            inputs = tree_map(_fake_input, (args, kwargs))

            def whole() -> None:
                nonlocal what
                what = _SHAPES
                outputs = fake(*inputs[0], **inputs[1])
                what = _FAULT
                found = [o for o in tensors_in(outputs) if o.requires_grad]
                heads = [o for o in found if o.dim() == 0] or found
                kind = model_device(model).type
                what = _SHAPES
                with torch.autocast(kind, enabled=False):
                    torch.autograd.backward(heads, [torch.ones_like(o) for o in heads])
                what = _FAULT

            def alive() -> list[Tensor]:
                return [*fake.parameters(), *fake.buffers(), *tensors_in(inputs)]

            meter: Any = NoMeter()
            with torch.enable_grad():
                graph = capture_step(fake, whole, meter, alive)
    except RepriseError:
        raise
    except Exception as error:
        raise RepriseError(f"{what} ({described(error)})") from error
    finally:
        generators.restore()
    object.__setattr__(graph, "static_bytes", live_bytes)
    return with_rooflines(graph)


def _fake_input(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    fake = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=value.device)
    return fake.requires_grad_(value.requires_grad)
