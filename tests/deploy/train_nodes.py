"""A rank of a job on several machines: trains under a budget until there is a file `end`, and
writes a line a step."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

import reprise

FOLDER = Path(sys.argv[1])


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128))


def main() -> None:
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(*[mlp() for _ in range(6)])
    reprise.auto(model, budget="0.75x", verify_every=10)
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(rank)
    (FOLDER / f"rank-{rank}.pid").write_text(str(os.getpid()))
    with (FOLDER / f"rank-{rank}.steps").open("a", buffering=1) as steps:
        over = torch.zeros(1)
        while not over.item():
            optimizer.zero_grad()
            loss = parallel(torch.randn(256, 128)).square().mean()
            loss.backward()
            optimizer.step()
            steps.write(f"{loss.item().hex()}\n")
            time.sleep(0.02)
            over.fill_(float((FOLDER / "end").exists()))
            distributed.all_reduce(over)  # all end at the same step
    report = reprise.report(model)
    print(f"rank {rank}: {report.stage}, planned {report.planned_steps}", flush=True)
    reprise.remove(model)
    distributed.destroy_process_group()
    # A thread of Gloo's that lets go of a tensor while the interpreter is taken down aborts it.
    os._exit(0)


if __name__ == "__main__":
    main()
