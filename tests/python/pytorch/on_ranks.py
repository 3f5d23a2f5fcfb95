# SPDX-License-Identifier: Apache-2.0
"""Jobs of several ranks, run to their ends."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from torch import distributed, nn

import reprise

HERE = Path(__file__).parent


def tell(model: nn.Module, seen: list[str], *, planned: bool) -> NoReturn:
    """In a rank: prints what it has seen, and what was reported of its plan, as one JSON object.
    Ends it when all ranks have."""
    result: dict[str, Any] = {"seen": seen}
    if planned:
        report = reprise.report(model)
        assert report is not None
        result |= {
            "planned": report.planned_steps,
            "over": report.over_budget_steps,
            "failed": report.failed_checks,
            "sentence": report.sentence,
        }
    print(json.dumps(result), flush=True)
    distributed.barrier()
    os._exit(0)  # as in ddp_job.py


@dataclass(frozen=True)
class Ended:
    """How a rank ended, and what it printed."""

    code: int
    out: str
    errors: str


def run_ranks(
    job: str,
    *arguments: str,
    environments: tuple[dict[str, str], ...] = ({}, {}),
    timeout: float,
) -> list[Ended]:
    """Runs `JOB RANK PORT ARGUMENTS...`, a file beside this one, once for each environment, and
    returns how the ranks ended. What is left of them after `timeout` seconds is killed.

    What they print goes to files: the reader of one rank's pipe would let another's run full, and
    that rank would keep the first waiting.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        printed = [Path(folder, str(rank)) for rank in range(len(environments))]
        ranks = [
            subprocess.Popen(
                [sys.executable, str(HERE / job), str(rank), port, *arguments],
                env={**os.environ, **environment},
                stdout=stack.enter_context(printed[rank].with_suffix(".out").open("w")),
                stderr=stack.enter_context(printed[rank].with_suffix(".errors").open("w")),
            )
            for rank, environment in enumerate(environments)
        ]
        try:
            for process in ranks:
                process.wait(timeout)
        finally:
            for process in ranks:
                process.kill()
                process.wait()
        return [
            Ended(
                process.returncode,
                printed[rank].with_suffix(".out").read_text(),
                printed[rank].with_suffix(".errors").read_text(),
            )
            for rank, process in enumerate(ranks)
        ]
