# SPDX-License-Identifier: Apache-2.0
"""Jobs whose ranks hold different layers and send activations to each other."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from jobs import Made, job
from networks import LENGTH, Decoder, batch_of, loss_of
from torch import Tensor, distributed
from torch.distributed.pipelining import PipelineStage, schedules

__all__: list[str] = []

MICRO_BATCHES = 4
# Whether the last stage joins the outputs of all micro-batches after the step, as schedules do
# unless they are told not to.
RETURN_OUTPUTS = True


def pipeline(schedule: Any, numbers: list[int], stages: int) -> Made:
    """Returns a job of `stages` stages, of which this rank has those in `numbers`."""
    cpu = torch.device("cpu")
    every = [
        Decoder(4 // stages, drop=0.0, first=n == 0, last=n == stages - 1) for n in range(stages)
    ]
    mine = [every[n] for n in numbers]
    made = [PipelineStage(every[n], n, stages, cpu) for n in numbers]
    several = issubclass(schedule, schedules.PipelineScheduleMulti)
    run = schedule(made if several else made[0], MICRO_BATCHES, loss_fn=loss_of)
    parameters = list(itertools.chain.from_iterable(m.parameters() for m in mine))
    adam = torch.optim.AdamW(parameters, lr=1e-3, foreach=False)
    generator = torch.Generator().manual_seed(100)
    first, last = 0 in numbers, stages - 1 in numbers

    def step(_: int) -> Tensor | None:
        adam.zero_grad()
        batch = batch_of(generator, rows=4 * MICRO_BATCHES)
        losses: list[Tensor] = []
        arguments = (batch[:, :LENGTH],) if first else ()
        if last:
            options = {} if RETURN_OUTPUTS else {"return_outputs": False}
            run.step(*arguments, target=batch[:, 1:], losses=losses, **options)
        else:
            run.step(*arguments)
        adam.step()
        return torch.stack(losses).mean().detach() if losses else None

    return Made(list(mine), lambda: parameters, step)


def _rank() -> int:
    return distributed.get_rank()


@job("gpipe")
def gpipe() -> Made:
    """All forwards, then all backwards."""
    return pipeline(schedules.ScheduleGPipe, [_rank()], 2)


@job("1f1b")
def one_forward_one_backward() -> Made:
    """A forward and a backward in turns."""
    return pipeline(schedules.Schedule1F1B, [_rank()], 2)


@job("interleaved-1f1b")
def interleaved() -> Made:
    """Two stages on each rank."""
    return pipeline(schedules.ScheduleInterleaved1F1B, [_rank(), _rank() + 2], 4)


@job("zero-bubble")
def zero_bubble() -> Made:
    """Backwards in two halves, which fill the gaps."""
    return pipeline(schedules.ScheduleInterleavedZeroBubble, [_rank(), _rank() + 2], 4)
