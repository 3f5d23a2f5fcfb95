# SPDX-License-Identifier: Apache-2.0
"""One rank of two that train random models with DistributedDataParallel, each without Reprise and
with it: python random_ranks_job.py RANK PORT FIRST END. Prints one JSON object per seed."""

from __future__ import annotations

import io
import json
import os
import random
import sys
from collections.abc import Iterator
from contextlib import nullcontext, redirect_stderr
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).parent))

import reprise
from reprise.torch.offload.slow_tier import SlowTier

WIDTH, STEPS = 64, 10
# What the log says where no plan of some steps fits the budget.
NOTHING_FITS = ("by the plan that needs least", "and may exceed the budget")


class Net(nn.Module):
    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(rng.randint(4, 8)))
        self.norm = nn.BatchNorm1d(WIDTH) if rng.random() < 0.5 else nn.LayerNorm(WIDTH)
        self.drops = nn.Dropout(0.1) if rng.random() < 0.5 else nn.Identity()
        for layer in list(self.layers)[: rng.choice((0, 0, 2))]:
            layer.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = self.drops(layer(x).tanh()).sin() + x
        return self.norm(x).sigmoid()  # type: ignore[no-any-return]


def trained(seed: int, rank: int, budget: str | None) -> dict[str, Any]:
    """Trains one model; returns what it has seen, and what was reported of it."""
    rng = random.Random(seed)  # the same on both ranks
    torch.manual_seed(seed)
    model = Net(rng)
    options = rng.choice(
        (
            {},
            {"gradient_as_bucket_view": True},
            {"static_graph": True},
            {"find_unused_parameters": True},
            {"broadcast_buffers": False, "bucket_cap_mb": 1},
        )
    )
    # torch itself cannot accumulate gradients with a static graph.
    batches = 1 if "static_graph" in options else rng.choice((1, 1, 2, 3))
    rows = rng.choice((24, 48))
    momentum = rng.random() < 0.5
    if budget is not None:
        every, host = rng.choice((1, 3, 50)), "16MiB" if seed % 2 else 0
        reprise.auto(model, budget, warmup=2, verify_every=every, host_budget=host)
    parallel = DistributedDataParallel(model, **options)  # type: ignore[arg-type]
    mine = [p for p in model.parameters() if p.requires_grad]
    optimizer: torch.optim.Optimizer = (
        torch.optim.SGD(mine, lr=0.05, momentum=0.9)
        if momentum
        else torch.optim.AdamW(mine, lr=0.01)
    )
    torch.manual_seed(100 * seed + rank)
    draws = random.Random(seed + 1)
    seen = []
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=draws.random() < 0.5)
        if step > 4 and draws.random() < 0.3:
            model.eval()
            with torch.no_grad():
                seen.append(model(torch.randn(rows, WIDTH)).sum().item().hex())
            model.train()
        for batch in range(batches):
            last = batch == batches - 1
            with nullcontext() if last else parallel.no_sync():
                loss = parallel(torch.randn(rows, WIDTH)).square().mean()
                loss.backward()
            seen.append(loss.item().hex())
        optimizer.step()
    seen += [t.double().sum().item().hex() for t in model.state_dict().values()]
    report = reprise.report(model) if budget is not None else None
    reprise.remove(model)
    if report is None:
        return {"seen": seen}
    return {
        "seen": seen,
        "budget_bytes": report.budget_bytes,
        "planned": report.planned_steps,
        "over": report.over_budget_steps,
        "failed": report.failed_checks,
        "sentence": report.sentence,
        "host": report.host_bytes,
    }


def results(rank: int, first: int, end: int) -> Iterator[dict[str, Any]]:
    for seed in range(first, end):
        rng = random.Random(seed)
        plain, budget = trained(seed, rank, None), rng.choice(("0.5x", "0.6x", "0.8x"))
        for _ in ("share", "bytes") if rng.random() < 0.4 else ("share",):
            with redirect_stderr(io.StringIO()) as log:
                planned = trained(seed, rank, budget)
            print(log.getvalue(), end="", file=sys.stderr)
            yield {
                "seed": seed,
                "budget": budget,
                "said": any(why in log.getvalue() for why in NOTHING_FITS),
                "equal": planned.pop("seen") == plain["seen"],
                **planned,
            }
            # The same memory on both ranks, which counts what is alive beside the step, too.
            allowed = torch.tensor(planned["budget_bytes"])
            distributed.all_reduce(allowed, distributed.ReduceOp.MAX)
            budget = f"{allowed.item()}B"


def main() -> None:
    rank, port, first, end = (int(text) for text in sys.argv[1:])
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    distributed.init_process_group("gloo", rank=rank, world_size=2)
    torch.set_num_threads(1)
    SlowTier.least_bytes = 1 << 10
    os.environ["REPRISE_SLOW_TIER"] = "20GB/s"
    for result in results(rank, first, end):
        print(json.dumps(result), flush=True)
    distributed.destroy_process_group()
    sys.stderr.flush()
    os._exit(0)  # as in ddp_job.py


if __name__ == "__main__":
    main()
