# SPDX-License-Identifier: Apache-2.0
"""Storages that leave for host memory and come back: right with all waits, whenever the work of
streams is done, and wrong without any one of them. A wait is removed here, not in the product."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager as Context
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

import torch
from cases import EARLIEST, LATEST, RANDOM
from races import COUNT, ORDERED, Program, Race, numbers
from torch import Tensor

BYTES = COUNT * 4
Pair = tuple[Tensor, Tensor]


def parked(fetches: int = 1, places: tuple[int, ...] = (0,)) -> Any:
    """A step that sends one storage to each of these places."""
    from reprise.torch.offload.tier import tier_of
    from reprise.torch.tape.parked import Parked
    from reprise.torch.tape.program import Place

    tier = tier_of(torch.device("cuda:0"))
    slab = tier.slab(4 * BYTES)
    slab.memory.zero_()
    return Parked({n: Place(at, BYTES, fetches, 0) for n, at in enumerate(places)}, tier, slab)


def made() -> Tensor:
    return numbers() * 2


def used_again() -> Tensor:
    """What the block that was freed last is for next."""
    return torch.full((COUNT,), 7.0, device="cuda")


# ---- The programs ------------------------------------------------------------


def there_and_back() -> Pair:
    step, y = parked(), made()
    step.send(0, y)
    del y
    step.sent(0)
    other = used_again()
    step.fetch(0)
    found = step.take(0) + 0
    assert len(other)
    return found.cpu(), ORDERED * 2


def into_a_block_in_use() -> Pair:
    step, y = parked(), made()
    step.send(0, y)
    del y
    step.sent(0)
    torch.cuda.synchronize()
    other = used_again()
    del other
    step.fetch(0)
    return (step.take(0) + 0).cpu(), ORDERED * 2


def at_once() -> Pair:
    step, y = parked(), made()
    step.send(0, y)
    return (step.take(0) + 0).cpu(), ORDERED * 2


def written_meanwhile() -> Pair:
    step, y = parked(), made()
    step.send(0, y)
    step.before_write([y])
    y.zero_()
    return (step.take(0) + 0).cpu(), ORDERED * 2


def drained() -> Pair:
    step, y = parked(), made()
    step.send(0, y)
    del y
    step.drain()
    other = used_again()
    found = (step.take(0) + 0).cpu()
    assert len(other)
    return found, ORDERED * 2


def drained_on_the_way_back() -> Pair:
    step, y = parked(), made()
    step.send(0, y)
    del y
    step.sent(0)
    step.fetch(0)
    step.drain()
    other = used_again()
    torch.cuda.current_stream().synchronize()
    torch.cuda.synchronize()  # what still comes back comes now
    return other.cpu(), torch.full((COUNT,), 7.0)


def dropped_on_the_way_back() -> Pair:
    step, y = parked(), made()
    step.send(0, y)
    del y
    step.sent(0)
    step.fetch(0)
    del step
    other = used_again()
    torch.cuda.current_stream().synchronize()
    torch.cuda.synchronize()  # what still comes back comes now
    return other.cpu(), torch.full((COUNT,), 7.0)


def two_in_one_place() -> Pair:
    step, y, z = parked(places=(0, 0)), made(), numbers()
    step.send(0, y)
    step.sent(0)
    step.send(1, z)
    step.sent(1)
    torch.cuda.synchronize()
    return torch.stack([step.take(0), step.take(1)]).cpu(), torch.stack([ORDERED * 2, ORDERED])


# ---- Without a wait ----------------------------------------------------------


@contextmanager
def engine_does_not_wait(name: str) -> Iterator[None]:
    """The stream of one direction does not wait for the compute stream."""
    from reprise.torch.offload.tier import tier_of

    engine, wait = getattr(tier_of(torch.device("cuda:0")), name), torch.cuda.Stream.wait_event

    def wait_event(stream: Any, event: Any) -> None:
        if stream is not engine:
            wait(stream, event)

    with mock.patch.object(torch.cuda.Stream, "wait_event", wait_event):
        yield


def replaced(name: str, by: Callable[..., Any]) -> Context[Any]:
    from reprise.torch.tape import parked as module

    owner, _, attribute = name.rpartition(".")
    return mock.patch.object(getattr(module, owner) if owner else module, attribute, by)


def leave(copy: Any) -> None:
    if copy.host is not None:
        copy.out = copy.here = None


def arrive(copy: Any) -> Any:
    came = copy.coming
    copy.coming = copy.back = None
    return came


def settle(copy: Any) -> None:
    leave(copy)
    arrive(copy)


def claimed(*_: Any) -> Context[Any]:
    from reprise.torch.offload.slab import Slab

    return mock.patch.object(Slab, "claim", return_value=True)


def race(
    name: str,
    program: Callable[[], Pair],
    without: Callable[[], Context[Any]],
    shown: tuple[str, ...] = (LATEST, RANDOM),
) -> Race:
    def run(waits: bool) -> Pair:
        with nullcontext() if waits else without():
            return program()

    made_of: Program = run
    return Race(f"parked: {name}", made_of, shown)


PARKED = (
    race(
        "a copy out begins when its storage was computed",
        there_and_back,
        lambda: engine_does_not_wait("_out"),
        (RANDOM,),
    ),
    race(
        "a storage leaves when its copy has ended",
        there_and_back,
        lambda: replaced("_Copy.leave", leave),
    ),
    race(
        "a copy back begins when its memory is free",
        into_a_block_in_use,
        lambda: engine_does_not_wait("_in"),
        (RANDOM,),
    ),
    race(
        "a storage is read when its copy back has ended",
        there_and_back,
        lambda: replaced("_Copy.arrive", arrive),
    ),
    race(
        "what is wanted at once has left before",
        at_once,
        lambda: replaced("_Copy.leave", leave),
    ),
    race(
        "what the program writes has left before",
        written_meanwhile,
        lambda: replaced("Parked.before_write", lambda *_: None),
    ),
    race(
        "a failed forward frees what has left",
        drained,
        lambda: replaced("_settle", settle),
    ),
    race(
        "a step that ends frees what has come",
        drained_on_the_way_back,
        lambda: replaced("_settle", settle),
    ),
    race(
        "a step that is dropped frees what has come",
        dropped_on_the_way_back,
        lambda: replaced("Parked.__del__", lambda _: None),
    ),
    race(
        "a place is taken when nobody needs it",
        two_in_one_place,
        claimed,
        (EARLIEST, LATEST, RANDOM),
    ),
)
