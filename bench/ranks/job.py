# SPDX-License-Identifier: Apache-2.0
"""One rank of a job: `job.py NAME WAY STEPS FOLDER`, with torchrun's variables.

WAY is plain, auto or run. Writes FOLDER/RANK.json."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed

sys.path.insert(0, str(Path(__file__).parent))

import pipelines  # noqa: F401  adds jobs
from collectives import Collectives
from jobs import JOBS

VERIFY_EVERY = 4


class Waits:
    """How long this rank was in Reprise's own meetings."""

    def __init__(self, calls: Collectives) -> None:
        self._calls = calls
        self.longest_s = self.longest_in_forward_s = 0.0
        self.meetings = 0

    def watch(self) -> None:
        """Measures everything that waits for another rank from now on."""
        from reprise.torch.ladder import ranks

        meets: Any = ranks.Ranks
        for name in ("__init__", "meet"):
            if hasattr(meets, name):
                setattr(meets, name, self._timed(getattr(meets, name)))

    def _timed(self, plain: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            with self._meeting():
                return plain(*args, **kwargs)

        return call

    @contextmanager
    def _meeting(self) -> Iterator[None]:
        began = time.monotonic()
        self._calls.own += 1
        try:
            yield
        finally:
            self._calls.own -= 1
            took = time.monotonic() - began
            self.meetings += 1
            self.longest_s = max(self.longest_s, took)
            if _in_forward():
                self.longest_in_forward_s = max(self.longest_in_forward_s, took)


def _in_forward() -> bool:
    """Returns whether an armed model is being called."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_qualname.endswith("Session._around"):
            return True
        frame = frame.f_back
    return False


def digest(tensors: Any) -> str:
    """Returns a hash of the bits of what this rank holds."""
    found = hashlib.sha256()
    for tensor in tensors:
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        local = local.detach().contiguous().view(-1).view(torch.uint8)
        found.update(local.numpy().tobytes())
    return found.hexdigest()[:24]


def reports(models: list[Any]) -> list[dict[str, Any]]:
    """Returns what Reprise knows of those of these models that it plans."""
    import reprise
    from reprise.torch.training import armed

    found = [reprise.report(model) for model in models if armed.current(model) is not None]
    return [asdict(report) | {"text": str(report)} for report in found]


def train(name: str, way: str, steps: int, folder: Path) -> None:
    """Trains as one rank, writes what became of it, and ends the process."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank = distributed.get_rank()
    calls = Collectives()
    waits = Waits(calls)
    torch.manual_seed(0)
    made = JOBS[name].make()
    if way != "plain":
        waits.watch()
    if way == "auto":
        import reprise

        reprise.auto(made.arm, budget=JOBS[name].budget, verify_every=VERIFY_EVERY)
    torch.manual_seed(1 + rank)
    losses: list[str] = []
    took: list[float] = []
    began = time.monotonic()
    for number in range(steps):
        loss = made.step(number)
        took.append(time.monotonic() - began)
        began = time.monotonic()
        losses.append(loss.item().hex() if isinstance(loss, Tensor) else "")
    found = {
        "losses": losses,
        "parameters": digest(made.parameters()),
        "gradients": digest(p.grad for p in made.parameters() if p.grad is not None),
        "collectives": calls.list,
        "step_s": took,
        "meetings": waits.meetings,
        "longest_wait_s": waits.longest_s,
        "longest_wait_in_forward_s": waits.longest_in_forward_s,
        "reports": reports(made.arm) if way != "plain" else [],
    }
    (folder / f"{rank}.json").write_text(json.dumps(found))
    distributed.barrier()
    # Gloo's threads may outlive the interpreter's end and abort the process (so they do in a plain
    # job). What Reprise does at the end of the process is done before.
    _exit()


def _exit() -> None:
    import atexit

    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    train(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
