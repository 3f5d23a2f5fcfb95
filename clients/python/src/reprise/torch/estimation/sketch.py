# SPDX-License-Identifier: Apache-2.0
"""The step graph of a model that has not run: from its first arguments, on fake tensors.

    sketch = sketched(model, args, kwargs, live_bytes)     # RepriseError: says why there is none
    sketch = sketched(..., adds=True)        # whose backward adds to gradients that are there
    sketch = sketched(..., copies=True)      # of a program that is given a copy of the output
    sketch.graph, sketch.least_peak_bytes
    sketch = sketch.with_larger_loss()

For the first steps of a job. Nothing is allocated and no kernel runs. A copy of the model runs
(copied.py), generators are put back; the program's own state is not touched. What optimizers will
make is added (updates.py), so that the step is one like all later ones.

The loss is not known when the forward begins. What leads from the outputs to a scalar is outside
the model, and no plan touches it; but it is alive with what the plan keeps. If the model returns a
scalar, that is the loss. Otherwise a cross entropy over the last dimension of each output stands
for it, in single precision: it keeps one tensor as large as the output and makes two in the
backward. A mean square takes one more there, and few losses exceed that: it is the larger loss.
Whether the program holds the output itself until then is not known either, nor whether it lets go
of its batch. In the graph it holds both; what the step needs at the least is what it needs in a
program that holds neither.

What a forward asks of its masks and positions is answered where they are integers (values.py).

What `fully_shard` gathers and reduces is done in the copy without other ranks (sharded.py). A
forward that communicates in another way has no such step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves, tree_map

from reprise.base.errors import RepriseError
from reprise.torch.capture.captured import (
    BACKWARD,
    FORWARD,
    OPTIMIZER,
    CapturedOp,
    CapturedStep,
)
from reprise.torch.capture.step_graph import CapturedGraph, build
from reprise.torch.estimation.assumed import walk, with_rooflines
from reprise.torch.estimation.copied import faked, refuse_to_disturb, unnoticed
from reprise.torch.estimation.fake_meter import FakeTensors
from reprise.torch.estimation.once import capture_once
from reprise.torch.estimation.shape import Shape, shapes_of
from reprise.torch.estimation.sharded import gathered_bytes, is_sharded
from reprise.torch.estimation.updates import needs_of, optimizers_of
from reprise.torch.internals.guard import described
from reprise.torch.internals.ops import OpKind, outputs_in, tensors_in
from reprise.torch.internals.subclass import parts_of
from reprise.torch.meter.state import model_device
from reprise.torch.rerun.snapshot import Generators

# Of graphs that are made from shapes, as the server reads it (formats/convert/sentence.cc).
FLAVOUR = "eager-shapes"

_SHAPES = "shapes alone do not determine the step"
_FAULT = "an internal error in Reprise"
# Ops that keep a buffer of which a fake tensor does not know the size.
_UNKNOWN = ("mkldnn_rnn_layer", "_cudnn_rnn", "miopen_rnn")


@dataclass(frozen=True, slots=True)
class Sketch:
    """A step made from shapes."""

    graph: CapturedGraph
    # In a program that lets go of batch and outputs as soon as nothing reads them.
    least_static_bytes: int
    least_peak_bytes: int
    stands_in: bool  # another loss stands for that of the program

    def with_larger_loss(self) -> Sketch:
        """Returns the step with a loss that takes one more tensor in its backward; the same one if
        the model itself returns its loss."""
        if not self.stands_in:
            return self
        step, ops = self.graph.step, []
        of_loss = _after_forward(step)
        for op in step.ops:
            kept = [s.bytes for s in op.reads if op.phase == BACKWARD and s.birth in of_loss]
            more = op.workspace_bytes + max(kept, default=0)
            ops.append(replace(op, workspace_bytes=more) if kept else op)
        graph = replace(self.graph, step=replace(step, ops=ops))
        graph = replace(graph, measured_peak_bytes=walk(graph.message())[1])
        return replace(self, graph=graph)


def sketched(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    live_bytes: int,
    *,
    adds: bool = False,
    copies: bool = False,
) -> Sketch:
    """Returns a step made from shapes alone, and from what small tensors of integers among the
    arguments hold. Of the arguments, a `Shape` may stand for a tensor.
    `live_bytes`: what is alive on the device now; `adds`: whether the backward adds to gradients
    that are alive when the step begins, as those of micro-batches do; `copies`: whether a wrapper
    hands the program a copy of the output. Times are a roofline of this machine."""
    device = str(model_device(model))
    generators = Generators()
    what, stands_in = _FAULT, False  # of what fails now
    try:
        optimizers = optimizers_of(model)
        refuse_to_disturb(model)
        with FakeTensors(shards=is_sharded(model)) as mode, unnoticed(model):
            what = "the model has no copy without memory"
            fake = faked(model, mode, device)
            what = _FAULT
            gradients = _given_gradients(fake, device) if adds else []
            inputs = tree_map(
                lambda value: value.fake() if isinstance(value, Shape) else value,
                shapes_of((args, kwargs)),
            )
            for given, made in zip(tree_leaves((args, kwargs)), tree_leaves(inputs), strict=True):
                if isinstance(given, Tensor):
                    mode.values.know(made, given)

            def whole() -> None:
                nonlocal what, stands_in
                what = _SHAPES
                outputs = [fake(*inputs[0], **inputs[1])]
                if copies:
                    outputs = [tree_map(_copy, outputs)]
                with torch.autocast(model_device(model).type, enabled=False):
                    stands_in = _backward(outputs)
                what = _FAULT

            def alive() -> list[Tensor]:
                found = [*fake.parameters(), *fake.buffers(), *gradients, *tensors_in(inputs)]
                return [part for tensor in found for part in parts_of(tensor)]

            with torch.enable_grad(), mode.counted(alive()) as meter:
                step = capture_once(fake, whole, meter, alive)
        state_bytes, workspace_bytes = needs_of(optimizers)
    except RepriseError:
        raise
    except Exception as error:
        raise RepriseError(f"{what} ({described(error)})") from error
    finally:
        generators.restore()
    for op in step.ops:
        if op.in_region and any(name in op.name for name in _UNKNOWN):
            raise RepriseError(f"{_SHAPES} (it is not known what {op.name} keeps)")
    if optimizers:
        update = CapturedOp(None, "reprise.optimizers", OPTIMIZER, OpKind.ONCE, in_region=False)
        update.workspace_bytes = workspace_bytes
        step.ops.append(update)
    graph = build(step, name=type(model).__name__, measured_peak_bytes=0, measured_step_ns=0)
    static_bytes = live_bytes + state_bytes - gathered_bytes(model)
    graph = replace(graph, static_bytes=static_bytes, flavour=FLAVOUR)
    graph = with_rooflines(graph)
    return Sketch(graph, *_least(graph), stands_in)


def _least(graph: CapturedGraph) -> tuple[int, int]:
    """Returns what is static and what is alive at the peak, in bytes, if the program lets go of
    its batch and of the outputs as soon as nothing reads them."""
    step, message = graph.step, graph.message()
    of_loss = _after_forward(step)
    for storage, said in zip(graph.storages, message["storages"], strict=True):
        if storage.pinned or storage.birth in of_loss:
            said["release_op"] = storage.birth
    for number, storage in enumerate(graph.batch, len(graph.storages)):
        message["storages"].append({"id": number, "bytes": storage.bytes, "release_op": 0})
        message["static_bytes"] -= storage.bytes
        message["ops"][0]["writes"].append(number)
        for op, said in zip(step.ops, message["ops"], strict=True):
            if storage in op.arguments:
                said["reads"].append(number)
    return message["static_bytes"], walk(message)[1]


def _after_forward(step: CapturedStep) -> set[int]:
    """Returns the ops after the model's forward that are not of the backward: those of the loss."""
    return {
        number
        for number, op in enumerate(step.ops)
        if number and op.phase == FORWARD and not op.in_region
    }


def _backward(outputs: list[Any]) -> bool:
    """Goes back from the loss among the outputs, or from one that stands for it. Returns whether
    one does."""
    found = list({id(t): t for t in outputs_in(outputs) if t.requires_grad}.values())
    losses = [output for output in found if output.dim() == 0]
    stands_in = not losses
    losses = losses or [_stand_in(output) for output in found]
    torch.autograd.backward(losses, [torch.ones_like(loss) for loss in losses])
    return stands_in


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def _given_gradients(fake: nn.Module, device: str) -> list[Tensor]:
    """Gives each parameter of a copy a gradient, and returns these."""
    for parameter in fake.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.empty_like(parameter, requires_grad=False)
    return [p.grad for p in fake.parameters() if p.grad is not None]


def _stand_in(output: Tensor) -> Tensor:
    """Returns the cross entropy of an output, in single precision."""
    if not output.is_floating_point():
        return output.abs().sum()
    rows = output.float().reshape(-1, output.shape[-1])
    return F.cross_entropy(rows, torch.empty(len(rows), dtype=torch.int64, device=rows.device))
