# SPDX-License-Identifier: Apache-2.0
"""Writes a real trace: training steps of a small net on the CPU, profiled as torch documents it."""

from __future__ import annotations

import sys

import torch
from torch.profiler import ProfilerActivity, profile


def main(path: str, with_stack: bool) -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        *(
            torch.nn.Sequential(torch.nn.Linear(48, 96), torch.nn.GELU(), torch.nn.Linear(96, 48))
            for _ in range(3)
        )
    )
    optimizer = torch.optim.AdamW(net.parameters())

    def step() -> None:
        optimizer.zero_grad()
        net(torch.randn(64, 48)).square().mean().backward()
        optimizer.step()

    step()
    with profile(
        activities=[ProfilerActivity.CPU],
        profile_memory=True,
        record_shapes=True,
        with_stack=with_stack,
        schedule=torch.profiler.schedule(wait=0, warmup=1, active=3, repeat=1),
        on_trace_ready=lambda seen: seen.export_chrome_trace(path),
    ) as seen:
        for _ in range(4):
            step()
            seen.step()


if __name__ == "__main__":
    main(sys.argv[1], with_stack="stacks" in sys.argv)
