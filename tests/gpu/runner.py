# SPDX-License-Identifier: Apache-2.0
"""Runs the rows of a script, each in a process of its own, and appends what each finds at once.

A script is a list of blocks, a block a question with some seconds and rows, a row one measurement.
Torch is imported once; a row is a fork of this process, which has not touched the device. A row
that needs an environment which torch reads at its import is a program of its own. Whatever becomes
of a row (it hangs, dies, runs out of memory), its figures so far are in the report, and the next
one runs.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Figures = dict[str, Any]

RAN, FAILED, SKIPPED = "ran", "failed", "skipped"
MEMORY, HUNG, NOT_RUN = "out of memory", "did not end", "not run"
# A row is not begun with fewer seconds: it would only be ended.
LEAST_S = 4.0
_LOG_BYTES = 6000  # of each row that did not run through


class Skip(Exception):
    """Why a row cannot run here."""


@dataclass(frozen=True)
class Row:
    """One measurement. `seconds`: ended after these; `environment`: of its process."""

    name: str
    run: Callable[[Here], None]
    seconds: float = 60.0
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def forks(self) -> bool:
        """Whether torch may be there already: what it reads at its import is not changed."""
        return not any(name.startswith("PYTORCH") for name in self.environment)


@dataclass(frozen=True)
class Block:
    """A question, its rows, and how many seconds of the script are theirs. What one block does not
    use is the next one's."""

    name: str
    about: str
    seconds: float
    rows: tuple[Row, ...]


@dataclass
class Report:
    """The lines of `report.jsonl`: appended when they are known, by any process."""

    path: Path
    began: float = field(default_factory=time.monotonic)
    # "block/row" -> figures, of rows that ran through, here or in an earlier script.
    known: dict[str, Figures] = field(default_factory=dict)

    def append(self, line: Figures) -> None:
        at = round(time.monotonic() - self.began, 1)
        with self.path.open("a") as file:
            file.write(json.dumps({"at": at, **line}, default=str) + "\n")

    def figures_of(self, block: str, row: str) -> Figures:
        """Everything that a row has said so far."""
        found: Figures = {}
        for line in lines(self.path):
            if (line.get("block"), line.get("row")) == (block, row):
                found |= line.get("figures", {})
        return found


def lines(path: Path) -> list[Figures]:
    """The lines of a report; one that was cut short is left out."""
    found = []
    for text in path.read_text().splitlines() if path.exists() else ():
        with contextlib.suppress(ValueError):
            found.append(json.loads(text))
    return found


@dataclass
class Here:
    """What a row knows of where it runs."""

    report: Report
    block: str
    row: str
    out: Path
    scratch: Path
    rehearsal: bool  # on the fake device: small, and its times mean nothing

    def say(self, **figures: Any) -> None:
        """Figures of this row, which are in the report from now on."""
        self.report.append({"block": self.block, "row": self.row, "figures": figures})

    def found(self, row: str) -> Figures:
        """The figures of a row that ran before: "plain" of this block, "gpt/plain" of another."""
        name = row if "/" in row else f"{self.block}/{row}"
        if name not in self.report.known:
            raise Skip(f"needs {name}, which did not run through")
        return self.report.known[name]


def run_script(
    blocks: tuple[Block, ...], report: Report, out: Path, scratch: Path, *, seconds: float,
    rehearsal: bool, ready: Callable[[], str], done: frozenset[str] = frozenset(),
) -> None:  # fmt: skip
    """All rows, in order, each within the time of its block; then those for which that was too
    short, as long as the script has time. Rows in `done` are not run again. `ready` is called
    before each, and returns what they have to do without."""
    lacking = ""

    def attempt(here: Here, row: Row, until: float) -> bool:
        """Runs a row; returns whether it had all the time that it may take."""
        nonlocal lacking
        left = until - (time.monotonic() - report.began)
        if left < LEAST_S:
            finish(here, NOT_RUN, "there was no time left for it", 0.0)
            return False
        now_lacking = ready()
        if now_lacking != lacking:
            report.append({"daemon": now_lacking or "runs again"})
        lacking = now_lacking
        began = time.monotonic()
        outcome, why = _run(row, here, min(row.seconds, left))
        finish(here, outcome, why, time.monotonic() - began)
        return outcome != HUNG or left >= row.seconds

    share = time.monotonic() - report.began  # what came before is no block's
    cut: list[tuple[Here, Row]] = []
    for block in blocks:
        share += block.seconds
        for row in block.rows:
            if f"{block.name}/{row.name}" in done:
                continue
            here = Here(report, block.name, row.name, out, scratch, rehearsal)
            # What is left to this block and those before it; never past the script's end.
            if not attempt(here, row, min(share, seconds)):
                cut.append((here, row))
    for here, row in cut:
        attempt(here, row, seconds)


