# SPDX-License-Identifier: Apache-2.0
"""The state of optimizers, such as Adam's averages, on the host while forward and backward run.

    state = StateOnHost(places, first, device, tier, slab) # of a plan that sends some of it
    state.leaves(optimizers)                               # a step begins: the copies begin
    state.sent(storage), state.fetch(storage)              # as the plan says (parked.py)
    state.home()                                           # an optimizer is about to step

State is read when an optimizer steps and at no other time, so it need not be on the device at the
peak of a step. Its tensors stay the objects that they are: their storages are emptied and filled
again. Between two steps everything is on the device, and so it is as soon as anyone looks at
`optimizer.state` within a step, to save it for example. What may leave: state_groups.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from reprise.base.errors import RepriseError
from reprise.torch.compiled.digest import digest
from reprise.torch.internals.guard import told
from reprise.torch.internals.stand_ins import State
from reprise.torch.meter.state import captures_graph
from reprise.torch.offload.slab import Slab
from reprise.torch.offload.tier import Copying, Tier
from reprise.torch.tape.calls import alone
from reprise.torch.tape.program import Place
from reprise.torch.tape.state_groups import Storages, groups_of, is_of_torch


class _Group:
    """Some storages that move together."""

    def __init__(self, storages: Storages, tier: Tier) -> None:
        self.storages = storages
        self.sizes = [storage.nbytes() for storage in storages]
        self.needs_host = False  # the bytes on the host are the only ones, or may be
        self._tier = tier
        self._host: list[Tensor] = []
        self._digests: list[bytes] = []  # of what left, if that is compared
        self._out: list[Copying] = []
        self._back: list[Copying] = []
        self._is_here = True
        self._stream: Any = None  # on a GPU, the one that waits for the copies out

    def send(self, host: Tensor, *, checked: bool) -> None:
        """Begins to copy the bytes to this place on the host."""
        here = [bytes_of(storage) for storage in self.storages]
        self._digests = [digest(tensor) for tensor in here] if checked else []
        self._host = list(host.split(self.sizes))
        self.needs_host = True
        if host.device != here[0].device:
            self._stream = torch.cuda.current_stream(here[0].device)
        self._out = [self._tier.out(*copy) for copy in zip(here, self._host, strict=True)]

    def sent(self) -> None:
        """Lets the memory of the device go, once the host has the bytes."""
        if self._is_here and self._out:
            _wait(self._out)
            self._is_here = False
            for storage in self.storages:
                if self._stream is not None:
                    # Of memory of another stream, that one would know nothing of the wait.
                    bytes_of(storage).record_stream(self._stream)
                storage.resize_(0)

    def fetch(self) -> None:
        """Allocates the memory again, and begins to copy the bytes back."""
        if self._is_here:
            return
        for storage, size in zip(self.storages, self.sizes, strict=True):
            storage.resize_(size)
        self._copy_back()
        self._is_here = True

    def home(self) -> None:
        """Has the bytes on the device, and nothing under way. Raises RepriseError if they are not
        those that left."""
        self.fetch()
        _wait(self._out)
        _wait(self._back)
        if not self._is_whole():
            self._copy_back()  # it may be this copy that went wrong
            _wait(self._back)
            if not self._is_whole():
                raise told(
                    RepriseError(
                        "optimizer state has come back from host memory with other bits: continue "
                        "from a checkpoint, with host_budget=0, and please report it"
                    )
                )
        self.needs_host = False

    def _copy_back(self) -> None:
        here = map(bytes_of, self.storages)
        self._back = [self._tier.back(*copy) for copy in zip(self._host, here, strict=True)]

    def _is_whole(self) -> bool:
        here = map(bytes_of, self.storages)
        return not self._digests or [digest(tensor) for tensor in here] == self._digests


def _wait(copies: list[Copying]) -> None:
    for copy in copies:
        copy.wait()
    copies.clear()


@dataclass(eq=False)
class StateOnHost:
    """The state that steps under one plan send to the host."""

    _places: Mapping[int, Place]  # in the slab, by storage of the plan
    _first: int  # the storage that is the first group of `groups_of`
    _device: torch.device
    _tier: Tier
    _slab: Slab
    _away: dict[int, _Group] = field(default_factory=dict)
    _shown: list[tuple[Optimizer, State]] = field(default_factory=list)

    def leaves(self, optimizers: Sequence[Optimizer], *, checked: bool = False) -> None:
        """Begins to copy to the host what the plan sends; `checked`: what comes back is compared
        with it. A group of another size than planned stays, and the step is larger."""
        alone(self._leaves, optimizers, checked)

    def _leaves(self, optimizers: Sequence[Optimizer], checked: bool) -> None:
        self._home()
        groups = groups_of(optimizers, self._device, self._tier.least_bytes)
        for optimizer in filter(is_of_torch, optimizers):
            shown = State(optimizer.state, self.home)
            self._shown.append((optimizer, shown))
            optimizer.state = shown  # type: ignore[assignment]
        for storage, place in self._places.items():
            number = storage - self._first
            group = _Group(groups[number] if number < len(groups) else [], self._tier)
            if sum(group.sizes) == place.bytes and self._slab.claim(place.at, place.bytes, group):
                self._away[storage] = group
                host = self._slab.memory[place.at : place.at + place.bytes]
                group.send(host, checked=checked)

    def sent(self, storage: int) -> None:
        """Lets a group go that leaves, after its copy."""
        if storage in self._away:
            alone(self._away[storage].sent)

    def fetch(self, storage: int) -> None:
        """Begins to bring a group back."""
        if storage in self._away:
            alone(self._away[storage].fetch)

    def home(self) -> None:
        """Has all state on the device, as if nothing had left. Raises RepriseError if a checked
        group comes back with other bits."""
        alone(self._home)

    def _home(self) -> None:
        if self._away and captures_graph(self._device):
            raise told(
                RepriseError(
                    "a step of an optimizer cannot be captured into a CUDA graph while its state "
                    "is in host memory: set host_budget=0"
                )
            )
        for storage in list(self._away):
            self._away[storage].home()
            del self._away[storage]
        while self._shown:
            optimizer, shown = self._shown.pop()
            if optimizer.state is shown:
                optimizer.state = shown.real


def bytes_of(storage: torch.UntypedStorage) -> Tensor:
    """Returns all bytes of a storage, as a tensor."""
    empty = torch.empty(0, dtype=torch.uint8, device=storage.device)
    return empty.set_(storage, 0, (storage.nbytes(),), (1,))
