# SPDX-License-Identifier: Apache-2.0
"""Small training jobs of two ranks (gloo, DistributedDataParallel), for faults.py. The fault is in
one of them; the other one must neither wait forever nor train with other numbers. Importing this
adds them to `fault_jobs.KINDS`.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
from fault_jobs import Job, finished, kind, local, train
from nets import WIDTH
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from reprise.torch.ladder import ranks

__all__: list[str] = []

# Of what two live ranks never wait for: a wait that lasts until then has hung.
LONG = timedelta(seconds=600)


def trained(rank: int, meets: Path, armed: bool) -> str:
    """Runs one rank in a separate process."""
    ranks.TIMEOUT = LONG
    distributed.init_process_group(
        "gloo", init_method=meets.as_uri(), rank=rank, world_size=2, timeout=LONG
    )
    torch.manual_seed(0)
    random.seed(0)
    model = nn.Sequential(
        nn.Linear(WIDTH, 16), nn.GELU(), nn.BatchNorm1d(16), nn.Dropout(0.2),
        nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, WIDTH),
    )  # fmt: skip
    local(model, armed)
    parallel = DistributedDataParallel(model)
    torch.manual_seed(rank)
    found = train(parallel, 9)
    finished(model)
    distributed.barrier()
    return found


def two(rank: int, armed: bool) -> Job:
    """Returns the digest of both ranks. The other rank is forked now, before anything fails
    here."""
    folder = Path(tempfile.mkdtemp())
    reader, writer = os.pipe()
    other = os.fork()
    if not other:
        _alone(writer, lambda: trained(1 - rank, folder / "meets", armed))
    os.close(writer)

    def job() -> str:
        own = trained(rank, folder / "meets", armed)
        with os.fdopen(reader) as said:
            theirs = said.read()
        os.waitpid(other, 0)
        shutil.rmtree(folder)
        return own + theirs

    return job


def _alone(writer: int, do: Callable[[], str]) -> None:
    """Runs the other rank and never returns. Both ranks share standard error."""
    found = ""
    try:
        found = do()
    except BaseException:
        traceback.print_exc()
    os.write(writer, found.encode())
    sys.stderr.flush()
    os._exit(0)


@kind
def first_rank(armed: bool) -> Job:
    """Two ranks with the fault in the first one, which requests the plan."""
    return two(0, armed)


@kind
def second_rank(armed: bool) -> Job:
    """Two ranks with the fault in the second one."""
    return two(1, armed)
