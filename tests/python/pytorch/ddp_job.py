# SPDX-License-Identifier: Apache-2.0
"""One rank of a job of two: python ddp_job.py RANK PORT BUDGET MODE; prints one JSON object."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).parent))

from zoo import ResNet

import reprise
from reprise import api


class Odd(nn.Module):
    """Another program on rank 1."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.net, self.rank = ResNet((1, 1)), rank

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.net(x)
        return y.sin() if self.rank else y.cos()


def _runs_out(*_: object) -> None:
    raise torch.OutOfMemoryError("too much")


def main() -> None:
    rank, port, budget, mode = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    distributed.init_process_group("gloo", rank=rank, world_size=2)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model: nn.Module = Odd(rank) if mode == "odd" else ResNet((1, 1))
    if budget != "none":
        reprise.auto(model, budget=budget, warmup=2, verify_every=3)
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    torch.manual_seed(rank)
    losses = []
    for step in range(24 if mode in ("shapes", "drop") else 12):
        optimizer.zero_grad()
        # "shapes": each rank has its own, and only in the eighth step a large one.
        rows = 8 if mode != "shapes" or step < 7 else 8 + 8 * ((step + rank) % 2)
        if mode == "drop" and step == 6 and rank == 1 and budget != "none":
            api._sessions[model].planning.drop("rank 1 has had enough")
        if mode == "oom" and step == 6 and rank == 1:
            model.layers[0].register_forward_pre_hook(_runs_out)
        loss = parallel(torch.randn(rows, 3, 32, 32)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item().hex())
    report = reprise.report(model)
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
                "sizes": [r.size for r in api._sessions[model].ladder.rungs]
                if model in api._sessions
                else [],
                "checks": report.checks,
                "failed": report.failed_checks,
                "held": report.measured_peak_bytes <= report.budget_bytes,
                "why": report.why,
            }
        )
    )
    reprise.remove(model)
    distributed.destroy_process_group()
    # Whoever has used DistributedDataParallel keeps Gloo's threads to the end of the process. One
    # that still lets go of a tensor while the interpreter is taken down aborts it, also in a job
    # that Reprise leaves alone: leave without taking it down.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
