# SPDX-License-Identifier: Apache-2.0
"""Each op of a captured step names the line of the program that ran it."""

from __future__ import annotations

from pathlib import Path

import torch
from jobs import captured, plain_step, start_meter
from nets import job
from torch import Tensor, nn


class TwoLines(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        h = self.up(x)
        return torch.tanh(h)


def line_of_forward(after: int) -> str:
    return f"{Path(__file__).name}:{TwoLines.forward.__code__.co_firstlineno + after}"


def test_ops_of_a_forward_and_of_its_backward_have_the_line_of_the_forward() -> None:
    made = job(TwoLines(), 4, 8)
    plain_step(made, 0)

    ops = captured(made, start_meter()).message()["ops"]

    lines = {op["name"]: op.get("source", "") for op in ops}
    assert lines["aten.addmm.default"] == line_of_forward(1)
    assert lines["aten.tanh.default"] == line_of_forward(2)
    assert lines["aten.tanh_backward.default"] == line_of_forward(2)


def test_no_op_has_a_line_of_torch_and_all_that_the_program_ran_have_one() -> None:
    made = job(TwoLines(), 4, 8)
    plain_step(made, 0)

    ops = captured(made, start_meter()).message()["ops"]

    files = {op.get("source", "").partition(":")[0] for op in ops if op["id"] > 0}
    assert files <= {Path(__file__).name, "jobs.py", "nets.py"}
