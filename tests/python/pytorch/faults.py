# SPDX-License-Identifier: Apache-2.0
"""Makes functions of the Python package fail in the middle of a training, and sees that it ends as
without Reprise.

    python tests/python/pytorch/faults.py [--count 1000] [--lasting 0.3] [--native 300]
        [--seed 0] [--kind NAME] [--where FILE] [--table FILE]

A fault is an exception at the n-th call of one function of the package, at its first instruction:
one that no function of ours can catch but those that call it. An OSError may be caught there
without a word, as one of a disk is; any other is said once. A lasting fault comes at every later
call, too. In the native engine (`--native`, in a build of its own: inject.h) it is a call
of one of its entries that fails, or an allocation within it that finds no memory.

Every function that a kind of job (`fault_jobs.py`) reaches is taken at its first call, then others
at random ones. What a job calls depends on how busy the machine is: a fault that never happened is
counted apart, and another one is drawn in its place. Each fault has a process of its own, forked,
with a limit of time: what ends it, or keeps it from ending, counts. Compared are losses,
parameters, buffers, optimizer state and generator, and what was said.

Left out are the files that catch (`CAUGHT_BY`), the hooks of the native engine, which catch as
well, and what the interpreter itself calls to find a name of the package (`reprise.__getattr__`).
No fault lasts in what alone makes given-up tensors again (`ONLY_WAY_BACK`), or takes the gate of
the native engine out of the way (`RESTORES`).
"""

from __future__ import annotations

import argparse
import atexit
import json
import multiprocessing
import multiprocessing.util
import os
import random
import select
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

if str(Path(__file__).parent) not in sys.path:
    sys.path.insert(0, str(Path(__file__).parent))

import fault_jobs_compiled  # noqa: F401  # adds its kinds
import fault_jobs_daemon  # noqa: F401
import fault_jobs_ranks  # noqa: F401
from fault_jobs import KINDS, SOURCE, prepare

# Of processor time, and on the wall of a machine that is busy with other things.
LIMIT_S, LIMIT_WALL_S = 60.0, 300.0
# So often are faults drawn in the place of those that never happened.
AGAIN = 8
# Of these nothing fails.
CAUGHT_BY = (
    "__init__.py",
    "torch/internals/entry.py",
    "base/saying.py",
    "torch/internals/calls.py",
    "torch/internals/guard.py",
    "torch/internals/modes.py",
    "torch/internals/saved_hooks.py",
    "torch/internals/stand_ins.py",
)
# What was given up is made again by these, and by nothing else: where one of them fails for good,
# the backward cannot be had, and the program gets the error.
ONLY_WAY_BACK = (
    "torch/internals/ambient.py",  # a call runs in its own state
    "torch/tape/calls.py",
    "torch/tape/on_demand.py",
    "torch/tape/records.py",
    "torch/tape/replay.py",
)
ONLY_WAY_BACK_CALLS = (
    ("torch/tape/python_engine.py", "PythonEngine.take"),
    ("torch/tape/python_engine.py", "PythonEngine._again"),
    ("torch/tape/python_engine.py", "PythonEngine._copy_for"),
    ("torch/tape/tape_run.py", "Run.rescue"),
)
# The first job after a change of the tape keeps the costs that it measured; the next ones do not.
KEEPS_COSTS = ("torch/tape/costs_kept.py", "KeptCosts.keep")
PACKAGE = str(SOURCE / "reprise") + os.sep


class Injected(Exception):
    """An error that only `Fault` raises."""


ERRORS: tuple[type[Exception], ...] = (
    Injected,
    RuntimeError,
    KeyError,
    OSError,
    AssertionError,
)

# A function: its file below the package, and its name there.
Where = tuple[str, str]


@dataclass(frozen=True)
class Fault:
    """An exception that is raised in one function: at one call of it, or at all calls from there
    on."""

    kind: str
    where: Where
    call: int
    error: str
    lasting: bool = False

    def __str__(self) -> str:
        calls = f"call {self.call}{' and all later ones' if self.lasting else ''}"
        return f"{self.kind}: {self.where[0]} {self.where[1]}, {calls}, {self.error}"


@dataclass
class Ended:
    """How a job ended."""

    how: str  # "ended", "raised ...", "signal 6", "hung"
    digest: str = ""
    said: list[str] = field(default_factory=list)
    reached: dict[Where, int] = field(default_factory=dict)
    fired: bool = False
    why: str = ""


def where_of(code: CodeType) -> Where | None:
    """Returns the name of a function; None if it is not a function of the package that may fail
    here."""
    if not code.co_filename.startswith(PACKAGE) or code.co_name.startswith("<"):
        return None if code.co_name != "<lambda>" or not _inside(code) else _named(code)
    return None if _named(code)[0] in CAUGHT_BY else _named(code)


