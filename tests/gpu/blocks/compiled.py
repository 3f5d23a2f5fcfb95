# SPDX-License-Identifier: Apache-2.0
"""GPT-2 blocks under torch.compile: as it is, with PyTorch's own memory budget, and Reprise at the
peak that this has."""

from __future__ import annotations

import time
from typing import Any

import torch
from gpt2 import GptJob
from runner import Block, Here, Row
from sizes import sizes
from training import beside, trained

STEPS = 12


def compiled(here: Here, own_budget: float | None = None, budget: Any = "plain") -> None:
    """Trains it one way. Without a GPU Inductor's kernels cannot run: eager ones stand in."""
    if own_budget is not None:
        import torch._functorch.config as functorch

        functorch.activation_memory_budget = own_budget
    job = GptJob(sizes(here.rehearsal).compiled)
    backend = "aot_eager_decomp_partition" if here.rehearsal else "inductor"
    began = time.perf_counter()

    def first(number: int) -> torch.Tensor:
        loss = step(number)
        torch.cuda.synchronize()
        here.say(compile_s=time.perf_counter() - began)
        job.step = step  # type: ignore[method-assign]
        return loss

    step, job.step = job.step, first  # type: ignore[method-assign]
    plain = job.model
    figures = trained(
        here, job, STEPS, budget=budget,
        then=lambda: setattr(job, "call", torch.compile(plain, backend=backend)),
    )  # fmt: skip
    if here.row != "compiled":
        beside(here, figures, "compiled")


COMPILED = Block(
    "compiled",
    "torch.compile: does Reprise keep its budget there, and what does PyTorch's own do?",
    100.0,
    (
        Row("compiled", compiled, 70),
        Row("activation_memory_budget 0.5", lambda here: compiled(here, 0.5), 60),
        Row(
            "reprise at that peak",
            lambda here: compiled(
                here, budget=int(here.found("activation_memory_budget 0.5")["requested"])
            ),
            90,
        ),
    ),
)
