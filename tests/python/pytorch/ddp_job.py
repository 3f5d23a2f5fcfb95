# SPDX-License-Identifier: Apache-2.0
"""One rank of a job of two, or of as many as RANKS says: python ddp_job.py RANK PORT BUDGET MODE;
prints one JSON object."""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).parent))

from zoo import ResNet

import reprise
from reprise.base.errors import RepriseError
from reprise.torch.ladder import ranks
from reprise.torch.ladder.ladder import Ladder
from reprise.torch.offload.slab import Slab
from reprise.torch.offload.slow_tier import SlowTier
from reprise.torch.planning.coordination import RankCoordinator
from reprise.torch.planning.planning import Planning
from reprise.torch.session.session import Session
from reprise.torch.training.armed import current


class Odd(nn.Module):
    """A different program, for ranks with odd numbers."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.net, self.rank = ResNet((1, 1)), rank % 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.net(x)
        return y.sin() if self.rank else y.cos()


class Branching(nn.Module):
    """Another program for large batches."""

    def __init__(self) -> None:
        super().__init__()
        self.net = ResNet((1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.net(x)
        return y.sin() if len(x) > 8 else y


def _runs_out(*_: object) -> None:
    print("memory runs out", file=sys.stderr)
    raise torch.OutOfMemoryError("too much")


def _watch_meetings() -> list[bool]:
    """Returns a list to which each meeting of this rank will add whether it is within a call of a
    module."""
    found: list[bool] = []

    def watched(plain: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            frame: Any = sys._getframe(1)
            codes = set()
            while frame is not None:
                codes.add(frame.f_code)
                frame = frame.f_back
            found.append(nn.Module._call_impl.__code__ in codes)
            return plain(*args, **kwargs)

        return call

    for name in ("__init__", "meet"):
        setattr(ranks.Ranks, name, watched(getattr(ranks.Ranks, name)))
    return found


def _stall() -> None:
    """Makes this rank stay away while a plan is awaited, until the other one is done."""
    store = distributed.distributed_c10d._get_default_store()
    awaits = RankCoordinator._await

    def stalls(self: RankCoordinator) -> None:
        store.wait(["done"], timedelta(seconds=200))
        awaits(self)

    setattr(RankCoordinator, "_await", stalls)  # noqa: B010


def _measure_slowly() -> None:
    """Lets this rank measure its executor for longer than another rank waits without a word."""
    measures = Planning.measure_costs

    def slowly(self: Planning, graph: Any) -> None:
        time.sleep(4)
        measures(self, graph)

    setattr(Planning, "measure_costs", slowly)  # noqa: B010


def _lack_the_block() -> None:
    """Refuses this rank the block of host memory that a plan needs, after copies were measured."""
    slab = SlowTier.slab

    def refused(self: SlowTier, size: int) -> Slab:
        if size < 1 << 20:
            raise RepriseError("host memory: the system gives none")
        return slab(self, size)

    setattr(SlowTier, "slab", refused)  # noqa: B010


STEPS = {
    "shapes": 40, "drop": 24, "leaves": 24, "grows": 30,
    "larger": 24, "branches": 40, "branches-later": 24,
}  # fmt: skip


def rows_of(mode: str, step: int, rank: int) -> int:
    """Returns the batch size of a step. In mode "shapes" every rank has its own: large ones from
    the eighth step on, and later some that are larger than any before. In modes "larger" and
    "branches" rank 1 alone has large ones, from the eighth step on; in "branches-later" rank 0 has
    them, too, from step 16 on."""
    if mode in ("larger", "branches", "branches-later"):
        return 16 if step > (6 if rank else 14) and (rank or mode == "branches-later") else 8
    if mode != "shapes" or step < 7:
        return 8
    return (20, 12, 24, 16)[(step + rank) % 4] if step > 32 else 8 + 8 * ((step + rank) % 2)


def main() -> None:
    rank, port, budget, mode = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    world = int(os.environ.get("RANKS", "2"))
    distributed.init_process_group("gloo", rank=rank, world_size=world)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model: nn.Module = ResNet((1, 1))
    if mode == "odd":
        model = Odd(rank)
    elif mode.startswith("branches"):
        model = Branching()
    if mode == "alone":
        ranks.TIMEOUT = timedelta(seconds=3)
    meetings = _watch_meetings()
    if budget != "none" and not (mode == "alone" and rank == 1):
        # Which step does what is known where the first ones are plain.
        reprise.auto(model, budget=budget, warmup=2, verify_every=3, first="plain")
    if mode == "stalls" and rank == 1 and budget != "none":
        _stall()
    if mode == "slow" and rank == 1:
        _measure_slowly()
    if mode == "no block" and rank == 1:
        _lack_the_block()
    alone = mode in (
        "alone",
        "leaves",
        "stalls",
    )  # they do not wait for each other's gradients
    parallel = model if alone else DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    torch.manual_seed(rank)
    losses = []
    # What only one rank has: static memory; the batch of the step before, to the middle of a step.
    ballast = [torch.ones(64 << 10)] if mode == "heavy" and rank == 1 else []
    for step in range(STEPS.get(mode, 12)):
        optimizer.zero_grad()
        rows = rows_of(mode, step, rank)
        if mode == "drop" and step == 6 and rank == 1 and budget != "none":
            cast(Session, current(model)).parts.planning.drop("rank 1 has had enough")
        if mode == "leaves" and step == 10 and rank == 1:
            break
        if mode == "oom" and step == 6 and rank == 1:
            model.layers[0].register_forward_pre_hook(_runs_out)
        if mode == "grows" and step == 6 and rank == 1:
            ballast.append(torch.ones(64 << 10))
        batch = torch.randn(rows, 3, 32, 32)
        loss = parallel(batch).square().mean()
        if mode == "keeps" and rank == 1:
            ballast[:] = [batch]
        if mode == "oom-backward" and step == 6 and rank == 1:
            loss.register_hook(_runs_out)
        loss.backward()
        optimizer.step()
        losses.append(loss.item().hex())
    if mode == "stalls" and rank == 0:
        distributed.distributed_c10d._get_default_store().set("done", "")
    report = reprise.report(model)
    session = current(model)
    ladder = session.job.plans.ladder if isinstance(session, Session) else Ladder()
    graph = ladder.rungs[0].graph if ladder.rungs else None
    total = sum(p.double().sum() for p in model.parameters())
    print(
        json.dumps(
            {
                "losses": losses,
                "parameters": float(total).hex(),
                "plan": report.plan_id,
                "planned": report.planned_steps,
                "mismatched": report.mismatched_steps,
                "rungs": report.rungs,
                "budget": report.budget_bytes,
                "sizes": [rung.size for rung in ladder.rungs],
                "used": [rung.used for rung in ladder.rungs],
                "captures": ladder.captures,
                "storages": len(graph.storages) if graph else 0,
                "shortcuts": len(graph.shortcuts) if graph else 0,
                "predicted": report.predicted_peak_bytes,
                "measured": report.measured_peak_bytes,
                "checks": report.checks,
                "failed": report.failed_checks,
                "held": report.measured_peak_bytes <= report.budget_bytes,
                "why": report.why,
                "host": report.host_bytes,
                "meetings": len(meetings),
                "within_forwards": sum(meetings),
            }
        )
    )
    reprise.remove(model)
    if mode == "alone":
        distributed.barrier(distributed.new_group())  # the job's own: of one number on both
    distributed.destroy_process_group()
    # Whoever has used DistributedDataParallel keeps Gloo's threads to the end of the process. One
    # that still lets go of a tensor while the interpreter is taken down aborts it, also in a job
    # that Reprise leaves alone: leave without taking it down.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
