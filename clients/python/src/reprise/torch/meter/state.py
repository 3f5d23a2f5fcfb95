# SPDX-License-Identifier: Apache-2.0
"""Detects when hooks must not be set, opens meters, and lists what is alive before a step."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from reprise.base.errors import RepriseError
from reprise.torch.internals.calls import AUTOGRAD, top_hooks
from reprise.torch.internals.outside import is_hidden
from reprise.torch.internals.sharding import shards_of
from reprise.torch.internals.stand_ins import state_as_it_is
from reprise.torch.internals.subclass import lacks_memory, parts_of
from reprise.torch.meter.cuda_meter import CudaMeter, device_index
from reprise.torch.meter.meter import Meter, ProbeMeter
from reprise.torch.meter.storage_meter import StorageMeter

_PARAMETER, _GRADIENT, _STATE = 1, 2, 3  # reprise.v1.Category


def blocked() -> str:
    """Returns why hooks must not be set for the forward that is about to begin; empty if nothing
    prevents it."""
    why = surrounded()
    if why:
        return why
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "the model runs inside a functorch transform"
    if torch.compiler.is_compiling() or torch.jit._trace.is_tracing():
        return "the model is being compiled or traced"
    return ""


def surrounded() -> str:
    """Returns which hooks or modes of the program surround the forward that is about to begin, so
    that none may be set; empty if none do.

    Autograd applies only the innermost pair of saved-tensor hooks. Hooks around the model
    (checkpointing, offload) are the program's decision, so they stay."""
    if not AUTOGRAD._saved_tensors_hooks_is_enabled():
        return "saved-tensor hooks are switched off around the model"
    if top_hooks() is not None:
        return "saved-tensor hooks of the program surround the model"
    if torch._C._len_torch_dispatch_stack():
        modes = _get_current_dispatch_mode_stack()
        if not all(getattr(mode, "only_looks", False) for mode in modes):
            return "a dispatch mode of the program surrounds the model"
    return ""


def captures_graph(device: torch.device) -> bool:
    """Returns whether ops of this thread are being recorded into a CUDA graph. Nothing may wait for
    the device then, and nobody observes what a replay of the graph does."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def model_device(model: nn.Module) -> torch.device:
    """Returns the device of a model's first parameter or buffer; the CPU if it has none."""
    for tensor in (*model.parameters(), *model.buffers()):
        return tensor.device
    return torch.device("cpu")


def now_ns(device: torch.device) -> int:
    """Returns the host time, after waiting until the device has finished its queued work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter_ns()


def stream_of(device: torch.device) -> Callable[[], Any]:
    """Returns a function that returns the stream to which ops of this thread go, as a value to
    compare."""
    if device.type == "cuda":
        raw: Any = torch._C._cuda_getCurrentRawStream
        return partial(raw, device_index(device))
    return torch.cpu.current_stream  # the CPU has no queues, but a program may still name a stream


def work_clock(device: torch.device) -> Callable[[], int]:
    """Returns a clock for the work of a step. It is the CPU time of this thread if no other thread
    computes, because other processes on a busy machine stretch wall time unevenly; otherwise it is
    wall time."""
    one = device.type == "cpu" and torch.get_num_threads() == 1
    return time.thread_time_ns if one else partial(now_ns, device)


def alive_bytes(device: torch.device) -> int:
    """Returns the bytes of all tensors that are alive on the device, counting every storage
    once."""
    return _bytes_of(alive_tensors(device))


def _bytes_of(tensors: list[Tensor]) -> int:
    """Returns the bytes of the tensors' storages, counting every storage once."""
    sizes: dict[int, int] = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        sizes[storage._cdata] = storage.nbytes()
    return sum(sizes.values())


