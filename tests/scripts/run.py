# SPDX-License-Identifier: Apache-2.0
"""Public training scripts, plain and under `reprise run`.

    scripts/test public --sources FOLDER            # all; the table to bench/results
    python -m tests.scripts.run --sources FOLDER --case nanoGPT/eager --case examples/vae

With --case the rows of other scripts stay in the table. FOLDER holds clones of the public
repositories, each as OWNER+NAME; whose clone is not there is left out, and said. A row passes when
the script prints the same under Reprise and ends with the same exit code, and has either been
planned or been told why not. Exit code 1 if any row fails.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .cases import CASES, Case
from .compare import FAILURES, Result, Row, judge

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
LIMIT_S = 900

__all__ = ["main", "run", "table"]


def _lines_of_reprise(text: str) -> tuple[tuple[str, ...], str]:
    """What Reprise said into the standard error of a job, and the rest."""
    said, rest = [], []
    for line in text.splitlines(keepends=True):
        (said if line.startswith("reprise: ") else rest).append(line)
    return tuple(line.rstrip("\n") for line in said), "".join(rest)


def _command(case: Case, sources: Path, errors: Path) -> list[str]:
    """The job: its standard error goes to a file, apart from that of `reprise run`."""
    own = not case.clone
    script = HERE / case.script if own else Path(case.script).name
    wrapped = [str(HERE / "wrap.py")]
    wrapped += [f"--set={text}" for text in case.set]
    wrapped += [f"--path={sources / case.path}"] if case.path else []
    wrapped += [f"--stop-after={case.stop_after}"] if case.stop_after else []
    start = [sys.executable]
    if case.torchrun:
        start += [
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc-per-node={case.torchrun}",
        ]
    line = shlex.join([*start, *wrapped, str(script), *case.arguments])
    return ["sh", "-c", f"exec {line} 2>{shlex.quote(str(errors))}"]


def _environment(case: Case, folder: Path, heap: Path) -> dict[str, str]:
    found = os.environ | {
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TQDM_DISABLE": "1",
        "COLUMNS": "100",
        "PYTHONPATH": os.pathsep.join([str(HERE / "start"), os.environ.get("PYTHONPATH", "")]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "TORCHINDUCTOR_CACHE_DIR": str(folder.parent / "inductor"),  # both runs compile the same
        **dict(case.environment),
    }
    if not case.torchrun:
        found |= {"LD_PRELOAD": str(heap), "REPRISE_SCRIPTS_HEAP": str(folder / "heap.json")}
    return found


def _done(command: list[str], environment: dict[str, str], cwd: Path) -> tuple[int, str, str]:
    """Exit code, standard output and standard error; code -1: no end in time."""
    process = subprocess.Popen(
        command,
        env=environment,
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        out, errors = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, errors = process.communicate()
        return -1, out, errors
    return process.returncode, out, errors


def run(case: Case, sources: Path, folder: Path, heap: Path, budget: str = "") -> Result:
    """The script once, in `folder`, which is emptied before; with a budget under `reprise run`."""
    shutil.rmtree(folder, ignore_errors=True)
    cwd = folder / "cwd"
    cwd.mkdir(parents=True)
    case.prepare(folder)
    if case.clone:
        for entry in (sources / case.script).parent.iterdir():
            if not (cwd / entry.name).exists():
                (cwd / entry.name).symlink_to(entry)
    command = _command(case, sources, folder / "errors")
    environment = _environment(case, folder, heap)
    if budget:
        reprise = os.environ.get("REPRISE_DAEMON", str(ROOT / "build/bin/reprised"))
        # The counter is of the job alone.
        preloads = [f"{k}={environment.pop(k)}" for k in ("LD_PRELOAD",) if k in environment]
        command = [
            str(Path(reprise).with_name("reprise")),
            *("run", "--json", "--budget", budget, "--", "env", *preloads, *command),
        ]
    code, out, errors = _done(command, environment, cwd)
    there = folder / "errors"
    said, rest = _lines_of_reprise(there.read_text(errors="replace") if there.exists() else "")
    said += tuple(line for line in errors.splitlines() if line.strip())
    last: dict[str, Any] = {}
    if budget and out.rstrip().rpartition("\n")[2].startswith('{"run_id"'):
        out, _, line = out.rstrip().rpartition("\n")
        out, last = f"{out}\n", json.loads(line)
    counted = folder / "heap.json"
    figures = json.loads(counted.read_text()) if counted.exists() else {}
    return Result(code, out, rest, said, last, figures)


def _log(path: Path, result: Result) -> None:
    text = f"exit code {result.code}\n--- stdout\n{result.out}\n--- stderr\n{result.errors}\n"
    said = "\n".join(result.said)
    path.write_text(f"{text}--- Reprise\n{said}\n{json.dumps(result.run, indent=1)}\n")


def _mib(count: int) -> str:
    return f"{count / 2**20:.1f}" if count else ""


def table(rows: list[Row], left_out: list[str], versions: str, kept: int = 0) -> str:
    """The rows as Markdown, with how many ended how. `kept`: of earlier calls."""
    counts: dict[str, int] = {}
    for row in rows:
        counts[row.outcome] = counts.get(row.outcome, 0) + 1
    text = "# Public training scripts under `reprise run`\n\n"
    text += f"`scripts/test public`, {time.strftime('%Y-%m-%d')}, CPU, one thread; {versions}.\n"
    text += "Each script runs plainly and under `reprise run --budget`, seeded, on small random\n"
    text += (
        "data. Output: standard output and standard error without times, progress bars and the\n"
    )
    text += "lines of Reprise. MiB: the most that one of the last four steps added to the heap\n"
    text += (
        "(checked ones among them), counted at malloc; empty where fewer than nine steps of an\n"
    )
    text += "optimizer were seen, and for several ranks.\n\n"
    if kept:
        text += f"{kept} of the {len(rows)} rows are of earlier calls.\n\n"
    text += "| outcome | scripts |\n|---|---|\n"
    text += "".join(f"| {name} | {count} |\n" for name, count in sorted(counts.items()))
    text += "\n| script | budget | exit code | output | outcome | plain MiB | under Reprise | |\n"
    text += "|---|---|---|---|---|---|---|---|\n"
    for row in rows:
        codes = str(row.plain_code)
        codes += " = " if row.plain_code == row.armed_code else " != "
        codes += str(row.armed_code)
        note = row.note.replace("|", "/").replace("\n", " ")
        text += f"| {row.case} | {row.budget} | {codes} | "
        text += "equal" if row.same_output else "differs"
        text += f" | {row.outcome} | {_mib(row.plain_bytes)} | {_mib(row.armed_bytes)} | {note} |\n"
    text += "\nArguments:\n\n"
    text += "".join(f"- {row.case}: `{row.arguments}`\n" for row in rows if row.arguments)
    if left_out:
        text += f"\nNot run, as there was no clone: {', '.join(left_out)}.\n"
    return text


def _versions() -> str:
    from importlib.metadata import PackageNotFoundError, version

    found = [f"python {sys.version.split()[0]}"]
    for name in ("torch", "torchvision", "transformers", "lightning", "accelerate"):
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"{name} missing")
    return ", ".join(found)


def _write(out: Path, rows: list[Row], left_out: list[str]) -> None:
    """The table, and its rows as data: those of scripts that were not run now stay."""
    out.mkdir(parents=True, exist_ok=True)
    data = out / "scripts.json"
    known = {row.case: row for row in rows}
    if data.exists():
        earlier = [Row(**entry) for entry in json.loads(data.read_text())]
        known = {row.case: row for row in earlier} | known
    order = [case.name for case in CASES if case.name in known]
    kept = [known[name] for name in order]
    data.write_text(json.dumps([asdict(row) for row in kept], indent=1) + "\n")
    missing = [name for name in left_out if name not in known]
    text = table(kept, missing, _versions(), len(kept) - len(rows))
    (out / "scripts.md").write_text(text)


def main() -> int:
    """Runs the cases asked for; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sources", type=Path, required=True, help="folder with the clones")
    parser.add_argument("--case", action="append", help="a part of a name; again for more")
    parser.add_argument("--budget", default="0.7x")
    parser.add_argument("--out", type=Path, help="folder for scripts.md")
    parser.add_argument("--logs", type=Path, help="folder for what the processes print")
    options = parser.parse_args()
    sources = options.sources.resolve()
    chosen = [c for c in CASES if not options.case or any(n in c.name for n in options.case)]
    if not chosen:
        parser.error(f"--case {options.case[0]}: no script is called so")

    def there(case: Case) -> bool:
        clone = case.clone or case.path
        return not clone or (sources / clone).is_dir()

    left_out = [case.name for case in chosen if not there(case)]
    chosen = [case for case in chosen if there(case)]
    work = Path(tempfile.mkdtemp(prefix="reprise-scripts-"))
    logs = options.logs or work / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    heap = work / "heap.so"
    source = ROOT / "tests/python/pytorch/heap_counter.c"
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", str(source), "-o", str(heap)], check=True)
    rows = []
    for number, case in enumerate(chosen, 1):
        stem = case.name.replace("/", "-")
        plain = run(case, sources, work / "job", heap)
        _log(logs / f"{stem}.plain.log", plain)
        armed = None
        if plain.code == case.code:
            armed = run(case, sources, work / "job", heap, options.budget)
            _log(logs / f"{stem}.armed.log", armed)
        row = judge(case, options.budget, plain, armed)
        rows.append(row)
        print(f"[{number}/{len(chosen)}] {row.case}: {row.outcome}. {row.note}", flush=True)
        if options.out:
            _write(options.out, rows, left_out)
    shutil.rmtree(work / "job", ignore_errors=True)
    failed = [row for row in rows if row.failed]
    for name in left_out:
        print(f"NOT RUN {name}: no clone of it in {sources}")
    for row in failed:
        print(f"FAILED {row.case}: {FAILURES[row.outcome]} (logs in {logs})", file=sys.stderr)
    print(f"{len(rows) - len(failed)} passed, {len(failed)} failed, {len(left_out)} not run")
    return 1 if failed or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
