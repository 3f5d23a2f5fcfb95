# SPDX-License-Identifier: Apache-2.0
"""Parts of Reprise that copy between the device and the host, between streams that the program has
ordered only as far as it must: they are right whenever the work of streams is done."""

from __future__ import annotations

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


PARTS = (
    Race("part: small buffers that a step has changed come back", buffers_come_back, ()),
    Race("part: gradients of outputs come back", gradients_come_back, ()),
    Race("part: saved tensors come back from the host", saved_tensors_come_back, ()),
)
