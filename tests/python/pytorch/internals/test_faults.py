# SPDX-License-Identifier: Apache-2.0
"""Whatever part of Reprise fails, training ends as without it, and the run says so once; only an
OSError may be handled without a word, where files are read and written. This is a sample;
`scripts/test faults` injects a thousand faults."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import faults
import pytest
import torch
from arming import arm
from fault_jobs import SOURCE
from local_agent import LocalAgent
from loops import curves, deep, train
from torch import Tensor, nn

import reprise
from reprise.torch.internals import guard, modes
from reprise.torch.internals.saved_hooks import unpacking
from reprise.torch.session import api, attach, start
from reprise.torch.tape.python_engine import PythonEngine
from reprise.torch.tape.tape_run import Run

FAULTS = Path(__file__).parents[1] / "faults.py"


KINDS = ["python_half", "compiled_half", "several_batches", "first_from_shapes", "unaware"]
KINDS += ["out_of_memory_backward"]


@pytest.mark.parametrize(
    ("kinds", "number", "where"),
    [
        (KINDS, 6, ""),
        pytest.param(KINDS, 60, "", marks=pytest.mark.long),
        pytest.param(["first_rank", "second_rank"], 8, "torch/ladder/", marks=pytest.mark.long),
    ],
)
def test_faults_of_every_kind_leave_the_training_as_it_is(
    kinds: list[str], number: int, where: str
) -> None:
    command = [sys.executable, str(FAULTS), f"--count={number}", "--seed=7", f"--where={where}"]

    done = subprocess.run(
        [*command, *(f"--kind={kind}" for kind in kinds)],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert f"| same | {number} |" in done.stdout, done.stdout
    assert "Not one line" not in done.stdout, done.stdout


def test_the_files_and_functions_that_are_treated_apart_exist() -> None:
    known = faults.functions()
    named = {*faults.ONLY_WAY_BACK_CALLS, faults.KEEPS_COSTS}

    assert named <= known, named - known
    assert set(faults.ONLY_WAY_BACK) <= {file for file, _ in known}
    for name in faults.CAUGHT_BY:
        assert (SOURCE / "reprise" / name).is_file(), name


@pytest.mark.usefixtures("removed")
def test_an_internal_error_is_logged_once_and_is_in_the_report(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = deep()
    state = torch.get_rng_state()
    expected = train(plain, 9)
    torch.set_rng_state(state)
    torch.manual_seed(0)
    model = deep()
    session = arm(model, LocalAgent())
    calls = 0

    def broken(*_: Any) -> None:
        nonlocal calls
        calls += 1
        raise KeyError("broken")

    monkeypatch.setattr(PythonEngine, "special", broken)
    monkeypatch.setattr(Run, "pack", broken)
    monkeypatch.setenv("REPRISE_FAST", "0")
    torch.set_rng_state(state)

    found = train(model, 9)

    assert found == expected
    assert calls  # in its first planned step, and in no later one
    report = reprise.report(model)
    assert report.stage == "training without a plan"
    assert "Reprise failed (KeyError: 'broken')" in report.why
    assert session.job.step.run is None
    assert capsys.readouterr().err.count("training continues without it") == 1
    assert torch._C._len_torch_dispatch_stack() == 0


@pytest.mark.usefixtures("removed")
def test_a_report_that_cannot_be_made_says_so_and_raises_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = deep()
    arm(model, LocalAgent())

    def broken(*_: Any) -> None:
        raise KeyError("broken")

    monkeypatch.setattr(api, "_report", broken)

    report = reprise.report(model)

    assert not report.validated
    assert str(report) == ("Not known: Reprise failed while making this report; see the log.")
    assert capsys.readouterr().err.count("KeyError: 'broken'") == 1


def test_a_model_that_cannot_be_armed_is_reported_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = deep()

    def broken(*_: Any, **__: Any) -> None:
        raise KeyError("broken")

    monkeypatch.setattr(start, "_start", broken)

    for _ in range(3):  # `reprise run` sees each of its calls
        attach._Watch._arm(model)

    assert capsys.readouterr().err.count("training without Reprise") == 1


@pytest.mark.usefixtures("removed")
def test_exceptions_of_the_program_are_raised_unchanged(half: None) -> None:
    class Raises(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.error = deep(), None

        def forward(self, x: Tensor) -> Tensor:
            x = self.inner(x)
            if self.error is not None:
                raise self.error
            return x

    model: Any = Raises()
    session = arm(model, LocalAgent(), verify_every=0)
    for error in (KeyError("theirs"), KeyboardInterrupt(), SystemExit(3), GeneratorExit()):
        train(model, 6)
        model.error = error

        with pytest.raises(type(error)) as seen:
            train(model, 1)

        assert seen.value is error
        innermost = seen.traceback[-1]
        assert innermost.name == "forward"
        model.error = None
    assert not session.job.broken
    assert session.job.measured.planned_steps > 0


def test_an_error_of_an_op_reaches_the_program() -> None:
    class Silent(modes.Mode):
        def op(self, op: modes.Op, types: Any) -> Any:
            return op.run()

    with Silent(), pytest.raises(RuntimeError, match="shape"):
        torch.ones(2).view(3)


def test_a_signal_that_raises_in_our_code_goes_through(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        guard.quietly(interrupted)


@pytest.mark.usefixtures("removed")
def test_the_loop_prints_the_same_where_the_log_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", object())  # writes nothing, raises AttributeError

    def make(armed: bool) -> list[str]:
        torch.manual_seed(0)
        model = deep()
        if armed:
            arm(model, LocalAgent())
        return train(model, 8)

    curves(make)


class Kept:
    """A packed tensor that still exists but cannot be returned plainly."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.alias, self.version = tensor, tensor._version

    def plainly(self) -> torch.Tensor:
        raise KeyError("ours")


def test_a_kept_tensor_is_available_even_if_all_our_code_fails() -> None:
    packed = Kept(torch.ones(3))
    unpack = unpacking(Kept.plainly)

    assert unpack(packed) is packed.alias

    packed.alias.add_(1)  # autograd would refuse it, too
    with pytest.raises(KeyError):
        unpack(packed)
