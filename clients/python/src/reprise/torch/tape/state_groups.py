# SPDX-License-Identifier: Apache-2.0
"""Which state of optimizers may leave the device, and step graphs that let it.

    groups = groups_of(optimizers, device, least_bytes)    # storages, in at most 32 groups
    message = movable(message, [sum of bytes of each])     # a step graph with these as storages

Only state of torch's own optimizers, unless they are `capturable`: others may keep addresses of it.
And only what nobody else refers to: without its memory, a tensor cannot be read.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from reprise.torch.internals.contracts import STORAGE_USERS

# So many that one more or less is a small part of the state.
GROUPS = 32
_STATE = 3  # of reprise.v1.Category

Storages = list[torch.UntypedStorage]


def groups_of(
    optimizers: Sequence[Optimizer], device: torch.device, least_bytes: int
) -> list[Storages]:
    """Returns the storages of at least so many bytes that optimizers keep on a device beside
    parameters and gradients, in groups of about equal size; always the same ones for the same
    state. Linear in tensors of state."""
    found: dict[int, torch.UntypedStorage] = {}
    for optimizer in optimizers:
        if not is_of_torch(optimizer) or sys.getrefcount(optimizer.state) > _alone().whole:
            continue
        mine = [p for g in optimizer.param_groups if not g.get("capturable") for p in g["params"]]
        for parameter in mine:
            for storage in _storages_of(optimizer.state, parameter):
                found[storage._cdata] = storage
    mine = [
        storage
        for storage in found.values()
        if storage.device == device
        and storage.nbytes() >= least_bytes
        and storage.resizable()
        and not (storage.device.type == "cpu" and storage.is_shared())
    ]
    total, before = sum(storage.nbytes() for storage in mine), 0
    groups: list[Storages] = []
    for storage in mine:
        if len(groups) * total <= before * GROUPS:
            groups.append([])
        groups[-1].append(storage)
        before += storage.nbytes()
    return groups


def is_of_torch(optimizer: Optimizer) -> bool:
    """Returns whether an optimizer steps by code of torch."""
    step: Any = type(optimizer).step
    module: str = getattr(step, "__wrapped__", step).__module__
    return module.startswith("torch.optim.")


class _Counts(NamedTuple):
    """How often the parts of an optimizer's state are referred to, as counted here."""

    whole: int
    one: int  # what is kept of one parameter
    tensor: int


class _Optimizer:
    """Has state that nobody else refers to."""

    def __init__(self) -> None:
        self.state = {0: {"average": torch.empty(1)}}


@cache
def _alone() -> _Counts:
    """Returns the counts of what nobody else refers to."""
    optimizer = _Optimizer()
    whole = sys.getrefcount(optimizer.state)
    one, tensors = _counted(optimizer.state, 0)
    return _Counts(whole, one, tensors[0][1])


def _counted(state: Any, parameter: Any) -> tuple[int, list[tuple[Any, int]]]:
    """Returns how often what is kept of a parameter is referred to, and so its values."""
    held = state.get(parameter, {})
    return sys.getrefcount(held), [(value, sys.getrefcount(value)) for value in held.values()]


def _storages_of(state: Any, parameter: Any) -> Iterator[torch.UntypedStorage]:
    """Yields the storages of a parameter's state that nobody else can reach."""
    users = STORAGE_USERS.get()
    count, values = _counted(state, parameter)
    if users is None or count > _alone().one:
        return
    for value, references in values:
        if type(value) is not Tensor or value.layout != torch.strided:
            continue
        if references > _alone().tensor or value._use_count() > 1:  # type: ignore[attr-defined]
            continue
        storage = value.untyped_storage()
        if users(storage._cdata) <= 2:  # the tensor, and the name of it here
            yield storage


def movable(message: dict[str, Any], groups: Sequence[int]) -> dict[str, Any]:
    """Returns a step graph, as proto3 JSON, with groups of optimizer state of so many bytes as
    storages of their own, behind the others: there when the step begins, read when an optimizer
    steps, there when it ends. The same graph, if one steps before the backward is over."""
    ops, size = message["ops"], sum(groups)
    steps = [number for number, op in enumerate(ops) if op["phase"] == "PHASE_OPTIMIZER"]
    first = steps[0] if steps else 0
    if not first or len(steps) < len(ops) - first or not size <= message["static_bytes"]:
        return message
    begin = len(message["storages"])
    numbers = [begin + n for n in range(len(groups))]
    ops = list(ops)
    ops[0] = {**ops[0], "writes": [*ops[0]["writes"], *numbers]}
    ops[first] = {**ops[first], "reads": [*ops[first]["reads"], *numbers]}
    parts = [
        {**part, "bytes": part["bytes"] - size * (part["category"] == _STATE)}
        for part in message["static_parts"]
    ]
    alike = {
        "name": "optimizer state",
        "category": _STATE,
        "saved_for_backward": False,
        "release_op": 0,
        "pinned": False,
    }
    state = [{"id": n, "bytes": held, **alike} for n, held in zip(numbers, groups, strict=True)]
    return {
        **message,
        "ops": ops,
        "static_bytes": message["static_bytes"] - size,
        "static_parts": [part for part in parts if part["bytes"] > 0],
        "storages": [*message["storages"], *state],
        "required": [*message["required"], *numbers],
    }
