# SPDX-License-Identifier: Apache-2.0
"""A job that runs out of memory without a plan, and trains with one: where the first step does not
fit, and where the second does not, as the optimizer has made its state by then."""

from __future__ import annotations

from typing import Any

import torch
from gpt2 import GptJob
from runner import Block, Here, Row
from sizes import sizes
from training import beside, trained

STEPS = 14


def limit(here: Here, which: str) -> int:
    """Bytes that the allocator may reserve: three quarters of what the first plain step took, or
    what lies between the first and the second."""
    reserved = here.found("with room")["reserved_by_step"]
    return int(reserved[0] * 0.75 if which == "first" else (reserved[0] + max(reserved)) / 2)


def confined(here: Here, which: str, budget: Any) -> None:
    most = limit(here, which)
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(most / total)
    here.say(limit_mib=round(most / (1 << 20), 1))
    size = sizes(here.rehearsal)
    figures = trained(here, GptJob(size.fits), STEPS, budget=budget)
    if budget != "plain":
        beside(here, figures, "with room", "with room again")


def room(here: Here) -> None:
    """The same job where nothing is short: what the others are compared with."""
    trained(here, GptJob(sizes(here.rehearsal).fits), STEPS)


def plain(here: Here, which: str) -> None:
    """Is to run out of memory: that is this row's finding, and it says so if it does not."""
    try:
        confined(here, which, "plain")
    except torch.OutOfMemoryError as error:
        here.say(ran_out=str(error).split("\n")[0][:160])
        return
    here.say(ran_out="no: it fits")


FITS = Block(
    "fits",
    "Does a job that does not fit, fit? From its first step, and from its second.",
    70.0,
    (
        Row("with room", room, 30),
        Row("with room again", room, 30),
        *(
            Row(f"{words}, {which} step", lambda here, run=run, which=which: run(here, which), 60)
            for which in ("first", "second")
            for words, run in (
                ("plain", plain),
                ("reprise", lambda here, which: confined(here, which, "fit")),
            )
        ),
    ),
)