def missing_gradients(model: nn.Module) -> int:
    """Returns the bytes of the gradients that the trainable parameters of a model do not have. What
    holds gradients for them meanwhile, as DistributedDataParallel may, is alive all the same. Of
    parameters that fully_shard has gathered the shards have gradients."""
    shards = shards_of(model)
    own = (shards.get(id(parameter), parameter) for parameter in model.parameters())
    trained = (p for p in own if p.requires_grad and p.is_leaf and p.grad is None)
    return sum(part.nbytes for parameter in trained for part in parts_of(parameter))


def open_meter(device: str | torch.device = "cpu") -> Meter:
    """Returns the best meter that works here for a device ("cpu", "cuda:0"). Raises RepriseError if
    the memory of the device cannot be measured."""
    device = torch.device(device)
    if device.type == "cuda":
        return CudaMeter(device)
    if device.type != "cpu":
        raise RepriseError(f"device {device}: its memory cannot be measured, only cpu and cuda")
    try:
        return ProbeMeter()
    except RepriseError as error:
        return StorageMeter(str(error))


def start_counting(meter: Meter, device: torch.device, collected: bool = True) -> None:
    """Starts a meter with everything that is alive now. Without `collected`, garbage that waits for
    the collector is included and seen to die later; use that only if no figure is read before the
    next collection. A collection takes 0.2 s of CPU time in a program that has imported only
    torch."""
    alive = alive_tensors(device, collected)
    meter.start(_bytes_of(alive), alive)


def alive_tensors(device: torch.device, collected: bool = True) -> list[Tensor]:
    """Returns every tensor on the device that Python knows of. With `collected`, garbage is
    collected first: it would count as alive and die in the middle of a step.

    It asks for `type()`, not `isinstance`, because asking a lazy proxy for its class could run it.
    A fake tensor, as torch.compile leaves them behind, is not on the device that it names, so the
    device of its storage counts. A wrapper (DTensor) is skipped: its parts, which hold the bytes,
    are found on their own."""
    if collected:
        gc.collect()
    found = []
    things = gc.get_objects()
    kinds = {kind for kind in set(map(type, things)) if issubclass(kind, Tensor)}
    for thing in things:
        if type(thing) in kinds:
            # Only tensors for which torch itself raises an error are skipped silently.
            try:
                dense = thing.layout == torch.strided
            except (RuntimeError, NotImplementedError):
                continue
            if not dense or lacks_memory(thing):
                continue
            try:
                storage = thing.untyped_storage()
                there = storage.device
            except (RuntimeError, NotImplementedError):
                continue
            if _same(there, device) and not is_hidden(storage):
                found.append(thing)
    return found


def _same(one: torch.device, other: torch.device) -> bool:
    """Returns whether two devices are the same; a GPU without a number is the current one."""
    if one.type != other.type or one.type != "cuda":
        return one.type == other.type
    return device_index(one) == device_index(other)


def known_tensors(model: nn.Module, optimizers: list[Any]) -> Iterator[tuple[Tensor, str, int]]:
    """Yields buffers, gradients and optimizer state, each with its name and category."""
    for name, buffer in model.named_buffers():
        yield buffer, name, _PARAMETER
    paths = {id(p): n for n, p in model.named_parameters()}
    for name, parameter in model.named_parameters():
        if parameter.is_leaf and parameter.grad is not None:
            yield parameter.grad, f"{name}.grad", _GRADIENT
    for optimizer in optimizers:
        for parameter, state in state_as_it_is(optimizer).items():
            for key, value in state.items():
                if isinstance(value, Tensor):
                    yield value, f"{paths.get(id(parameter), 'parameter')}.{key}", _STATE


def known_names(model: nn.Module, optimizers: list[Any]) -> dict[int, tuple[str, int]]:
    """Returns name and category of buffers, gradients and optimizer state, by storage."""
    return {
        part.untyped_storage()._cdata: (name, category)
        for tensor, name, category in known_tensors(model, optimizers)
        for part in parts_of(tensor)
        if part.layout == torch.strided
    }