def finish(here: Here, outcome: str, why: str, seconds: float) -> None:
    """The last line of a row."""
    figures = here.report.figures_of(here.block, here.row)
    if outcome == RAN:
        here.report.known[f"{here.block}/{here.row}"] = figures
    line = {"block": here.block, "row": here.row, "outcome": outcome, "why": why}
    here.report.append({**line, "seconds": round(seconds, 1)})
    print(f"{here.block}/{here.row}: {outcome} {seconds:.1f} s {why}"[:200], file=sys.stderr)


def _run(row: Row, here: Here, seconds: float) -> tuple[str, str]:
    """The outcome of a row, and why, after at most so many seconds."""
    log = here.scratch / f"{here.block}.{here.row}.log".replace(" ", "-")
    pid = os.fork()
    if pid == 0:
        _child(row, here, log)
    until = time.monotonic() + seconds
    ended = False
    while not ended and time.monotonic() < until:
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        time.sleep(0 if ended else 0.02)
    # All that it left running, too: compilers, a program that it started.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    result = _ended(here, status, log) if ended else (HUNG, f"was ended after {seconds:.0f} s")
    if result[0] != RAN:
        _keep_log(here, log, result)
    return result


def _ended(here: Here, status: int, log: Path) -> tuple[str, str]:
    """What a process that ended by itself came to."""
    said = here.report.figures_of(here.block, here.row).pop("outcome", None)
    code = os.waitstatus_to_exitcode(status)
    if said is not None:
        return said[0], said[1]
    if code == 0:
        return RAN, ""
    last = [*log.read_text(errors="replace").split("\n"), ""]
    why = next((line for line in reversed(last) if line.strip()), "no word")
    by = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit {code}"
    return FAILED, f"{by}: {why.strip()}"[:400]


def _keep_log(here: Here, log: Path, result: tuple[str, str]) -> None:
    """The end of what a row printed, for whoever looks for the reason."""
    text = log.read_text(errors="replace") if log.exists() else ""
    with (here.out / "log.txt").open("a") as file:
        file.write(f"==== {here.block}/{here.row}: {result[0]}\n{text[-_LOG_BYTES:]}\n")


def _child(row: Row, here: Here, log: Path) -> None:
    """The process of a row; does not return."""
    code = 1
    try:
        os.setpgid(0, 0)
        os.environ.update(row.environment)
        handle = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        if not row.forks and "REPRISE_GPU_ROW" not in os.environ:
            os.environ["REPRISE_GPU_ROW"] = f"{here.report.began} {here.scratch}"
            arguments = [*sys.orig_argv[1:], "--row", f"{here.block}/{here.row}"]
            os.execv(sys.executable, [sys.executable, *arguments])
        code = carry_out(row, here)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def carry_out(row: Row, here: Here) -> int:
    """Runs a row in this process; its exit code. Reasons that it knows are in the report."""
    try:
        row.run(here)
    except Skip as why:
        here.say(outcome=[SKIPPED, str(why)])
    except Exception as error:
        # torch.OutOfMemoryError, where torch is not imported here.
        traceback.print_exc()
        if type(error).__name__ not in ("OutOfMemoryError", "MemoryError"):
            return 1
        here.say(outcome=[MEMORY, str(error).split("\n")[0][:300]])
    return 0
