# SPDX-License-Identifier: Apache-2.0
"""Public models and ways to train, plain and under Reprise, each in a process of its own.

    scripts/test zoo                                  # all of them; the table to bench/results
    python -m tests.models.run --case style/sam       # one; with --out DIR its table, too

A row passes when training ends as the plain run does, with the same bits, and the run has either
been planned or has said why not. A refusal is held against checkpointing by hand: where that keeps
the same step within the refused budget, the row fails. Exit code 1 if any row fails.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
STEPS = 16
LIMIT_S = 600
# In three small networks a planned step had -11, +4 and +11 KiB beside its tensors against a
# plain one.
# Where a framework owns the loop, the tensors of the plain step are not known, and the share is
# asked of what lies beside them, too: nodes of autograd, Python objects, 80 to 200 KiB there.
SLACK_BYTES = 256 << 10
REFUSED = re.compile(r"Nothing fits in|This executor cannot keep to")
# Lines that do not say why there is no plan.
SAYS_NOTHING = re.compile(r"private daemon|dashboard|steps? ran without a plan and peaked")

__all__ = ["Row", "judge", "main", "table"]


@dataclass
class Row:
    """What became of one case under one budget."""

    case: str
    budget: str
    outcome: str  # validated, planned, refused, unplanned, or one of FAILURES
    note: str = ""
    plain_bytes: int = 0  # the most that one of the last five steps added to the heap
    armed_bytes: int = 0  # of all that ran as planned, else as for plain
    asked_bytes: int = 0  # the budget's share of plain_bytes
    by_hand_bytes: int = 0
    said: list[str] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        """The job was hurt, or told something that is not so, or nothing."""
        return self.outcome in FAILURES


FAILURES = {
    "crash": "training ended otherwise than without Reprise",
    "other bits": "parameters, state, losses or random numbers differ",
    "silent": "no plan, and no line says why",
    "over budget": "a planned step took more heap than the budget",
    "false refusal": "checkpointing by hand needs less than the refused budget",
    "broken case": "the plain run itself failed",
}


def judge(
    case: str,
    budget: str,
    plain: dict[str, Any] | None,
    armed: dict[str, Any] | None,
    by_hand: dict[str, Any] | None,
    said: list[str],
) -> Row:
    """One row from what the processes printed; None: that process failed."""
    row = Row(case, budget, "crash", said=said)
    if plain is None:
        row.outcome, row.note = "broken case", FAILURES["broken case"]
        return row
    row.plain_bytes = max(plain["rises"][-5:])
    # Beside its tensors a step makes nodes of autograd, of which no plan needs fewer.
    tensors = min(plain.get("tensor_rise", row.plain_bytes), row.plain_bytes)
    row.asked_bytes = row.plain_bytes - int((1 - float(budget.removesuffix("x"))) * tensors)
    if armed is None:
        row.note = said[-1] if said else ""
        return row
    report = armed["report"]
    rises = armed["rises"]
    under = [rise for rise, planned in zip(rises, armed["planned"], strict=True) if planned]
    # What a step takes before its forward, as for a copy of the model, no plan lowers.
    before = plain.get("before", [])
    before += [0] * (len(rises) - len(before))
    over = [
        rise - max(row.asked_bytes, first)
        for rise, first, planned in zip(rises, before, armed["planned"], strict=False)
        if planned
    ]
    row.armed_bytes = max(under or rises[-5:])
    if armed["digest"] != plain["digest"]:
        row.outcome, row.note = "other bits", report["sentence"]
        return row
    row.note = report["sentence"]
    if report["planned_steps"]:
        row.outcome = "validated" if report["validated"] else "planned"
        if not under:
            row.outcome = "left its plan"
        elif max(over, default=0) > SLACK_BYTES:
            row.outcome = "over budget"
    elif REFUSED.search(report["why"]):
        row.outcome, row.note = "refused", report["why"]
        if by_hand is not None and by_hand["digest"] == plain["digest"]:
            row.by_hand_bytes = max(by_hand["rises"][-5:])
            if row.by_hand_bytes <= row.asked_bytes:
                row.outcome = "false refusal"
    else:
        telling = [line for line in said if not SAYS_NOTHING.search(line)]
        row.outcome = "unplanned" if telling else "silent"
        row.note = telling[-1] if telling else row.note
    return row


def _run(
    case: str, heap: Path, log: Path, *arguments: str
) -> tuple[dict[str, Any] | None, list[str]]:
    """One child: its result, and the lines Reprise wrote."""
    environment = os.environ | {
        "LD_PRELOAD": str(heap),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": os.pathsep.join(
            [
                str(ROOT),
                str(ROOT / "clients/python/src"),
                os.environ.get("PYTHONPATH", ""),
            ]
        ),
    }
    command = [
        sys.executable,
        "-m",
        "tests.models.child",
        case,
        "--steps",
        str(STEPS),
        *arguments,
    ]
    try:
        done = subprocess.run(
            command,
            env=environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        return None, [f"no end within {LIMIT_S} s"]
    log.write_text(done.stdout + done.stderr)
    said = [line for line in done.stderr.splitlines() if line.startswith("reprise: ")]
    result = _result(done.stdout) if done.returncode == 0 else None
    if result is not None:
        return result, said
    last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
    return None, [*said, *last]


def _result(printed: str) -> dict[str, Any] | None:
    """Of a child."""
    for line in printed.splitlines():
        if line.startswith("RESULT "):
            result: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
            return result
    return None


def run_case(case: str, budget: str, heap: Path, logs: Path, keep: bool) -> Row:
    """Plain, armed and, where Reprise refuses, by hand. `keep`: a plain run that `logs` has is not
    made again."""
    stem = case.replace("/", "-")
    plain, trouble = None, [""]
    if keep and (logs / f"{stem}.plain.log").exists():
        plain = _result((logs / f"{stem}.plain.log").read_text())
    if plain is None:
        plain, trouble = _run(case, heap, logs / f"{stem}.plain.log")
    if plain is None:
        return judge(case, budget, None, None, None, trouble)
    log = logs / f"{stem}.{budget}.log"
    armed, said = _run(case, heap, log, "--budget", budget)
    row = judge(case, budget, plain, armed, None, said)
    if row.outcome == "refused":
        by_hand, _ = _run(case, heap, logs / f"{stem}.hand.log", "--by-hand")
        row = judge(case, budget, plain, armed, by_hand, said)
    return row


def _mib(count: int) -> str:
    return f"{count / 2**20:.1f}" if count else ""


MEANS = {
    "validated": "planned, within the budget in every step, checked bits equal",
    "planned": "planned; the report says what it lacks to be validated",
    "left its plan": "no two steps are alike: planned ones kept everything, and the report says so",
    "refused": "no plan fits, says Reprise; by hand: blocks checkpointed, where bits stay equal",
    "unplanned": "no plan, and a line says why",
}


def table(
    rows: list[Row], versions: dict[str, str], command: str, kept: int = 0, missing: int = 0
) -> str:
    """The rows as Markdown, with how many ended how. `kept`: of earlier calls; `missing`: cases
    that were not run."""
    counts: dict[str, int] = {}
    for row in rows:
        counts[row.outcome] = counts.get(row.outcome, 0) + 1
    text = "# Public models and ways to train\n\n"
    text += f"`{command}`, {time.strftime('%Y-%m-%d')}, CPU, one thread, {STEPS} steps; "
    text += ", ".join(f"{name} {version}" for name, version in sorted(versions.items())) + ".\n"
    text += (
        "MiB: how far the heap rose in a step, counted at malloc, outside of PyTorch and Reprise:\n"
    )
    text += (
        "the most of any planned step, checked ones among them; without a plan of the last five.\n"
    )
    text += "Asked: the budget's share of the tensors in plain, and what else is in it.\n"
    text += "Bits: parameters, buffers, gradients, optimizer state, losses, random generator.\n\n"
    if kept:
        text += f"{kept} of the {len(rows)} rows are of earlier calls.\n\n"
    if missing:
        text += f"{missing} cases were not run.\n\n"
    refused = [row for row in rows if row.outcome in ("refused", "false refusal")]
    if refused:
        compared = sum(row.by_hand_bytes > 0 for row in refused)
        text += f"Of {len(refused)} refused rows {compared} have a run by hand to compare with; "
        text += "by hand the others gave other bits, or did not run.\n\n"
    text += "| outcome | cases | |\n|---|---|---|\n"
    for name, count in sorted(counts.items(), key=lambda item: (item[0] in FAILURES, item[0])):
        means = f"fails: {FAILURES[name]}" if name in FAILURES else MEANS[name]
        text += f"| {name} | {count} | {means} |\n"
    text += "\n| case | budget | outcome | plain MiB | asked | under Reprise | by hand | |\n"
    text += "|---|---|---|---|---|---|---|---|\n"
    for row in rows:
        figures = (row.plain_bytes, row.asked_bytes, row.armed_bytes, row.by_hand_bytes)
        note = row.note.replace("|", "/").replace("\n", " ")
        text += f"| {row.case} | {row.budget} | {row.outcome} | "
        text += " | ".join(map(_mib, figures)) + f" | {note} |\n"
    return text


def _versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": platform.python_version()}
    for name in ("torch", "torchvision", "timm", "transformers", "diffusers", "peft"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "missing"
    for name in ("accelerate", "lightning"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "missing"
    return found


def _kept(out: Path | None) -> dict[tuple[str, str], Row]:
    """Rows of an earlier run."""
    path = None if out is None else out / "models.json"
    rows = json.loads(path.read_text()) if path is not None and path.exists() else []
    return {(row["case"], row["budget"]): Row(**row) for row in rows}


def main() -> int:
    """Runs the cases asked for; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", action="append", help="one case; again for more (default: all)")
    parser.add_argument("--budget", default="0.5x")
    parser.add_argument("--out", type=Path, help="folder for models.md and models.json")
    parser.add_argument("--logs", type=Path, help="folder for what the processes print")
    parser.add_argument(
        "--keep",
        action="store_true",
        help="keep what --out has of other cases, and plain runs that --logs has",
    )
    options = parser.parse_args()
    from .child import CASES

    names = options.case or sorted(CASES)
    kept = _kept(options.out) if options.keep else {}
    unknown = [name for name in names if name not in CASES]
    if unknown:
        parser.error(f"--case {unknown[0]}: is none of {', '.join(sorted(CASES))}")
    logs = options.logs or Path(tempfile.mkdtemp(prefix="reprise-models-"))
    logs.mkdir(parents=True, exist_ok=True)
    heap = logs / "heap.so"
    source = ROOT / "tests/python/pytorch/heap_counter.c"
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", str(source), "-o", str(heap)], check=True)
    rows = []
    for number, name in enumerate(names, 1):
        row = run_case(name, options.budget, heap, logs, options.keep)
        rows.append(row)
        print(f"[{number}/{len(names)}] {row.case}: {row.outcome}. {row.note}", flush=True)
        if options.out:
            options.out.mkdir(parents=True, exist_ok=True)
            command = "scripts/test zoo" if not options.case else "python -m tests.models.run"
            kept[name, options.budget] = row
            all_rows = [kept[key] for key in sorted(kept)]
            missing = len(set(CASES) - {row.case for row in all_rows})
            text = table(all_rows, _versions(), command, len(kept) - number, missing)
            (options.out / "models.md").write_text(text)
            data = json.dumps([row.__dict__ for row in all_rows], indent=1)
            (options.out / "models.json").write_text(data + "\n")
    failed = [row for row in rows if row.failed]
    for row in failed:
        print(
            f"FAILED {row.case}: {FAILURES[row.outcome]} (logs in {logs})",
            file=sys.stderr,
        )
    print(f"{len(rows) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
