# SPDX-License-Identifier: Apache-2.0
"""Programs for the fake GPU that need one wait: with it they compute the right bits, whenever their
copies and kernels run; without it the fake shows wrong ones. It tests the fake, not Reprise.

races.py NAME...    # under FAKEGPU_WORK; ends with a line of JSON: name -> [right with, without]
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from cases import EARLIEST, LATEST, RANDOM
from torch import Tensor

COUNT = 1 << 16  # of numbers: less than pinned memory and the allocator round up to
ROUNDS = 30  # of each program; under a random order not every one shows the race
NON_BLOCKING = 1

ORDERED = torch.arange(COUNT, dtype=torch.float32)

# It is told whether to wait, and returns what it computed and what is right.
Program = Callable[[bool], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Race:
    """`shown`: when its results are wrong without the wait; never: it needs none."""

    name: str
    run: Program
    shown: tuple[str, ...] = (LATEST, RANDOM)


def runtime() -> Any:
    return ctypes.CDLL(None)


def numbers() -> Tensor:
    """On the device, and there already."""
    made = ORDERED.cuda()
    torch.cuda.synchronize()
    return made


def pinned(value: float = -1.0) -> Tensor:
    return torch.full((COUNT,), value).pin_memory()


def on(stream: torch.cuda.Stream) -> AbstractContextManager[Any]:
    return torch.cuda.stream(stream)


def copy_raw(to: int, source: int, stream: torch.cuda.Stream) -> None:
    """A copy that torch does not know of, between addresses."""
    whichever = 4  # the runtime sees where they are
    runtime().cudaMemcpyAsync(
        ctypes.c_void_p(to),
        ctypes.c_void_p(source),
        ctypes.c_size_t(COUNT * 4),
        whichever,
        ctypes.c_void_p(stream.cuda_stream),
    )


# ---- The programs ------------------------------------------------------------


def copy_out_then(uses_again: Callable[[Tensor], Any]) -> Program:
    def run(waits: bool) -> tuple[Tensor, Tensor]:
        x, host = numbers(), pinned()
        main, side = torch.cuda.current_stream(), torch.cuda.Stream()
        with on(side):
            host.copy_(x, non_blocking=True)
        if waits:
            main.wait_stream(side)
        uses_again(x)
        main.synchronize()
        side.synchronize()
        return host, ORDERED

    return run


def free(x: Tensor) -> None:
    x.untyped_storage().resize_(0)
    torch.zeros(COUNT, device="cuda")


def copy_out_of_what_is_made(waits: bool) -> tuple[Tensor, Tensor]:
    x, host = numbers(), pinned()
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    y = x * 2
    if waits:
        side.wait_stream(main)
    with on(side):
        host.copy_(y, non_blocking=True)
    side.synchronize()
    return host, ORDERED * 2


def read_on_the_host(wait_for: Callable[[torch.cuda.Event], Any]) -> Program:
    def run(waits: bool) -> tuple[Tensor, Tensor]:
        x, host, event = numbers(), pinned(), torch.cuda.Event()
        host.copy_(x, non_blocking=True)
        event.record()
        if waits:
            wait_for(event)
        return host.clone(), ORDERED

    return run


def ask(event: torch.cuda.Event) -> None:
    while not event.query():
        pass


def copy_in_then_read(waits: bool) -> tuple[Tensor, Tensor]:
    x, host, event = numbers(), pinned(3.0), torch.cuda.Event()
    side = torch.cuda.Stream()
    with on(side):
        x.copy_(host, non_blocking=True)
        event.record()
    if waits:
        event.wait()
    return (x + 1).cpu(), torch.full((COUNT,), 4.0)


def event_of_before(waits: bool) -> tuple[Tensor, Tensor]:
    x, host, event = numbers(), pinned(3.0), torch.cuda.Event()
    side = torch.cuda.Stream()
    event.record(side)
    with on(side):
        x.copy_(host, non_blocking=True)
    if waits:
        event.record(side)
    event.wait()
    return (x + 1).cpu(), torch.full((COUNT,), 4.0)


def write_pinned(waits: bool) -> tuple[Tensor, Tensor]:
    x, host = numbers(), pinned(3.0)
    x.copy_(host, non_blocking=True)
    y = x + 1
    if waits:
        torch.cuda.current_stream().synchronize()
    host.zero_()
    return y.cpu(), torch.full((COUNT,), 4.0)


def free_pinned_target(waits: bool) -> tuple[Tensor, Tensor]:
    x, host, stream = numbers(), pinned(), torch.cuda.current_stream()
    copy_raw(host.data_ptr(), x.data_ptr(), stream)
    if waits:
        stream.synchronize()
    del host
    again = pinned(5.0)  # the same block
    stream.synchronize()
    return again, torch.full((COUNT,), 5.0)


def free_pinned_source(waits: bool) -> tuple[Tensor, Tensor]:
    x, host, stream = numbers(), pinned(3.0), torch.cuda.current_stream()
    copy_raw(x.data_ptr(), host.data_ptr(), stream)
    if waits:
        stream.synchronize()
    del host
    return (x + 1).cpu(), torch.full((COUNT,), 4.0)


def free_what_a_side_stream_reads(waits: bool) -> tuple[Tensor, Tensor]:
    x, side = numbers(), torch.cuda.Stream()
    with on(side):
        y = x * 2
    if waits:
        x.record_stream(side)
    free(x)
    torch.cuda.current_stream().synchronize()
    with on(side):
        return y.cpu(), ORDERED * 2


def side_kernel(waits: bool) -> tuple[Tensor, Tensor]:
    x, y, side = numbers(), numbers(), torch.cuda.Stream()
    with on(side):
        torch.mul(x, 2, out=y)
    if waits:
        torch.cuda.current_stream().wait_stream(side)
    return (y + 1).cpu(), ORDERED * 2 + 1


def blocking_stream(waits: bool) -> tuple[Tensor, Tensor]:
    made = ctypes.c_void_p()
    runtime().cudaStreamCreateWithFlags(ctypes.byref(made), 0 if waits else NON_BLOCKING)
    x, host = numbers(), pinned(3.0)
    with on(torch.cuda.ExternalStream(made.value)):
        x.copy_(host, non_blocking=True)
    return (x + 1).cpu(), torch.full((COUNT,), 4.0)


def read_what_is_freed(waits: bool) -> tuple[Tensor, Tensor]:
    x, host, stream = numbers(), pinned(), torch.cuda.current_stream()
    source = x.data_ptr()
    if waits:
        copy_raw(host.data_ptr(), source, stream)
    del x
    if not waits:
        copy_raw(host.data_ptr(), source, stream)
    stream.synchronize()
    return host, ORDERED


def free_on_another_device(_: bool) -> tuple[Tensor, Tensor]:
    x = numbers().to("cuda:1")
    y = x * 2
    free(x)  # and calls a kernel on the current device
    torch.cuda.synchronize()
    return y.cpu(), ORDERED * 2


RACES = (
    Race("race: a copy out ends before its source is written again", copy_out_then(Tensor.zero_)),
    Race("race: a copy out ends before its source is freed and used again", copy_out_then(free)),
    Race("race: a copy out begins after its source is made", copy_out_of_what_is_made),
    Race(
        "race: a copy out has ended when the host reads it",
        read_on_the_host(torch.cuda.Event.synchronize),
    ),
    Race("race: an event that is asked turns true at last", read_on_the_host(ask)),
    Race("race: a copy in has ended when a kernel reads it", copy_in_then_read),
    Race("race: an event is recorded after the copy, not before it", event_of_before),
    Race("race: a copy in has ended when the host writes its pinned source", write_pinned),
    Race("race: a copy out has ended when its pinned target is freed", free_pinned_target),
    Race("race: a copy in has ended when its pinned source is freed", free_pinned_source),
    Race("race: a block that a side stream reads is recorded there", free_what_a_side_stream_reads),
    Race("race: a kernel on a side stream ends before its result is read", side_kernel),
    Race("race: a blocking stream is ordered with the default stream", blocking_stream),
    Race("race: a block is freed while another device is current", free_on_another_device, ()),
    Race(
        "race: a block is read before it is freed, not afterwards",
        read_what_is_freed,
        (EARLIEST, LATEST, RANDOM),
    ),
)


def right(race: Race, waits: bool) -> bool:
    """Whether it is right in every round."""
    found = []
    for _ in range(ROUNDS):
        found.append(torch.equal(*race.run(waits)))
        torch.cuda.synchronize()
    return all(found)


if __name__ == "__main__":
    from parked import PARKED  # which needs what is above
    from parts import PARTS

    asked = [race for race in (*RACES, *PARTS, *PARKED) if race.name in sys.argv[1:]]
    # Those with their waits first: the others leave work behind.
    with_wait = [right(race, True) for race in asked]
    found = {
        race.name: [first, right(race, False)] for race, first in zip(asked, with_wait, strict=True)
    }
    print("\n" + json.dumps(found))
