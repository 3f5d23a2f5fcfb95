# SPDX-License-Identifier: Apache-2.0
"""`reprise fit`: how large the inputs of a program may be, before it trains."""

from __future__ import annotations

import sys

import pytest
from cli_program import Reprise

PROGRAM = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(6))
    def forward(self, x, target=None):
        assert x.shape[1] <= 24, "at most 24"
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return nn.functional.mse_loss(x, target)

model = Net()
optimizer = torch.optim.AdamW(model.parameters())
print("begins")
for step in range(3):
    x = torch.randn(8, 16, 64)
    model(x, target=torch.zeros(8, 16, 64)).backward()
    optimizer.step()
    print("has trained")
"""


def fit(reprise: Reprise, program: str, *flags: str) -> tuple[int, str, str]:
    file = reprise.folder / "train.py"
    file.write_text(program)
    result = reprise("fit", *flags, sys.executable, str(file))
    return result.code, result.out, result.err


@pytest.mark.train
def test_a_program_is_told_how_large_its_batch_may_be_and_does_not_train(
    reprise: Reprise,
) -> None:
    code, out, err = fit(reprise, PROGRAM, "--budget", "3MB")

    assert code == 0, err
    assert out.startswith("begins\nwithin 2.9 MiB")
    assert "has trained" not in out
    assert "largest without a plan" in out
    assert "largest with a plan" in out
    assert "An estimate, from shapes" in out
    assert out.endswith("The program's own size is 8.\n")


@pytest.mark.train
def test_a_dimension_may_be_that_of_a_sequence_and_a_script_reads_the_answer(
    reprise: Reprise,
) -> None:
    file = reprise.folder / "train.py"
    file.write_text(PROGRAM.replace('print("begins")', ""))
    result = reprise("fit", "--json", "-d", "1", "-b", "1GiB", sys.executable, str(file))

    answer = result.json()
    assert answer["budget_bytes"] == 1 << 30
    assert [one["size"] for one in answer["sizes"]] == [24]
    assert "at most 24" in answer["limit"]


@pytest.mark.train
def test_what_cannot_be_answered_is_said_in_one_line(reprise: Reprise) -> None:
    looks = PROGRAM.replace("x = torch.tanh(layer(x))", "x = x * x.sum().item()")

    code, _, err = fit(reprise, looks, "--budget", "3MB")

    assert code == 1
    assert "fit: shapes alone do not determine the step" in err
    code, out, _ = fit(reprise, PROGRAM, "--budget", "20kB")
    assert code == 3
    assert "No size fits within 19.5 KiB" in out


def test_a_program_that_trains_nothing_says_so_with_its_own_exit_code(reprise: Reprise) -> None:
    code, out, err = fit(reprise, "print('nothing'); raise SystemExit(7)")

    assert code == 7
    assert out == "nothing\n"
    assert "the job ended with exit code 7" in err
    assert "was seen to train a PyTorch model" in err
    assert fit(reprise, "")[0] == 1


def test_wrong_usage_starts_nothing(reprise: Reprise) -> None:
    assert "no command" in reprise.fails(2, "fit")
    assert "a share of a step" in reprise.fails(2, "fit", "-b", "0.5x", "true")
    assert "did you mean" in reprise.fails(2, "fit", "-b", "3gib", "true")
    assert "7" in reprise.fails(2, "fit", "-d", "8", "true")
    assert "cannot be started" in reprise.fails(127, "fit", "no-such-program")
