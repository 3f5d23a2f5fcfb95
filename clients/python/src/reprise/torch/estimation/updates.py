# SPDX-License-Identifier: Apache-2.0
"""What the optimizers of a model will need, found before they have stepped.

    state_bytes, workspace_bytes = needs_of(optimizers_of(model))      # to come; of a step

Each optimizer is copied, its parameters replaced by fake ones, one for each size there is, and the
copy steps on fake gradients. State grows by parameter, so what the copy makes is counted as often
as there are parameters of that size. An optimizer of another library whose copy cannot step adds
nothing: what it makes is seen when it has stepped.

Linear in parameters, with about a dozen fake ops for each size.
"""

from __future__ import annotations

import gc
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from reprise.base.errors import RepriseError
from reprise.torch.estimation.fake_meter import FakeTensors
from reprise.torch.estimation.shape import Shape
from reprise.torch.internals.ops import tensors_in
from reprise.torch.internals.subclass import part_of


def optimizers_of(model: nn.Module) -> list[Optimizer]:
    """Returns the optimizers that exist and update parameters of a model: for each parameter the
    newest one, of a wrapper and what it wraps the latter."""
    mine = {id(p) for p in model.parameters()}
    things = gc.get_objects()
    kinds = {kind for kind in set(map(type, things)) if issubclass(kind, Optimizer)}
    found: list[Optimizer] = []
    for thing in reversed(things if kinds else []):
        if type(thing) not in kinds or isinstance(vars(thing).get("optimizer"), Optimizer):
            continue
        updated = {id(p) for group in thing.param_groups for p in group["params"]}
        if updated & mine:
            mine -= updated
            found.append(thing)
    return found


def needs_of(optimizers: Iterable[Optimizer]) -> tuple[int, int]:
    """Returns the bytes of state that steps of these optimizers, one after the other, make and
    keep, and the most that they have beside state, parameters and gradients."""
    state = workspace = 0
    for optimizer in optimizers:
        try:
            made, beside = _needs(optimizer)
        except RepriseError:
            continue
        state += made
        workspace = max(workspace, beside)
    return state, workspace


def _needs(optimizer: Optimizer) -> tuple[int, int]:
    """Returns the bytes of state that a step makes, and those that it needs beside."""
    alike: Counter[_Like] = Counter()
    total = 0  # bytes of all parameters
    for number, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            if parameter.requires_grad:
                stepped = bool(optimizer.state.get(parameter))
                part = part_of(parameter)
                own = parameter if part is None else part
                alike[_Like(number, Shape.of(own), stepped)] += 1
                total += own.nbytes
    if not alike:
        return 0, 0
    with FakeTensors() as mode:
        once = _Stepped(mode, optimizer, list(alike))
        made = sum(once.state_bytes(like) * count for like, count in alike.items())
        if max(alike.values()) == 1:
            return made, once.workspace_bytes
        # One tensor after the other needs what the largest does; all at once, what all do.
        twice = _Stepped(mode, optimizer, [*alike, *alike])
    grows = max(0, twice.workspace_bytes - once.workspace_bytes)
    more = total / sum(like.shape.bytes for like in alike) - 1
    return made, once.workspace_bytes + int(grows * more)


@dataclass(frozen=True, slots=True)
class _Like:
    """What parameters have in common that an optimizer treats alike."""

    group: int
    shape: Shape
    stepped: bool  # it has its state


class _Stepped:
    """A copy of an optimizer that has stepped on fake parameters."""

    def __init__(self, mode: FakeTensors, optimizer: Optimizer, likes: list[_Like]) -> None:
        self._likes = likes
        self._fakes = [nn.Parameter(like.shape.fake()) for like in likes]
        gradients = [torch.empty_like(fake) for fake in self._fakes]
        for fake, gradient in zip(self._fakes, gradients, strict=True):
            fake.grad = gradient
        groups = [{**group, "params": []} for group in optimizer.param_groups]
        for like, fake in zip(likes, self._fakes, strict=True):
            groups[like.group]["params"].append(fake)
            _as_on_device(groups[like.group], like.shape.device)
        self._copy = copy = type(optimizer).__new__(type(optimizer))
        empty: Any = defaultdict(dict)
        state = {"defaults": optimizer.defaults, "state": empty, "param_groups": groups}
        step: Any = type(optimizer).step
        with torch.no_grad(), mode.counted([*self._fakes, *gradients]) as meter:
            begin = meter.live()
            try:
                copy.__setstate__(state)
                # Without the hooks of the process, which would take it for one of the program.
                getattr(step, "__wrapped__", step)(copy)
            except Exception as error:  # code that is not ours, on tensors it was not made for
                raise RepriseError("the copy of an optimizer cannot step") from error
        held = sum(map(self.state_bytes_of, range(len(likes))))
        self.workspace_bytes = max(0, meter.peak() - begin - held)

    def state_bytes_of(self, number: int) -> int:
        found = tensors_in(*self._copy.state.get(self._fakes[number], {}).values())
        storages = {s._cdata: s for s in (tensor.untyped_storage() for tensor in found)}
        return sum(storage.nbytes() for storage in storages.values())

    def state_bytes(self, like: _Like) -> int:
        """Returns the bytes of state that the step has made for such a parameter."""
        return 0 if like.stepped else self.state_bytes_of(self._likes.index(like))


def _as_on_device(group: dict[str, Any], device: torch.device) -> None:
    """Chooses the way over all tensors at once where torch does, which it does by their type, and
    fake ones have another."""
    chosen = group.get("foreach") is not None or group.get("fused")
    if "foreach" in group and not chosen and device.type == "cuda":
        group["foreach"] = not group.get("differentiable", False)
