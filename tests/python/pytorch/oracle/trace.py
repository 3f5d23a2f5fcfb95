# SPDX-License-Identifier: Apache-2.0
"""Traces a training step as a flat list of calls on real tensors: forward, loss and backward.

    traced = trace(step, model, batch)        # step(model, batch) returns the loss
    traced.message()                          # its step graph, in the order of the calls

`make_fx` records every call below autograd, including in-place ops and views. The list then runs
once to observe what its calls do (observe.py).

Buffers and generators of the model are restored afterwards. This is for tests and for checking
predictions: everything is alive at once while the step is observed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from oracle.calls import FORWARD, Traced
from oracle.observe import Observer
from torch import Tensor, nn

from reprise.base.errors import RepriseError
from reprise.torch.rerun.snapshot import Generators

__all__ = ["trace", "untouched"]


def trace(
    step: Callable[..., Tensor], model: nn.Module, *inputs: Any, name: str = "traced step"
) -> Traced:
    """Traces `step(model, *inputs)` and the gradients of the model's parameters. Raises
    RepriseError if the step does anything but calls on tensors."""
    parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
    with untouched(model):
        graph = _written_down(step, model, inputs, list(parameters.values()))
    with untouched(model):
        try:
            return Observer(graph, name).run(inputs, list(parameters))
        except RuntimeError as error:
            raise RepriseError(
                f"the step cannot be traced: run again, it does not do the same ({error})"
            ) from error


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Restores the buffers and generators of a model at the end of the context."""
    generators = Generators()
    buffers = [(b, b.detach().clone()) for b in model.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
        generators.restore()


# ---- Writing the calls down -----------------------------------------------------------


def _written_down(
    step: Callable[..., Tensor], model: nn.Module, inputs: tuple[Any, ...], wanted: list[Tensor]
) -> Any:
    """Returns the graph of `make_fx`. Every node has phase, module and stretch in
    `meta["reprise"]`."""
    from torch.fx.experimental.proxy_tensor import get_proxy_mode, make_fx

    path: list[str] = [""]
    seen: list[Any] = []

    def tag(phase: str = FORWARD) -> None:
        """Tags the nodes that were recorded since the last call."""
        mode = get_proxy_mode()
        assert mode is not None
        nodes = mode.tracer.graph.nodes
        for node in reversed(nodes):
            if "reprise" in node.meta:
                break
            node.meta["reprise"] = (phase, path[-1], len(seen))

    def enters(name: str) -> Callable[..., None]:
        def enter(*_: Any) -> None:
            tag()
            path.append(name)
            seen.append(name)

        return enter

    def leaves(*_: Any) -> None:
        tag()
        path.pop()
        seen.append("")

    def whole(*flat: Any) -> tuple[Any, ...]:
        loss = step(model, *flat)
        tag()
        return (loss, *torch.autograd.grad(loss, wanted, allow_unused=True))

    handles = []
    for module_name, module in model.named_modules():
        handles.append(module.register_forward_pre_hook(enters(module_name)))
        handles.append(module.register_forward_hook(leaves, always_call=True))
    options: dict[str, Any] = {"tracing_mode": "real"}
    if "_error_on_data_dependent_ops" in inspect.signature(make_fx).parameters:
        options["_error_on_data_dependent_ops"] = False
    try:
        with torch.autograd.set_multithreading_enabled(False):
            graph = make_fx(whole, **options)(*inputs)
    except RepriseError:
        raise
    except Exception as error:
        raise RepriseError(
            f"the step cannot be traced ({type(error).__name__}: {str(error)[:200]})"
        ) from error
    finally:
        for handle in handles:
            handle.remove()
    return graph
