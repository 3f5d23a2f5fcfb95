# SPDX-License-Identifier: Apache-2.0
"""A torch that is none of those tested runs in the careful mode, and the log says so once."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from reprise.torch.compiled import fast
from reprise.torch.internals import versions
from reprise.torch.session import start

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REPRISE_CAREFUL", raising=False)
    monkeypatch.delenv("REPRISE_FAST", raising=False)
    monkeypatch.setattr(start, "_said_careful", False)


@pytest.mark.parametrize(
    ("release", "is_careful"),
    [
        ("1.13.1", True),
        ("2.7.1", True),
        ("2.8.0", False),
        ("2.13.0+cpu", False),
        ("2.15.0+cu132", False),
        ("2.16.0", True),
        ("2.99.0a0+git1", True),
        ("3.0.1", True),
    ],
)
def test_a_torch_outside_the_tested_range_is_used_with_care(
    monkeypatch: pytest.MonkeyPatch, release: str, is_careful: bool
) -> None:
    monkeypatch.setattr(torch, "__version__", release)

    assert bool(versions.careful()) == is_careful
    assert (release in versions.careful()) == is_careful


def test_a_version_that_cannot_be_read_is_used_with_care_and_not_called_newer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch, "__version__", "nightly")

    said = [versions.careful(), versions.described()[1]]
    monkeypatch.setenv("REPRISE_CAREFUL", "0")
    said.append(versions.described()[1])

    for one in said:
        assert "torch nightly does not say which release it is" in one
        assert "newer" not in one


def test_the_environment_decides_in_either_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPRISE_CAREFUL", "1")
    assert versions.careful() == "REPRISE_CAREFUL=1"
    monkeypatch.setattr(torch, "__version__", "9.0.0")
    monkeypatch.setenv("REPRISE_CAREFUL", "0")
    assert versions.careful() == ""


def test_with_care_plans_run_in_python_and_the_report_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("REPRISE_CAREFUL", "1")

    assert fast.library() is None
    assert fast.why_python() == "REPRISE_CAREFUL=1"


def test_with_care_steps_are_checked_more_often_and_that_is_said_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("REPRISE_CAREFUL", "1")

    assert start._with_care(50) == versions.CAREFUL_EVERY
    assert start._with_care(3) == 3
    assert start._with_care(0) == 0
    said = capsys.readouterr().err
    assert said.count("careful mode: REPRISE_CAREFUL=1. Plans run in Python") == 1
    monkeypatch.delenv("REPRISE_CAREFUL")
    assert start._with_care(50) == 50
    assert capsys.readouterr().err == ""


def test_doctor_is_told_of_the_release(monkeypatch: pytest.MonkeyPatch) -> None:
    assert versions.described()[0] == "ok"
    monkeypatch.setattr(torch, "__version__", "9.0.0")
    health, found, advice = versions.described()
    assert (health, "careful mode" in found) == ("warning", True)
    assert "REPRISE_CAREFUL=0" in advice
    monkeypatch.setenv("REPRISE_CAREFUL", "0")
    health, found, _ = versions.described()
    assert (health, "the careful mode is off" in found) == ("warning", True)
    monkeypatch.delenv("REPRISE_CAREFUL")
    monkeypatch.setattr(torch, "__version__", "1.13.1")
    health, found, _ = versions.described()
    assert (health, "careful mode, because torch 1.13.1 is older" in found) == ("warning", True)


def test_the_documentation_states_the_range_that_is_tested() -> None:
    text = (ROOT / "docs/install.md").read_text()
    python = ".".join(map(str, versions.OLDEST_PYTHON))

    assert f"PyTorch {versions.range_of()}" in text
    assert re.search(rf"\| Python \| {re.escape(python)} or newer", text)
