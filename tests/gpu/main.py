# SPDX-License-Identifier: Apache-2.0
"""Starts a script of measurements: unpacks the kit, starts one daemon for all rows, imports torch
once, runs the rows and prints the table. tests/gpu/run calls it."""

from __future__ import annotations

import argparse
import ctypes
import datetime
import importlib
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kit as kits
from daemon import Daemon
from runner import RAN, SKIPPED, Block, Here, Report, carry_out, run_script
from script_names import SECONDS
from table import rows_of, table

HERE = Path(__file__).resolve().parent
IMPORT_S = 240  # a machine that has just started reads torch from a cold disk


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(add_help=False, usage=argparse.SUPPRESS)
    # A file of blocks of one's own may stand in the place of a script's name.
    parser.add_argument("script", type=lambda name: name if name in SECONDS else Path(name))
    parser.add_argument("--out", type=Path, default=Path("gpu-report"))
    parser.add_argument("--kit", type=Path, default=HERE.parents[1] / "gpu-kit")
    parser.add_argument("--seconds", type=int)
    parser.add_argument("--only", default="")
    parser.add_argument("--after", type=Path, action="append", default=[])
    parser.add_argument("--rehearsal", action="store_true")
    parser.add_argument("--row", help=argparse.SUPPRESS)  # this one, in this process
    asked = parser.parse_args()
    if isinstance(asked.script, Path) and not asked.script.is_file():
        parser.error(f"{asked.script}: no script: first, second, third, or a file of blocks")
    for folder in asked.after:
        if not (folder / "report.jsonl").is_file():
            parser.error(f"--after {folder}: there is no report.jsonl")
    return asked


def blocks_of(script: str | Path) -> tuple[Block, ...]:
    """The blocks of a script."""
    if isinstance(script, Path):
        sys.path.insert(0, str(script.parent))
        found = importlib.import_module(script.stem).BLOCKS
    else:
        found = importlib.import_module(f"script_{script}").BLOCKS
    blocks: tuple[Block, ...] = found
    return blocks


def import_torch() -> tuple[float, str]:
    """Seconds that the first import took, and the release. Ends the process where it takes too
    long."""
    signal.signal(signal.SIGALRM, lambda *_: sys.exit(f"torch: not imported in {IMPORT_S} s"))
    signal.alarm(IMPORT_S)
    began = time.monotonic()
    import torch  # once, for all rows, which are forks of this process

    signal.alarm(0)
    return time.monotonic() - began, torch.__version__


def no_driver() -> str:
    """Why there is no GPU to run on; empty: there may be one."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "there is no NVIDIA driver (libcuda.so.1 is not found)"
    return ""


def computes() -> None:
    """Raises NotRun if torch has no device. In a fork: this process must not touch it."""
    pid = os.fork()
    if pid == 0:
        import torch

        code = 1
        try:
            code = int((torch.ones(2, device="cuda") + 1).sum().item() != 4.0)
        except Exception as error:
            print(f"torch {torch.__version__}: {error}", file=sys.stderr)
        os._exit(code)
    if os.waitpid(pid, 0)[1]:
        raise kits.NotRun("PyTorch finds no GPU that it can use: see the line above")


def about(asked: argparse.Namespace, kit: dict[str, Any]) -> dict[str, Any]:
    """What a report says of itself: when, where, which kit, by which command."""
    card = "the fake device: times mean nothing"
    if not asked.rehearsal:
        query = [
            "nvidia-smi",
            "--query-gpu=name,driver_version,memory.total",
            "--format=csv,noheader",
        ]
        try:
            card = subprocess.run(
                query, capture_output=True, text=True, timeout=20, check=True
            ).stdout
        except (OSError, subprocess.SubprocessError) as error:
            card = f"nvidia-smi does not tell: {error}"
    return {
        "script": str(asked.script),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "card": card.strip(),
        "kernel": platform.release(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "kit": kit,
        "command": " ".join(["tests/gpu/run", *sys.argv[1:]]),
    }


def main() -> int:
    asked = parsed()
    if asked.row:
        return one_row(asked)
    began = time.monotonic()
    own = isinstance(asked.script, Path)  # blocks of a file: no kit, no device
    why = "" if asked.rehearsal or own else no_driver()
    if why:
        print(f"tests/gpu/run: not run: {why}", file=sys.stderr)
        return 3
    asked.out.mkdir(parents=True, exist_ok=True)
    out = asked.out.resolve()
    report = Report(out / "report.jsonl", began)
    report.path.unlink(missing_ok=True)
    (out / "log.txt").unlink(missing_ok=True)
    # What is unpacked and what the daemon keeps stays out of the report's folder.
    scratch = Path(tempfile.mkdtemp(prefix="reprise-gpu-"))
    daemon = Daemon(scratch)
    try:
        kit = {} if own else kits.unpack(asked.kit.resolve(), scratch)
        report.append(about(asked, kit))
        if not own:
            seconds, version = import_torch()
            report.append({"torch": version, "import_s": round(seconds, 1)})
            computes()
        ready = (lambda: "") if own else daemon.ensure
        run(asked, report, out, scratch, ready)
    except kits.NotRun as error:
        print(f"tests/gpu/run: not run: {error}", file=sys.stderr)
        return 3
    finally:
        daemon.stop()
        shutil.rmtree(scratch, ignore_errors=True)
    text = table(report.path)
    (out / "report.txt").write_text(table(report.path, 1 << 20) + "\n")
    print(text, flush=True)
    good = all(one["outcome"] in (RAN, SKIPPED) for one in rows_of(report.path))
    return 0 if good else 1


def run(
    asked: argparse.Namespace,
    report: Report,
    out: Path,
    scratch: Path,
    ready: Callable[[], str],
) -> None:
    """The rows that are asked for, with the figures of earlier reports at hand."""
    done = read_earlier(asked, report)
    blocks = blocks_of(asked.script)
    only = set(filter(None, asked.only.split(",")))
    unknown = only - {block.name for block in blocks}
    if unknown:
        raise SystemExit(f"--only: there is no block {', '.join(sorted(unknown))}")
    run_script(
        tuple(block for block in blocks if not only or block.name in only),
        report,
        out,
        scratch,
        seconds=asked.seconds or SECONDS.get(str(asked.script), 60),
        rehearsal=asked.rehearsal,
        ready=ready,
        done=done if asked.script == "third" else frozenset(),
    )


def read_earlier(asked: argparse.Namespace, report: Report) -> frozenset[str]:
    """Takes the figures of the rows that ran through in earlier reports; returns their names."""
    for folder in asked.after:
        for one in rows_of(folder / "report.jsonl"):
            if one["outcome"] == RAN:
                report.known[f"{one['block']}/{one['row']}"] = one["figures"]
    return frozenset(report.known)


def one_row(asked: argparse.Namespace) -> int:
    """A row that is a program of its own, as its environment is read when torch is imported."""
    out = asked.out.resolve()
    began, scratch = os.environ["REPRISE_GPU_ROW"].split(" ", 1)
    report = Report(out / "report.jsonl", float(began))
    read_earlier(asked, report)
    for one in rows_of(report.path):
        if one["outcome"] == RAN:
            report.known[f"{one['block']}/{one['row']}"] = one["figures"]
    block_name, row_name = asked.row.split("/", 1)
    block = next(block for block in blocks_of(asked.script) if block.name == block_name)
    row = next(row for row in block.rows if row.name == row_name)
    here = Here(report, block_name, row_name, out, Path(scratch), asked.rehearsal)
    return carry_out(row, here)


if __name__ == "__main__":
    sys.exit(main())