def _inside(code: CodeType) -> bool:
    return code.co_filename.startswith(PACKAGE) and _named(code)[0] not in CAUGHT_BY


def _named(code: CodeType) -> Where:
    return code.co_filename.removeprefix(PACKAGE), code.co_qualname


def count(reached: Counter[Where]) -> Callable[[FrameType, str, Any], None]:
    """Returns a trace function that counts calls."""

    def trace(frame: FrameType, event: str, _: Any) -> None:
        where = where_of(frame.f_code)
        if where is not None:
            reached[where] += 1

    return trace


def fail(fault: Fault, fired: list[bool]) -> None:
    """Makes a fault happen from now on in this thread."""
    file, name = PACKAGE + fault.where[0], fault.where[1]
    error = next(e for e in ERRORS if e.__name__ == fault.error)
    short, left = name.rpartition(".")[2], fault.call

    def trace(frame: FrameType, event: str, _: Any) -> None:
        nonlocal left
        code = frame.f_code
        if code.co_name == short and code.co_qualname == name and code.co_filename == file:
            left -= 1
            if left <= 0:
                fired.append(True)
                sys.settrace(None)
                raise error(f"injected into {name}")

    def again(frame: FrameType, event: str, _: Any) -> None:
        if sys.gettrace() is None:  # it has raised
            sys.settrace(trace)

    sys.settrace(trace)
    if fault.lasting:
        sys.setprofile(again)


# ---- The native engine ---------------------------------------------------------------

COMPILED, ALLOCATES = "compiled", "operator new"
# They take the gate out of the way: each may fail once, and there is no other way to do so.
RESTORES = ("close", "aside", "unwatch")


def use_native() -> None:
    """Makes this process use the build in which errors can be injected."""
    from reprise.torch.compiled import fast

    header = Path(__file__).with_name("inject.h")
    flags = (f'-DREPRISE_INJECT="{header}"', "-Wl,-Bsymbolic")
    fast.FAST = replace(fast.FAST, name="fast-inject", flags=flags)
    fast.FAST.build(fast.FAST.cache_folder())  # type: ignore[arg-type]
    if fast.library() is None:
        raise SystemExit("the native engine cannot be loaded")


def native() -> Any:
    """Returns the module of that build; None for the ordinary build."""
    from reprise.torch.compiled import fast

    return fast._module if hasattr(fast._module, "inject") else None


def fail_natively(fault: Fault | None) -> None:
    """Resets the counts of the native engine and sets the fault."""
    if native() is None:
        return
    if fault is None:
        native().inject(0, "", 0, False)
    elif fault.where[1] == ALLOCATES:
        native().inject(fault.call, "", 0, False)
    else:
        native().inject(0, fault.where[1], fault.call, fault.lasting)


def run(kind: str, fault: Fault | None = None, armed: bool = True, counts: bool = False) -> Ended:
    """Runs a job in a separate process."""
    sys.stdout.flush()
    reader, writer = os.pipe()
    # No TemporaryDirectory: the child has its finalizer, too, while its daemon still writes there.
    state = tempfile.mkdtemp()
    with tempfile.TemporaryFile() as log:
        pid = os.fork()
        if not pid:
            os.close(reader)
            os.dup2(log.fileno(), 2)
            os.environ |= {"XDG_STATE_HOME": state, "XDG_RUNTIME_DIR": state}
            _child(writer, kind, fault, armed, counts)
        os.close(writer)
        ended = _outcome(pid, reader)
        log.seek(0)
        text = log.read().decode(errors="replace")
    shutil.rmtree(state, ignore_errors=True)
    ended.said = text.splitlines()
    return ended


def _child(writer: int, kind: str, fault: Fault | None, armed: bool, counts: bool) -> None:
    """Runs the job in the child process; never returns."""
    reached: Counter[Where] = Counter()
    fired: list[bool] = []
    code, result = 0, Ended("ended")
    try:
        sys.__stderr__ = sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
        job = KINDS[kind](armed)
        if fault is not None and fault.where[0] == COMPILED:
            fail_natively(fault)
        elif fault is not None:
            fail(fault, fired)
        elif counts:
            fail_natively(None)
            sys.settrace(count(reached))
        try:
            result.digest = job()
            atexit.unregister(multiprocessing.util._exit_function)
            atexit._run_exitfuncs()
        finally:
            sys.setprofile(None)
            sys.settrace(None)
        if native() is not None:
            failed, allocations, entries = native().injected()
            fired += [True] * failed
            reached[COMPILED, ALLOCATES] = allocations
            reached.update({(COMPILED, entry): n for entry, n in entries.items()})
    except BaseException as error:
        import traceback

        result.how = f"raised {type(error).__name__}"
        result.why = "".join(traceback.format_exception(error))
    result.fired = bool(fired)
    found = {**result.__dict__, "reached": [[*w, n] for w, n in reached.items()]}
    with os.fdopen(writer, "w") as out:
        json.dump(found, out)
    sys.stderr.flush()
    os._exit(code)


