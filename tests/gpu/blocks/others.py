# SPDX-License-Identifier: Apache-2.0
"""Beside what people use: torch's profiler, CUDA graphs, expandable segments."""

from __future__ import annotations

import time

import torch
from agent_alone import Ops, Work, caps, profiled, read_records, start, window
from gpt2 import GptJob
from runner import Block, Here, Row
from sizes import sizes
from training import trained

from reprise.agent import abi


def profiler(here: Here) -> None:
    """torch.profiler before, beside, within a pause of, and after a window."""
    sink = here.scratch / "profiler.records"
    library = start(sink)
    ops, work = Ops(library), Work(here.rehearsal)
    work.step()
    here.say(before=profiled(here, work.step))
    here.say(window_after=window(library, ops, abi.KIND_KERNELS, work.step))

    def beside_it() -> None:
        here.say(window_beside=window(library, ops, abi.KIND_KERNELS, work.step))
        here.say(caps_beside=caps(library))

    here.say(with_window_beside=profiled(here, beside_it))

    def inside() -> None:
        library.quick.reprise_pause()
        here.say(within_a_pause=profiled(here, work.step))
        library.quick.reprise_resume()
        work.step()

    here.say(window_with_pause=window(library, ops, abi.KIND_KERNELS, inside))
    here.say(after=profiled(here, work.step))
    here.say(kernels=len(read_records(sink, library).kernels))


def profiled_plan(here: Here) -> None:
    """A session of torch.profiler around the steps in which Reprise captures and plans."""
    size = sizes(here.rehearsal)
    job = GptJob(size.small)
    here.say(session=profiled(here, lambda: trained(here, job, size.steps, budget="0.7x")))


def graph_replays(here: Here) -> None:
    """A CUDA graph in a window: ids, and kernels in the op around a replay."""
    sink = here.scratch / "graph.records"
    library = start(sink)
    ops, work = Ops(library), Work(here.rehearsal)
    for _ in range(3):
        work.step()
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        work.model(work.batch)
    times: list[float] = []

    def replay() -> None:
        for number in range(20):
            library.op_begin(1000 + number, 0)
            began = time.perf_counter()
            graph.replay()
            torch.cuda.synchronize()
            times.append(time.perf_counter() - began)
            library.op_end(1000 + number)

    replay()
    off = min(times) * 1e3
    times.clear()
    status = window(library, ops, abi.KIND_KERNELS | abi.KIND_OPS, replay)
    found = read_records(sink, library)
    inside = [kernel for kernel in found.kernels if kernel.graph != 0]
    here.say(
        status=status, kernels=len(found.kernels), in_graph=len(inside),
        launches=len({kernel.correlation for kernel in inside}), in_ops=found.attributed(),
        replay_ms=off, replay_ms_in_a_window=min(times) * 1e3,
    )  # fmt: skip


def graph_under_plan(here: Here) -> None:
    """A CUDA graph of the model that is captured while a plan is applied: the job goes on."""
    import reprise

    size = sizes(here.rehearsal)
    job = GptJob(size.small)
    trained(here, job, size.steps, budget="0.7x")
    tokens = job.tokens[0][:, :-1]
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.no_grad(), torch.cuda.graph(graph):
            job.model(tokens)
        graph.replay()
        torch.cuda.synchronize()
        here.say(captured="yes")
    except Exception as error:
        here.say(captured=f"no: {error}"[:200])
    losses = [job.step(number).item() for number in range(4)]
    here.say(goes_on=all(loss == loss for loss in losses), says=reprise.report(job.model).stage)


def expandable(here: Here) -> None:
    """Expandable segments: what is reserved beside what is asked for, plain and planned."""
    size = sizes(here.rehearsal)
    budget = "plain" if here.row.endswith("plain") else "0.5x"
    trained(here, GptJob(size.gpt), size.steps // 2 + 4, budget=budget)


EXPANDABLE = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
OTHERS = Block(
    "others",
    "Does it live beside torch's profiler, CUDA graphs and expandable segments?",
    50.0,
    (
        Row("profiler", profiler, 25),
        Row("a plan made within a session", profiled_plan, 25),
        Row("graph replays", graph_replays, 20),
        Row("graph under a plan", graph_under_plan, 25),
        Row("expandable segments, plain", expandable, 40, EXPANDABLE),
        Row("expandable segments, 0.5x", expandable, 40, EXPANDABLE),
    ),
)
