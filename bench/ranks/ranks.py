# SPDX-License-Identifier: Apache-2.0
"""Every way to train on several ranks: plainly, with `reprise.auto`, and in `reprise run`.

    python bench/ranks/ranks.py --out bench/results/ranks              # all jobs
    python bench/ranks/ranks.py --out bench/results/ranks --job fsdp2  # some; others are kept

Each job runs on gloo ranks of this machine. Compared with the plain run are losses, parameters and
gradients of every rank, bit for bit, and the list of its collectives: kind, sizes, order. Writes
OUT.json and OUT.md. Ends with 1 if a job crashes, hangs, or differs.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT / "clients/python/src")]

from table import table  # noqa: E402

LIMIT_S = 400.0
WAYS = ("auto", "run")
REFUSALS = ("Nothing fits", "cannot keep to", "is more than")
BAD = ("crash", "hang", "other bits", "other collectives", "silent")


def judged(plain: list[Any], found: list[Any], wrong: str, said: list[str]) -> str:
    """Returns the outcome of a run in one of the words that the table explains."""
    if wrong:
        return wrong
    for before, after in zip(plain, found, strict=True):
        if any(before[what] != after[what] for what in ("losses", "parameters", "gradients")):
            return "other bits"
    if any(a["collectives"] != b["collectives"] for a, b in zip(plain, found, strict=True)):
        return "other collectives"
    reports = [report for rank in found for report in rank["reports"]]
    if all(rank["reports"] for rank in found) and all(r["validated"] for r in reports):
        return "validated"
    if any(report["planned_steps"] for report in reports):
        return "planned"
    if not said:
        return "silent"
    return "refused" if any(text in line for line in said for text in REFUSALS) else "unplanned"


def said_in(errors: str) -> list[str]:
    """Returns the sentences that Reprise said, without those about the meter."""
    lines = [line.partition("reprise: ")[2] for line in errors.splitlines()]
    passed = ("peaks are measured", "daemon", "dashboard")
    return [line for line in dict.fromkeys(lines) if line and not line.startswith(passed)]


def ran(name: str, way: str, steps: int, keep: Path | None) -> tuple[list[Any], str, str]:
    """Trains; returns what each rank wrote, what went wrong, and standard error."""
    from jobs import JOBS
    from start import started

    folder = Path(tempfile.mkdtemp(prefix=f"{name}-{way}-", dir=keep))
    wrong, errors = started(name, way, steps, folder, LIMIT_S)
    files = [folder / f"{rank}.json" for rank in range(JOBS[name].ranks)]
    if not wrong and not all(file.exists() for file in files):
        wrong = "crash"
    found = [] if wrong else [json.loads(file.read_text()) for file in files]
    if keep is None:
        shutil.rmtree(folder)
    return found, wrong, errors


def shown(report: dict[str, Any]) -> dict[str, Any]:
    """Returns what the table keeps of one model on one rank."""
    names = (
        "base_peak_bytes", "budget_bytes", "predicted_peak_bytes", "measured_peak_bytes",
        "planned_steps", "mismatched_steps", "over_budget_steps", "checks", "failed_checks",
        "validated", "why", "text",
    )  # fmt: skip
    return {name: report[name] for name in names}


def row(name: str, steps: int, ways: list[str], keep: Path | None) -> dict[str, Any]:
    """Returns the row of one job."""
    from jobs import JOBS

    plain, wrong, errors = ran(name, "plain", steps, keep)
    made: dict[str, Any] = {
        "job": name,
        "ranks": JOBS[name].ranks,
        "budget": JOBS[name].budget,
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M"),
        "load": round(os.getloadavg()[0], 1),
    }
    if wrong:
        return made | {"plain": wrong, "errors": errors[-2000:]}
    made["collectives"] = [len(rank["collectives"]) for rank in plain]
    for way in ways:
        found, wrong, errors = ran(name, way, steps, keep)
        said = said_in(errors)
        outcome = judged(plain, found, wrong, said)
        made[way] = {
            "outcome": outcome,
            "said": said[:12],
            "reports": [[shown(r) for r in rank["reports"]] for rank in found],
            "longest_wait_s": max((rank["longest_wait_s"] for rank in found), default=0.0),
            "longest_wait_in_forward_s": max(
                (rank["longest_wait_in_forward_s"] for rank in found), default=0.0
            ),
        }
        if outcome in BAD:
            made[way]["errors"] = errors[-2000:]
        print(f"{name}  {way}  {outcome}  {said[:1]}", flush=True)
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--job", action="append")
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--way", action="append", choices=WAYS, help="the table needs both")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--keep", type=Path, help="a folder for what the ranks write")
    args = parser.parse_args()
    build = Path(os.environ.get("REPRISE_BUILD", ROOT / "build"))
    os.environ.setdefault("REPRISE_DAEMON", str(build / "bin/reprised"))
    os.environ.setdefault("REPRISE_AGENT", str(build / "lib/libreprise_agent.so"))
    command = Path(os.environ["REPRISE_DAEMON"]).with_name("reprise")
    source = str(ROOT / "clients/python/src")
    os.environ.update(
        REPRISE_COMMAND=str(command),
        REPRISE_LAUNCH=f"{source}/reprise/launch",
        PYTHONPATH=source,
        OMP_NUM_THREADS="1",
    )
    # A daemon of its own, whoever else runs one.
    own = Path(tempfile.mkdtemp(prefix="rp", dir="/tmp"))
    (own / "run").mkdir(mode=0o700)
    os.environ.update(XDG_RUNTIME_DIR=str(own / "run"), XDG_STATE_HOME=str(own / "state"))
    import pipelines  # noqa: F401  adds jobs
    from jobs import JOBS

    rows_file = args.out.with_suffix(".json")
    known = {r["job"]: r for r in json.loads(rows_file.read_text())} if rows_file.exists() else {}
    for name in JOBS:
        if name in (args.job or JOBS):
            known[name] = row(name, args.steps, args.way or [*WAYS], args.keep)
            rows = [known[key] for key in JOBS if key in known]
            rows_file.write_text(json.dumps(rows, indent=1) + "\n")
            if not args.way:
                args.out.with_suffix(".md").write_text(table(rows))
    bad = [
        r for r in known.values() if {r.get(w, {}).get("outcome") for w in ("auto", "run")} & {*BAD}
    ]
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