def _outcome(pid: int, reader: int) -> Ended:
    """Waits for the child, up to its time limit, and returns how it ended."""
    deadline = time.monotonic() + LIMIT_WALL_S
    data = b""
    while time.monotonic() < deadline and _worked(pid) < LIMIT_S:
        ready, _, _ = select.select([reader], [], [], 5.0)
        if ready:
            part = os.read(reader, 1 << 16)
            data += part
            if not part:
                break
    else:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(reader)
        return Ended("hung")
    os.close(reader)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return Ended(f"signal {os.WTERMSIG(status)}")
    found = json.loads(data)
    found["reached"] = {(file, name): n for file, name, n in found["reached"]}
    return Ended(**found)


def _worked(pid: int) -> float:
    """Returns the seconds of processor time of a process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# ---- Which faults ------------------------------------------------------------------


def chosen(
    reached: dict[str, dict[Where, int]],
    number: int,
    seed: int,
    lasting: float = 0.0,
    known: Collection[Fault] = (),
) -> list[Fault]:
    """Returns the faults to inject: of every kind the first call of every function it reaches, then
    others; a sample if there are more, always the same for a seed. `lasting` is the share that
    stays; `known` are those that were drawn before."""
    rng = random.Random(seed)
    own = {k: {w: n for w, n in of.items() if w[0] != COMPILED} for k, of in reached.items()}
    had = {(f.kind, f.where, f.call) for f in known}
    first = [Fault(k, w, 1, rng.choice(ERRORS).__name__) for k in own for w in sorted(own[k])]
    first = [f for f in first if (f.kind, f.where, f.call) not in had]
    rng.shuffle(first)
    # Functions before kinds: none is left out as long as there is room for all.
    seen: set[Where] = set()
    ahead = [f for f in first if not (f.where in seen or seen.add(f.where))]  # type: ignore[func-returns-value]
    behind = [f for f in first if f not in set(ahead)]
    found = (ahead + behind)[:number]
    repeated = [(k, w, n) for k in own for w, n in sorted(own[k].items()) if n > 1]
    while repeated and len(found) < number:
        kind, where, calls = rng.choice(repeated)
        fault = Fault(kind, where, rng.randint(2, calls), rng.choice(ERRORS).__name__)
        if (kind, where, fault.call) not in had:
            had.add((kind, where, fault.call))
            found.append(fault)
    stays = [rng.random() < lasting and not only_way_back(f.where) for f in found]
    return [replace(f, lasting=lasts) for f, lasts in zip(found, stays, strict=True)]


def chosen_native(
    reached: dict[str, dict[Where, int]],
    number: int,
    seed: int,
    known: Collection[Fault] = (),
) -> list[Fault]:
    """Returns the faults in the native engine: every entry of every kind, once and permanently,
    then allocations."""
    rng = random.Random(seed)
    found, allocates = [], []
    for kind, of in reached.items():
        for where, calls in sorted(of.items()):
            if where[0] == COMPILED and where[1] != ALLOCATES:
                found.append(Fault(kind, where, rng.randint(1, calls), "RuntimeError"))
                if where[1] not in RESTORES:
                    found.append(Fault(kind, where, 1, "RuntimeError", lasting=True))
            elif where == (COMPILED, ALLOCATES) and calls:
                allocates.append((kind, where, calls))
    found = [fault for fault in found if fault not in known]
    rng.shuffle(found)
    found = found[: number // 2]
    while allocates and len(found) < number:
        kind, where, calls = rng.choice(allocates)
        fault = Fault(kind, where, rng.randint(1, calls), "bad_alloc")
        if fault not in found and fault not in known:
            found.append(fault)
    return found


def only_way_back(where: Where) -> bool:
    """Returns whether a discarded tensor is lost if this function fails at every call."""
    return where[0] in ONLY_WAY_BACK or where in ONLY_WAY_BACK_CALLS


SAME, NEVER = "same", "not reached"


@dataclass
class Judged:
    """The result of one fault."""

    fault: Fault
    verdict: str  # "same", or what is wrong
    lines: int  # that name it
    ended: Ended

    @property
    def happened(self) -> bool:
        """Whether the job reached the fault."""
        return self.verdict != NEVER

    @property
    def wrong(self) -> bool:
        """Whether the fault has hurt the job."""
        return self.happened and self.verdict != SAME

    @property
    def handled(self) -> bool:
        """Whether it ended where it came, without a word: files fail with OSErrors, and those who
        call what works with them are ready for it."""
        return self.happened and self.lines == 0 and self.fault.error == OSError.__name__

    @property
    def missaid(self) -> bool:
        """Whether it was not said once, as an error of ours is."""
        return self.happened and self.lines != 1 and not self.handled


def judged(fault: Fault, expected: str) -> Judged:
    ended = run(fault.kind, fault)
    for _ in range(3):
        # What a job calls depends on how busy the machine is: costs are measured as time allows.
        if ended.how == "ended" and not ended.fired:
            ended = run(fault.kind, fault)
    if ended.how == "ended" and not ended.fired:
        verdict = NEVER
    elif ended.how != "ended":
        verdict = ended.how
    elif ended.digest != expected:
        verdict = "other bits"
    else:
        verdict = SAME
    lines = sum("injected into" in line or "bad_alloc" in line for line in ended.said)
    if any("Traceback" in line or "Exception ignored" in line for line in ended.said):
        verdict += ", and a traceback"
    return Judged(fault, verdict, lines, ended)


def _judge(asked: tuple[Fault, str]) -> Judged:
    return judged(*asked)


def campaign(
    number: int,
    seed: int,
    kinds: list[str],
    told: Callable[[Judged], None],
    processes: int = 1,
    lasting: float = 0.0,
    compiled: int = 0,
    minutes: float = 0.0,
    where: str = "",
) -> tuple[dict[str, dict[Where, int]], list[Judged]]:
    """Runs every kind and judges every fault. `number`: how many of those that happen; `compiled`:
    how many in the native engine; `minutes`: what is not judged by then is skipped; `where`: only
    in files with this in their name."""
    deadline = time.monotonic() + (minutes * 60 if minutes else float("inf"))
    prepare()
    if compiled:
        use_native()
    reached, expected = {}, {}
    for kind in kinds:
        plain, armed = run(kind, armed=False), run(kind, counts=True)
        if KEEPS_COSTS in armed.reached:
            armed = run(kind, counts=True)  # which finds them, as all the next ones will
        if plain.how != "ended" or armed.how != "ended" or plain.digest != armed.digest:
            raise SystemExit(f"{kind}: {plain.how}, {armed.how}\n{plain.why}{armed.why}")
        expected[kind] = plain.digest
        reached[kind] = {w: n for w, n in armed.reached.items() if where in w[0]}
    found: list[Judged] = []
    drawn: set[Fault] = set()
    # Threads of a pool are of this process alone; those that fork have none.
    # What it does at the end of a process is not for those that are forked here.
    pool = multiprocessing.get_context("fork").Pool(processes) if processes > 1 else None
    for again in range(AGAIN):
        left, left_compiled = (
            asked - sum(j.happened and (j.fault.where[0] == COMPILED) is of for j in found)
            for asked, of in ((number, False), (compiled, True))
        )
        if left <= 0 and left_compiled <= 0:
            break
        faults = chosen(reached, left, seed + again, lasting, drawn)
        faults += chosen_native(reached, left_compiled, seed + again, drawn)
        drawn.update(faults)
        random.Random(seed).shuffle(faults)
        todo = [(fault, expected[fault.kind]) for fault in faults]
        for one in map(_judge, todo) if pool is None else pool.imap(_judge, todo):
            found.append(one)
            told(one)
            if time.monotonic() > deadline:
                break
        if time.monotonic() > deadline:
            break
    if pool is not None:
        pool.terminate()
    return reached, found


def functions() -> set[Where]:
    """Returns every function in the sources of the package."""

    def inner(code: CodeType) -> Iterator[CodeType]:
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                yield constant
                yield from inner(constant)

    found = set()
    for path in SOURCE.joinpath("reprise").rglob("*.py"):
        for code in inner(compile(path.read_text(), str(path), "exec")):
            is_function = code.co_flags & 0x2 and code.co_name[:1] != "<"  # not a class body
            if is_function and where_of(code) is not None:
                found.add(_named(code))
    return found


def table(reached: dict[str, dict[Where, int]], found: list[Judged], how: str) -> str:
    """Returns the results as a table."""
    drawn, found = len(found), [j for j in found if j.happened]
    verdicts = Counter(j.verdict for j in found)
    lines = Counter(j.lines for j in found)
    everywhere = {w for kind in reached.values() for w in kind if w[0] != COMPILED}
    entries = {w for kind in reached.values() for w in kind if w[0] == COMPILED}
    native = [j for j in found if j.fault.where[0] == COMPILED]
    allocations = sum(j.fault.where[1] == ALLOCATES for j in native)
    lasting = sum(j.fault.lasting for j in found)
    alone = sum(only_way_back(where) for where in everywhere)
    rows = [
        "# Faults of our own, injected",
        "",
        f"`{how}`",
        "",
        "An exception at the n-th call of a function of the Python package, in a small training",
        "job; afterwards losses, parameters, buffers, optimizer state and generator are compared",
        "with the same job without Reprise. CPU; not run on a GPU.",
        "",
        f"{len(found)} faults happened and were judged; {drawn - len(found)} more were drawn that "
        "their job never came to: they count for nothing. In "
        f"{len({j.fault.where for j in found} & everywhere)} of the {len(everywhere)} functions "
        f"that the jobs reach; the package has {len(functions())}. "
        f"{lasting} of them last: the function fails at every later call, too. Left out are "
        f"faults that last in the {alone} functions that alone make again what was given up: where "
        "one of those fails for good, the program gets the error.",
        "",
        "No fault is injected into the files that catch them, where one would reach the program: "
        + ", ".join(f"`{name}`" for name in CAUGHT_BY)
        + ".",
        "",
        *(
            [
                f"{len(native)} of them in the native engine: {len(native) - allocations} calls of "
                f"its {len(entries - {(COMPILED, ALLOCATES)})} entries that the jobs reach fail, "
                f"{allocations} allocations within it find no memory.",
                "",
            ]
            if native
            else []
        ),
        "| outcome | faults |",
        "|---|---|",
        *(f"| {verdict} | {n} |" for verdict, n in sorted(verdicts.items(), key=lambda x: -x[1])),
        "",
        "| lines that name the fault | faults |",
        "|---|---|",
        *(f"| {n} | {of} |" for n, of in sorted(lines.items())),
        "",
        "| job | functions | faults | as without | other |",
        "|---|---|---|---|---|",
    ]
    for kind in reached:
        own = [j for j in found if j.fault.kind == kind]
        same = sum(j.verdict == SAME for j in own)
        what = (KINDS[kind].__doc__ or "").strip().splitlines()[0].rstrip(".")
        rows.append(
            f"| {kind}: {what} | {len(reached[kind])} | {len(own)} | {same} | {len(own) - same} |"
        )
    wrong = [j for j in found if j.wrong]
    if wrong:
        rows += ["", "Other than without:", ""]
        rows += [f"- {j.fault}: {j.verdict}" for j in wrong]
    for title, these in (
        ("Not one line:", [j for j in found if j.missaid]),
        ("No line, as of a disk that fails:", [j for j in found if j.handled]),
    ):
        if these:
            rows += ["", title, "", *(f"- {j.fault}: {j.lines}" for j in these)]
    return "\n".join(rows) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--lasting", type=float, default=0.0, help="share of faults that stay")
    parser.add_argument("--native", type=int, default=0, help="faults in the native engine")
    parser.add_argument("--minutes", type=float, default=0.0, help="stop after so many")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", action="append", choices=sorted(KINDS))
    parser.add_argument("--where", default="", help="only in files with this in their name")
    parser.add_argument("--table", type=Path)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--show", action="store_true", help="what was said and raised")
    options = parser.parse_args()
    done = 0

    def told(one: Judged) -> None:
        nonlocal done
        done += 1
        if one.wrong or one.missaid or options.show:
            print(f"{done:5} {one.fault}: {one.verdict}, {one.lines} lines", flush=True)
        if options.show:
            print(
                "      " + "\n      ".join([*one.ended.said[-40:], one.ended.why]),
                flush=True,
            )

    kinds = options.kind or list(KINDS)
    reached, found = campaign(
        options.count,
        options.seed,
        kinds,
        told,
        options.processes,
        options.lasting,
        options.native,
        options.minutes,
        options.where,
    )
    how = f"python tests/python/pytorch/faults.py --count {options.count} --seed {options.seed}"
    how += f" --lasting {options.lasting}" if options.lasting else ""
    how += f" --native {options.native}" if options.native else ""
    how += f" --minutes {options.minutes:g}" if options.minutes else ""
    text = table(reached, found, how)
    if options.table:
        options.table.write_text(text)
    print(text)
    return int(any(j.wrong for j in found))


if __name__ == "__main__":
    sys.exit(main())
