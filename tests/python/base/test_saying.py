# SPDX-License-Identifier: Apache-2.0
"""A line that nobody can read is lost, and nothing else happens."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from reprise.base.saying import named, say, shown

# Says a line when it is armed, and one when it ends.
PROGRAM = """
import os, sys, torch, reprise
{before}
model = torch.nn.Linear(3, 3)
reprise.auto(model, budget="0.5x")
for _ in range(3):
    model(torch.ones(2, 3)).sum().backward()
print("trained")
"""


def run(before: str = "", stderr: Any = subprocess.PIPE, **more: Any) -> tuple[int, str, str]:
    """Runs a program without an agent; returns exit code, standard output and standard error."""
    environment = {
        **os.environ,
        "REPRISE_AGENT": "/nowhere/agent.so",
        "REPRISE_DAEMON": "/nowhere/reprised",
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(before=before)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        timeout=300,
        check=False,
        **more,
    )
    return done.returncode, done.stdout.strip(), done.stderr or ""


@pytest.mark.long
def test_a_log_that_cannot_be_written_does_not_end_the_training() -> None:
    with Path("/dev/full").open("w") as full:
        assert run(stderr=full)[:2] == (0, "trained")
    reader, writer = os.pipe()
    os.close(reader)
    assert run(stderr=writer)[:2] == (0, "trained")
    os.close(writer)
    assert run("sys.stderr.close()")[:2] == (0, "trained")


@pytest.mark.long
def test_a_job_whose_current_folder_was_removed_is_armed(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    # Whose import asks for the current folder; training with an optimizer imports it, too.
    before = "import torch._dynamo; "
    before += f"os.chdir({str(gone)!r}); os.rmdir({str(gone)!r}); sys.argv = ['train.py']"

    code, out, said = run(before)

    assert (code, out) == (0, "trained"), said
    assert said.startswith("reprise: training without a plan"), said


def test_a_process_without_a_standard_error_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)

    say("unheard")


def test_only_the_first_line_about_an_internal_error_describes_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    fault = named("KeyError: 'this one'")

    say(f"step 6 cannot be run again: {fault}; the next one runs under a tighter plan")
    say(f"Reprise failed ({fault}); training continues without it")

    first, second = capsys.readouterr().err.splitlines()
    assert first.endswith(
        "cannot be run again: KeyError: 'this one'; the next one runs under a tighter plan"
    )
    assert second == "reprise: Reprise failed (as above); training continues without it"


def test_a_line_is_written_to_the_programs_standard_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    say("heard")

    assert capsys.readouterr().err == "reprise: heard\n"


SHOWN = json.loads((Path(__file__).parents[2] / "fixtures/shown.json").read_text())["rows"]


@pytest.mark.parametrize("row", SHOWN, ids=range(len(SHOWN)))
def test_a_text_of_others_is_shown_as_the_command_shows_it(
    row: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert shown(row["text"]) == row["shown"]
    say(row["text"])
    assert capsys.readouterr().err == f"reprise: {row['shown']}\n"
