# SPDX-License-Identifier: Apache-2.0
"""Runs the cases on the fake GPU, each plain and under its budget, and says what came of them; and
programs that test the fake itself, and parts of Reprise alone.

    run.py [--out FILE.md] [--jobs N] [NAME...]      # names: a part of a name is enough

Exits with 1 where something is not as it must be.
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import runpy
import shutil
import signal
import sys
import tempfile
import traceback
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch  # once, for all jobs that are forks of this process
from cases import CASES, LATEST, MOMENTS, PLANNED, REFUSED, Case
from parked import PARKED
from parts import PARTS
from races import RACES, Race

HERE = Path(__file__).resolve().parent
MIB = 1 << 20
TIMEOUT_S = 900
# Of a reference, which is to fit: what only the job under its budget is about.
LIMITS = ("FAKEGPU_MEMORY",)


@dataclass
class Outcome:
    """What a case came to."""

    case: Case
    wrong: list[str] = field(default_factory=list)
    found: dict[str, Any] = field(default_factory=dict)

    def expect(self, holds: bool, what: str) -> None:
        if not holds:
            self.wrong.append(what)


@dataclass(frozen=True)
class Job:
    """One process."""

    args: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    script: str = "job.py"

    @classmethod
    def plain(cls, case: Case) -> Job:
        """Without Reprise, on a device that is large enough."""
        args = (*case.args, "--eager") if case.eager else case.args
        return cls(args, tuple(item for item in case.env.items() if item[0] not in LIMITS))

    @classmethod
    def planned(cls, case: Case) -> Job:
        """Under its budget."""
        return cls((*case.args, *case.options, "--budget", case.budget), tuple(case.env.items()))

    @classmethod
    def races(cls, moment: str, wanted: list[Race]) -> Job:
        """Programs that need a wait, with copies and kernels at such moments."""
        names = tuple(race.name for race in wanted)
        env = (("FAKEGPU_WORK", moment), ("FAKEGPU_DEVICES", "2"))
        return cls(names, env, "races.py")

    @property
    def forks(self) -> bool:
        """Torch may be there already: what it reads when it is imported is not set otherwise."""
        return not any(name.startswith("PYTORCH") for name, _ in self.env)


Said = tuple[dict[str, Any], str]  # the last line of a job, and what it said; empty: it died


def run_all(jobs: list[Job], at_a_time: int) -> Iterator[tuple[Job, Said]]:
    """All of them, as they end."""
    todo, running = deque(jobs), {}
    # No TemporaryDirectory: every fork would take it away at its end.
    folder = Path(tempfile.mkdtemp(prefix="fakegpu-"))
    # A daemon of their own: another one may keep its data in a folder that is gone.
    (folder / "run").mkdir(mode=0o700)
    os.environ |= {"XDG_RUNTIME_DIR": str(folder / "run"), "XDG_STATE_HOME": str(folder / "state")}
    os.environ["REPRISE_LINGER"] = "60"
    try:
        while todo or running:
            while todo and len(running) < at_a_time:
                job = todo.popleft()
                place = folder / str(len(todo))
                place.mkdir()
                running[start(job, place)] = job, place
            pid, status = os.wait()
            if pid not in running:
                continue
            job, place = running.pop(pid)
            said = (place / "err").read_text(errors="replace")
            line = (place / "out").read_text(errors="replace").strip().rsplit("\n", 1)[-1]
            good = status == 0 and line.startswith("{")
            yield job, (json.loads(line) if good else {}, said)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def start(job: Job, place: Path) -> int:
    """Its process. A fork has imported torch already, which takes longer than most jobs."""
    pid = os.fork()
    if pid:
        return pid
    os.environ.update(job.env)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(place / name, os.O_CREAT | os.O_WRONLY, 0o600), number)
    script = str(HERE / job.script)
    if not job.forks:
        os.execv(sys.executable, [sys.executable, script, *job.args])
    sys.argv = [script, *job.args]
    signal.alarm(TIMEOUT_S)
    code = 1
    try:
        runpy.run_path(script, run_name="__main__")
        code = 0
    except BaseException as error:
        sys.last_value = error
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def judged(case: Case, plain: Said, planned: Said) -> Outcome:
    """What a case came to, beside its reference."""
    outcome = Outcome(case)
    for what, (found, said) in (("the reference died", plain), ("died", planned)):
        if not found:
            outcome.wrong.append(f"{what}: {said.strip().splitlines()[-1:]}")
            return outcome
    outcome.found = planned[0]
    judge(outcome, plain[0], planned[1])
    return outcome


def judge(outcome: Outcome, expected: dict[str, Any], said: str) -> None:
    """Is it as it must be?"""
    case, found, expect = outcome.case, outcome.found, outcome.expect
    lines = "\n".join(line for line in said.splitlines() if line.startswith("reprise:"))
    # Two jobs that have read freed memory have equal weights, too.
    expect(expected["finite"], "the reference has not finite weights")
    if case.repeats:
        expect(found["weights"] == expected["weights"], "other weights than plain")
    expect(found["failed"] == 0, f"{found['failed']} checks failed")
    # A step that is captured with its saved tensors on the host does not show what autograd holds
    # beside them (26 kB of 51 MiB here): the first planned step may find it, and the next has room.
    on_host = "saved tensors in host memory" in lines
    allowed = case.mismatched + case.over + on_host
    expect(found["over"] <= allowed, f"{found['over']} steps over the budget")
    expect(found["mismatched"] == case.mismatched, f"{found['mismatched']} steps mismatched")
    expect(case.says in lines, f"does not say {case.says!r}")
    expect(not case.silent or case.silent not in lines, f"says {case.silent!r}")
    if case.base:
        expect(found["base"] <= case.base * MIB, f"base {found['base'] / MIB:.1f} MiB")
    for name, count in found["waits"].items():
        # The program's own: a batch that is copied.
        most = expected["waits"].get(name, 0) if name == "cudaStreamSynchronize" else 0
        expect(count <= most, f"{name} {count} times in a planned step")
    if case.ends == PLANNED:
        expect(found["stage"] == PLANNED, f"{found['stage']} ({found['why']})")
        within = found["measured"] <= found["budget"] or allowed
        expect(within, "measured above the budget")
        expect(not case.checked or found["checks"] > 0, "not checked")
        expect(found["quiet_steps"] > 0, "no planned step to look at")
    elif case.ends == REFUSED:
        expect(found["predicted"] == 0, "has a plan")
        expect(bool(found["why"]), "no reason")


def shown(race: Race, moment: str, said: Said) -> list[str]:
    """What is not as it must be: right with the wait, wrong without it where that can be seen."""
    if not said[0]:
        return [f"died: {said[1].strip().splitlines()[-1:]}"]
    with_wait, without = said[0][race.name]
    wrong = [] if with_wait else ["wrong" + " although it waits" * bool(race.shown)]
    if race.shown and without != (moment not in race.shown):
        wrong.append(f"{'right' if without else 'wrong'} without the wait")
    return wrong


def race_all(wanted: list[Race]) -> list[bool]:
    """Whether each of the programs is as it must be, at each moment."""
    results = []
    for job, said in run_all([Job.races(moment, wanted) for moment in MOMENTS], 1):
        moment = job.env[0][1]
        for race in wanted:
            wrong = shown(race, moment, said)
            results.append(not wrong)
            print(f"{'; '.join(wrong) or 'ok':<12} {race.name} ({moment})", flush=True)
    return results


def row(outcome: Outcome) -> str:
    """Of the table."""
    case, found = outcome.case, outcome.found
    came = "; ".join(outcome.wrong) or ("refused" if case.ends == REFUSED else case.ends)
    mib = [
        f"{found[name] / MIB:.1f}" if found.get(name) else ""
        for name in ("base", "budget", "predicted", "measured")
    ]
    same = "equal" if case.repeats else "its own are not the same twice"
    waited = found.get("waits", {}).get("cudaDeviceSynchronize", 0)
    cells = [case.name, case.budget, came, *mib, same, str(waited), str(found.get("checks", ""))]
    return "| " + " | ".join(cells) + " |"


def table(outcomes: list[Outcome]) -> str:
    """Of all of them."""
    fine = sum(not outcome.wrong for outcome in outcomes)
    return "\n".join(
        [
            "# Jobs on PyTorch's CUDA build over a fake GPU",
            "",
            f"`scripts/test fakegpu`, torch {torch.__version__}; not run on a GPU. Peaks are bytes "
            "asked of torch's CUDA allocator, in MiB.",
            "",
            f"{fine} of {len(outcomes)} as they must be.",
            "",
            "| job | budget | | base | budget | predicted | measured | weights beside plain |"
            " device synchronizations per planned step | checks |",
            "|---|---|---|---|---|---|---|---|---|---|",
            *map(row, outcomes),
            "",
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--jobs", type=int, default=2, help="cases at a time")
    parser.add_argument("names", nargs="*")
    asked = parser.parse_args()
    known_names = [one.name for one in (*CASES, *RACES, *PARTS, *PARKED)]
    for name in asked.names:
        if not any(name in known for known in known_names):
            parser.error(f"{name}: a part of none of {', '.join(known_names)}")

    def is_wanted(one: Case | Race) -> bool:
        return not asked.names or any(name in one.name for name in asked.names)

    # Of jobs that do not name a moment themselves.
    os.environ.setdefault("FAKEGPU_WORK", LATEST)
    wanted = [case for case in CASES if is_wanted(case)]
    races = [race for race in (*RACES, *PARTS, *PARKED) if is_wanted(race)]
    raced = race_all(races) if races else []
    outcomes, known = [], dict[Job, Said]()
    jobs = list(dict.fromkeys(job for c in wanted for job in (Job.plain(c), Job.planned(c))))
    for job, said in run_all(jobs, max(1, asked.jobs)):
        known[job] = said
        for case in wanted:
            plain, planned = Job.plain(case), Job.planned(case)
            if job in (plain, planned) and {plain, planned} <= known.keys():
                outcome = judged(case, known[plain], known[planned])
                outcomes.append(outcome)
                print(f"{'; '.join(outcome.wrong) or 'ok':<12} {case.name}", flush=True)
    outcomes.sort(key=lambda outcome: CASES.index(outcome.case))
    if asked.out is not None:
        asked.out.write_text(table(outcomes))
    results = [*raced, *(not outcome.wrong for outcome in outcomes)]
    print(f"{sum(results)} passed, {results.count(False)} failed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
