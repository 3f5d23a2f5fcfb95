# SPDX-License-Identifier: Apache-2.0
"""What a check finds wrong never reaches the optimizer: the backward of the checked step reads the
original values, which are kept in a file."""

from __future__ import annotations

import copy
import errno
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from arming import arm
from nets import WIDTH
from torch import Tensor, nn

import reprise
from reprise.torch.check import values
from reprise.torch.check.values import like
from reprise.torch.compiled.digest import digest, load, store
from reprise.torch.policy.state import Stage

pytestmark = pytest.mark.usefixtures("removed")

LAYERS = 40
CHECKED = 4  # two plain steps and a captured one come before it


class Shifted(nn.Module):
    """Adds a constant before each layer, which autograd does not save and a plan reads again."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        self.shifts = [torch.randn(6, WIDTH) for _ in range(LAYERS)]
        self.drops = nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        for layer, shift in zip(self.layers, self.shifts, strict=True):
            x = layer((x + shift).sin().t().cos().t()).tanh() + x
        return self.drops(x)  # type: ignore[no-any-return]


def trained(model: Shifted, places: Iterable[int]) -> list[Tensor]:
    """Trains; in every third step from the first checked one on, another constant has other values
    between forward and backward, which no version counter shows. Returns the weights."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    torch.manual_seed(5)
    wrong = dict(zip(range(CHECKED, 1000, 3), places, strict=False))
    for step in range(1, max(wrong) + 2):
        optimizer.zero_grad()
        loss = model(torch.randn(6, WIDTH)).square().mean()
        bytes = model.shifts[wrong.get(step, 0)].numpy()
        before = bytes.copy()
        if step in wrong:
            bytes.fill(7.0)
        loss.backward()
        bytes[:] = before
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


@pytest.mark.train
@pytest.mark.mostly_long(2)
@pytest.mark.parametrize("budget", ["0.5x", "0.7x", "0.4x", "0.6x", "0.8x"])
@pytest.mark.usefixtures("half")
def test_the_weights_are_those_of_plain_training_wherever_a_check_finds_other_values(
    budget: str,
) -> None:
    expected = trained(Shifted(), range(LAYERS))
    model = Shifted()
    session = arm(model, verify_every=1, budget=budget)
    found: list[int] = []
    settle = session.parts.checks._explained

    def explained(run: Any, control: Any, rewritten: Any) -> None:
        found.append(session.job.step.number)
        settle(run, control, rewritten)

    session.parts.checks._explained = explained  # type: ignore[method-assign]

    weights = trained(model, range(LAYERS))

    assert all(torch.equal(a, b) for a, b in zip(expected, weights, strict=True))
    assert session.job.stage is Stage.PLANNED
    assert len(found) >= LAYERS // 4  # steps that looked into what the step before had found


@pytest.mark.usefixtures("half")
def test_values_that_differ_are_told_where_there_is_no_room_for_the_original_ones(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(values, "store", full)
    model = Shifted()
    arm(model, verify_every=1)

    trained(model, [LAYERS // 2])

    said = capsys.readouterr().err
    assert "recomputed values that differ have reached its gradients" in said
    assert "No space left on device" in said
    assert not reprise.report(model).validated


@pytest.fixture(params=["compiled", "hashlib"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs the test with the native engine's functions and with those of Python."""
    monkeypatch.setenv("REPRISE_FAST", str(int(request.param == "compiled")))


TENSORS = {
    "dense": lambda: torch.randn(70, 30),
    "none": lambda: torch.randn(0, 3),
    "one number": lambda: torch.tensor(3, dtype=torch.int64),
    "bools": lambda: torch.randn(1000) > 0,
    "half": lambda: torch.randn(33, 5).bfloat16(),
    "complex": lambda: torch.randn(5, 3, dtype=torch.complex64),
    "transposed": lambda: torch.randn(7, 5, 3).transpose(0, 2),
    "a part": lambda: torch.randn(20, 30, 4)[3:15, ::2, 1],
    "expanded": lambda: torch.randn(4, 1, 3).expand(4, 5, 3),
    "channels last": lambda: torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last),
    "many parts": lambda: torch.randn(600, 1000)[:, 1:],
}


@pytest.mark.usefixtures("either")
@pytest.mark.parametrize("kind", TENSORS)
def test_a_tensor_that_is_stored_and_loaded_has_its_bits_and_its_strides(
    kind: str, tmp_path: Any
) -> None:
    tensor = TENSORS[kind]()
    with open(tmp_path / "file", "w+b") as file:
        size = store(tensor, file.fileno(), 100)
        made = like(tensor)
        load(made, file.fileno(), 100)

    assert size <= tensor.numel() * tensor.element_size()
    assert (made.size(), made.stride(), made.dtype) == (
        tensor.size(),
        tensor.stride(),
        tensor.dtype,
    )
    assert digest(made) == digest(tensor)


def test_equal_tensors_are_written_once_and_a_full_disk_ends_it() -> None:
    kept = values.Originals()
    tensor = torch.randn(50)
    at = kept.keep(tensor, digest(tensor))
    assert kept.keep(copy.deepcopy(tensor), digest(tensor)) == at
    other = kept.keep(tensor + 1, digest(tensor + 1))
    assert other != at
    made = torch.zeros(50)
    assert kept.restore(other, made)
    assert torch.equal(made, tensor + 1)
    assert not kept.restore(-1, made)
    assert kept.keep(torch.randn(3).to_sparse(), b"") == -1
    assert kept.missing == ""


@pytest.mark.usefixtures("either")
def test_a_file_that_takes_no_more_is_an_error_of_the_system() -> None:
    with open("/dev/full", "wb") as full, pytest.raises(OSError, match="No space left"):
        store(torch.randn(100_000), full.fileno(), 0)
