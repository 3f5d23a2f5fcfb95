# SPDX-License-Identifier: Apache-2.0
"""Jobs without a budget that run out of memory, and the command that the log names.

    python bench/start/oom.py [--share 0.6] [CASE ...]

The networks of fit.py, each with batches of which a step takes some hundred megabytes. A job starts
under `reprise run` without a budget, and once it has its model and its batch it limits its own data
(RLIMIT_DATA) to a share of what its steps take beside them. It runs out of memory, and the command
in the last lines of its log is run as it stands: it should train, with the losses of the job that
had no limit.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from fit import ROOT, Case, cases, peak, rows

BYTES = 400 << 20  # that a step takes, about
STEPS = 6
COMMAND = re.compile(r": (reprise run --budget \S+ -- .*)$")


def train(name: str, size: int, limit_bytes: int) -> None:
    """Trains one network, and prints the losses of its steps as hex floats. `limit_bytes`: that
    data may grow by; 0: no limit."""
    import torch
    import torch._dynamo  # which shapes alone need: code counts as data, too

    torch.set_num_threads(1)
    case = cases()[name]
    torch.manual_seed(0)
    model = case.model().train()
    optimizer = case.optimizer(model.parameters())
    inputs = case.batch(size)
    if limit_bytes:
        status = Path("/proc/self/status").read_text()
        data = int(status.partition("VmData:")[2].split()[0]) << 10
        resource.setrlimit(resource.RLIMIT_DATA, (data + limit_bytes, -1))
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = case.loss(model, *inputs)
        loss.backward()
        optimizer.step()
        print(loss.item().hex(), flush=True)


def sized(case: Case) -> tuple[int, int]:
    """Returns a size whose step takes about BYTES, and what it takes."""
    first, second = peak(case, case.small), peak(case, 2 * case.small)
    each = max(1, second - first) / case.small
    size = case.small + int(max(0, BYTES - first) / each)
    return size, peak(case, size)


def one(name: str, share: float) -> dict[str, Any]:
    """Runs one job out of memory, and then as its log says."""
    case = cases()[name]
    size, takes = sized(case)
    limit = int(share * takes)
    line = [sys.executable, str(Path(__file__).resolve()), "--train", name, "--size", str(size)]
    limited = [*line, "--limit", str(limit)]
    environment = {
        **os.environ,
        "PATH": f"{ROOT / 'build/bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "clients/python/src"),
    }

    def ran(command: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=900, check=False
        )

    plain = ran(line)
    assert plain.returncode == 0, plain.stderr
    out = ran(["reprise", "run", "--", *limited])
    found = [m[1] for text in out.stderr.splitlines() if (m := COMMAND.search(text))]
    row = {"case": name, "size": size, "takes": takes, "limit": limit, "command": "", "says": ""}
    if out.returncode == 0:
        return {**row, "says": "did not run out of memory"}
    if not found:
        says = [text for text in out.stderr.splitlines() if text.startswith("reprise: ")]
        return {**row, "says": says[-1] if says else out.stderr[-200:]}
    row["command"] = found[-1].partition(" --train")[0].rpartition("/")[0].rpartition(" ")[0]
    again = ran(shlex.split(found[-1]))
    if again.returncode:
        row["says"] = again.stderr.strip().splitlines()[-1]
    else:
        row["says"] = "trains" if again.stdout == plain.stdout else "trains with other losses"
    return row


def main() -> None:
    """Every case, and the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("cases", nargs="*", metavar="CASE")
    parser.add_argument("--share", type=float, default=0.6)
    for name, kind in (("--train", str), ("--size", int), ("--limit", int), ("--one", str)):
        parser.add_argument(name, type=kind, default=kind(), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.train:
        train(args.train, args.size, args.limit)
        return
    if args.one:
        print(json.dumps(one(args.one, args.share)))
        return
    print("| network | size | a step takes | there is | command | then |")
    print("|---|---|---|---|---|---|")
    for row in rows(__file__, args.cases or cases(), "--share", str(args.share)):
        print(
            f"| {row['case']} | {row['size']} | {row['takes'] / 1e6:.0f} MB | "
            f"{row['limit'] / 1e6:.0f} MB | {row['command']} | {row['says']} |",
            flush=True,
        )


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "clients" / "python" / "src"))
    main()
