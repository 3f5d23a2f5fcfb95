# SPDX-License-Identifier: Apache-2.0
"""What CUPTI tells in the first, the second and the fifth window of a process, each with a session
of torch's own profiler before it: whether kernels lie in the ops that launched them, what is
lost."""

from __future__ import annotations

import os
import tarfile

import records
import torch
from agent_alone import Ops, Work, caps, profiled, read_records, start, window
from runner import Block, Figures, Here, Row

from reprise.agent import abi

KINDS = abi.KIND_KERNELS | abi.KIND_OPS


def where(found: records.Records, first: int = 0, last: int = 1 << 62) -> Figures:
    """Of the kernels of ops `first` up to `last`: how many begin before their op, end after it."""
    early, late, untimed = [], [], 0
    for kernel in found.kernels:
        op = found.link.get(kernel.correlation, 0)
        if not first <= op < last or op not in found.begin or op not in found.end:
            continue
        if kernel.flags & records.UNTIMED:
            untimed += 1
            continue
        early.append(found.begin[op][1] - kernel.start)
        late.append(kernel.start + kernel.dur - found.end[op])
    return {
        "kernels": len(early),
        "before": sum(ns > 0 for ns in early),
        "at_most_us_before": round(max(early, default=0) / 1e3, 1),
        "after": sum(ns > 0 for ns in late),
        "at_most_us_after": round(max(late, default=0) / 1e3, 1),
        "untimed": untimed,
    }


def five_windows(here: Here) -> None:
    """Ops that wait for their kernels, so that each kernel must lie inside its op; a session of
    torch's profiler between two windows."""
    sink = here.scratch / "windows.records"
    library = start(sink)
    ops, work = Ops(library, wait=True), Work(here.rehearsal)
    work.step()
    torch.cuda.synchronize()
    free = torch.cuda.mem_get_info()[0]
    statuses, edges = [], [1]
    for number in range(1, 6):
        if number > 1:
            profiled(here, work.step)
        statuses.append(window(library, ops, KINDS, work.step))
        library.blocking.reprise_flush(2000)
        edges.append(ops.last + 1)
        if number == 1:
            here.say(device_mib=(free - torch.cuda.mem_get_info()[0]) / (1 << 20))
    here.say(statuses=statuses)
    found = read_records(sink, library)
    for number in (1, 2, 5):
        here.say(**{f"window_{number}": where(found, edges[number - 1], edges[number])})
    here.say(
        kernels=len(found.kernels), in_ops=found.attributed(), lost=found.lost,
        not_on_our_clock=len(found.kernels) - found.clocks.get(0, 0), caps=caps(library),
    )  # fmt: skip


def by_call(here: Here) -> None:
    """A window with API records of the calls that launch, or of all, or of none (by the
    environment): are all kernels given their op?"""
    sink = here.scratch / f"{here.row}.records".replace(" ", "-")
    library = start(sink)
    ops, work = Ops(library), Work(here.rehearsal)
    work.step()
    status = window(library, ops, KINDS, work.step)
    found = read_records(sink, library)
    here.say(status=status, in_ops=found.attributed(), calls=len(found.api), **where(found))


def recorded(here: Here) -> None:
    """A few raw buffers, for the tests on machines without a GPU: one file in the report."""
    folder = here.scratch / "buffers"
    folder.mkdir(exist_ok=True)
    os.environ["REPRISE_RECORD_CUPTI"] = str(folder)
    library = start(here.scratch / "recorded.records")
    ops, work = Ops(library), Work(here.rehearsal)
    work.step()
    window(library, ops, KINDS | abi.KIND_ALLOCS, work.step)
    read_records(here.scratch / "recorded.records", library)
    files = sorted(folder.glob("*.rrc"))
    with tarfile.open(here.out / "buffers.tar.xz", "w:xz") as archive:
        for file in files:
            archive.add(file, file.name)
    here.say(files=len(files), bytes=sum(file.stat().st_size for file in files))


WINDOWS = Block(
    "windows",
    "Are kernels joined to their ops rightly, in later windows and beside other profilers, too?",
    25.0,
    (
        Row("five", five_windows, 30),
        Row("by call", by_call, 15),
        Row("all calls", by_call, 15, {"REPRISE_CUPTI_OPTIONS": "all_api"}),
        Row("buffers", recorded, 20),
    ),
)
