# SPDX-License-Identifier: Apache-2.0
"""The report of the checks, as far as they have come, and the machine it is of."""

from __future__ import annotations

import functools
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

from measuring import Result


@functools.cache
def machine(fake: bool) -> Result:
    """Asked once, after the first check: the clock runs."""
    facts: Result = {
        "cpu": platform.processor() or platform.machine(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load": os.getloadavg()[0],
    }
    if fake:
        return {**facts, "gpu": "none: fake CUPTI"}
    code = "import torch; print(torch.__version__, torch.version.cuda)"
    try:
        run = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=10, check=False
        )
        facts["torch"] = run.stdout.strip()
        query = "--query-gpu=name,driver_version,memory.total"
        run = subprocess.run(
            ["nvidia-smi", query, "--format=csv,noheader"],
            capture_output=True, text=True, timeout=5, check=False,
        )  # fmt: skip
        facts["gpu"] = run.stdout.strip()
    except OSError:
        facts["gpu"] = "nvidia-smi is not here"
    except subprocess.TimeoutExpired as late:
        facts["gpu"] = f"{late.cmd[0]} gave no answer in {late.timeout:.0f} s"
    return facts


def write_report(out: Path, results: list[Result], fake: bool) -> None:
    facts = machine(fake)
    (out / "report.json").write_text(json.dumps({"machine": facts, "checks": results}, indent=1))
    lines = ["# What the GPU says", "", *(f"- {key}: {value}" for key, value in facts.items()), ""]
    for entry in results:
        lines += [f"## {entry['check']}", "", entry["about"], ""]
        if entry["environment"]:
            lines += [f"with `{entry['environment']}`", ""]
        for word in ("failed", "not_run", "skipped"):
            if word in entry:
                lines += [f"**{word.replace('_', ' ')}**: {entry[word]}", ""]
        if entry.get("result"):
            lines += ["```json", json.dumps(entry["result"], indent=1), "```", ""]
    (out / "report.md").write_text("\n".join(lines))
