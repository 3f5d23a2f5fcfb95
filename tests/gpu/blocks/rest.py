# SPDX-License-Identifier: Apache-2.0
"""What is asked last: kernels without API records, memory of the driver under torch's allocators,
injection by the driver."""

from __future__ import annotations

import os
import subprocess
import sys

import torch
from agent_alone import Ops, Work, read_records, start, window
from runner import Block, Here, Row

from reprise.agent import abi

from .windows import by_call

CODE = """
import os, ctypes
import torch
torch.ones(1, device='cuda')
agent = ctypes.CDLL(os.environ['REPRISE_AGENT'])
agent.reprise_step(ctypes.c_uint64(1)); agent.reprise_stop()
print(sorted({m for m in open('/proc/self/maps').read().split() if 'libcupti' in m}))
"""


def driver_memory(here: Here) -> None:
    """What CUPTI tells of segments that torch takes and gives back; the environment chooses the
    allocator."""
    sink = here.scratch / f"{here.row}.records".replace(" ", "-")
    library = start(sink)
    ops, work = Ops(library), Work(here.rehearsal)
    work.step()

    def body() -> None:
        block = torch.empty(1 << (24 if here.rehearsal else 30), dtype=torch.uint8, device="cuda")
        del block
        torch.cuda.empty_cache()
        torch.cuda.synchronize()

    window(library, ops, abi.KIND_KERNELS | abi.KIND_ALLOCS, body)
    found = read_records(sink, library)
    here.say(records=found.driver, bytes=found.driver_bytes, pool_records=found.pool)


def injection(here: Here) -> None:
    """CUDA_INJECTION64_PATH: is it called, and which libcupti is in the process?"""
    sink = here.scratch / "injection.records"
    agent = os.environ["REPRISE_AGENT"]
    more = {"CUDA_INJECTION64_PATH": agent, "REPRISE_SINK": f"file:{sink}"}
    run = subprocess.run([sys.executable, "-c", CODE], env={**os.environ, **more},
                         capture_output=True, text=True, check=False)  # fmt: skip
    # A session begins at the first step only if the driver called the agent.
    here.say(exit=run.returncode, called=sink.exists(), says=run.stdout[-800:])


CONF = "PYTORCH_CUDA_ALLOC_CONF"
REST = Block(
    "rest",
    "What remains of CUPTI: memory of the driver, no API records, injection.",
    60.0,
    (
        Row("no API records", by_call, 20, {"REPRISE_CUPTI_OPTIONS": "no_api"}),
        Row("driver memory", driver_memory, 20),
        Row("driver memory, expandable", driver_memory, 30, {CONF: "expandable_segments:True"}),
        Row("driver memory, async", driver_memory, 30, {CONF: "backend:cudaMallocAsync"}),
        Row("injection", injection, 40),
    ),
)
