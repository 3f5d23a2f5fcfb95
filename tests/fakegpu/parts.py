# SPDX-License-Identifier: Apache-2.0
"""Parts of Reprise that copy between the device and the host, between streams that the program has
ordered only as far as it must: they are right whenever the work of streams is done."""

from __future__ import annotations

import os
import random

import torch
from races import COUNT, ORDERED, Race, numbers, on
from torch import Tensor, nn


def buffers_come_back(_: bool) -> tuple[Tensor, Tensor]:
    """The forward runs on a side stream of a device that is not the current one, and the step runs
    again from the thread and the stream that called the backward."""
    from reprise.torch.rerun.snapshot import WatchedState

    model, side = nn.BatchNorm1d(16).to("cuda:1"), torch.cuda.Stream("cuda:1")
    state = WatchedState(model)
    torch.cuda.synchronize("cuda:1")
    mean = model.running_mean
    for value in (1.0, 2.0):
        with on(side):
            mean.fill_(value)
            state.take()
            mean.zero_()
        state.restore()
    return mean.cpu(), torch.full((16,), 2.0)


def gradients_come_back(_: bool) -> tuple[Tensor, Tensor]:
    """A gradient is kept where a node of a side stream made it, and its memory is used again."""
    from reprise.torch.rerun.restart import OutputGradients

    kept, side = OutputGradients(small=COUNT), torch.cuda.Stream()
    grad = numbers()
    for _again in range(2):
        with on(side):
            grad.mul_(2)
            copy = kept.keep(0, grad)
            grad.zero_().add_(1)
        found = copy.tensor()
        with on(side):
            grad.copy_(ORDERED, non_blocking=True)
    return found.cpu(), ORDERED * 2


def saved_tensors_come_back(_: bool) -> tuple[Tensor, Tensor]:
    """A tensor is saved on a side stream and is needed on the default one."""
    from reprise.torch.internals.host import HostSaves

    model, side = nn.Linear(1, 1).cuda(), torch.cuda.Stream()
    saves = HostSaves(model)
    with on(side):
        x = numbers() * 3
        with torch.no_grad():
            packed = saves.pack(x)
        del x
        torch.zeros(COUNT, device="cuda")
    assert packed is not None
    found = saves.unpack(packed)
    return found.cpu(), ORDERED * 3


# Of a step of `storages_come_back`, which takes as many steps as it needs for all of them.
_AT_ONCE = 50
STORAGES = int(os.environ.get("FAKEGPU_STORAGES", "500"))


def storages_come_back(_: bool) -> tuple[Tensor, Tensor]:
    """Storages of all sizes leave for host memory and come back in any order, once or twice, to
    places that others have had before, while new ones take the memory that they leave."""
    from reprise.torch.offload.slab import Stay, laid_out
    from reprise.torch.offload.tier import tier_of
    from reprise.torch.tape.parked import Parked
    from reprise.torch.tape.program import Place

    draw, device = random.Random(7), torch.device("cuda:0")
    tier = tier_of(device)
    assert tier is not None
    wrong = torch.zeros((), dtype=torch.int64, device=device)
    for first in range(0, STORAGES, _AT_ONCE):
        stays, calls, fetches = [], [], {}
        for storage in range(first, first + _AT_ONCE):
            fetches[storage] = draw.choice((1, 1, 2))
            at = sorted(draw.randrange(4 * _AT_ONCE) for _ in range(2 + 2 * fetches[storage]))
            size = 4 * draw.randint(1, COUNT)
            stays.append(Stay(storage, size, at[0], at[-1]))
            names = ("send", "sent", *("fetch", "take") * fetches[storage])
            calls += [
                (when, n, name, storage, size)
                for n, (when, name) in enumerate(zip(at, names, strict=True))
            ]
        at_byte, total = laid_out(stays)
        places = {
            s.storage: Place(at_byte[s.storage], s.bytes, fetches[s.storage], 0) for s in stays
        }
        step = Parked(places, tier, tier.slab(total))
        for _when, _n, name, storage, size in sorted(calls):
            if name == "send":
                made = torch.full((size // 4,), float(storage % 65_521), device=device)
                step.send(storage, made)
                del made
            elif name == "take":
                wrong += (step.take(storage) != float(storage % 65_521)).sum()
            else:
                getattr(step, name)(storage)
        step.let_go()
    return wrong.cpu(), torch.zeros((), dtype=torch.int64)


PARTS = (
    Race("part: storages come back from the host", storages_come_back, ()),
    Race("part: small buffers that a step has changed come back", buffers_come_back, ()),
    Race("part: gradients of outputs come back", gradients_come_back, ()),
    Race("part: saved tensors come back from the host", saved_tensors_come_back, ()),
)
