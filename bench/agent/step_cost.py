# SPDX-License-Identifier: Apache-2.0
"""What the agent adds to a training step while it records nothing.

    .venv/bin/python bench/agent/step_cost.py --build build

A small transformer trains on one thread, and a daemon listens beside it. Each round forks three
children of one warm parent: the same addresses, weights and heap, so that the way memory happened
to be laid out cannot look like a cost. They take turns of a few steps each, so that what else the
machine does falls on all of them, first as copies of each other, then as

    absent    the agent is never loaded
    loaded    the agent is loaded and started, and is told of every step
    window    the same, after a window in which CUPTI recorded kernels was begun and ended

A round's cost is the median over turns of one child's time over another's, after over before:
what differs from child to child divides out. Times are CPU times of the whole process, so a
thread of the agent's would count. What little the agent does in a step is one call: that is timed
by itself too, where it is made, because whole steps differ by percents on a busy machine. Printed
are medians over rounds with bootstrap intervals of 95 %, threads, and the memory of the device
that CUPTI has for us. CUPTI is the fake one of tests/profiler: what a real one leaves behind is
for tests/gpu/run to say. Asserts nothing.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from reprise.agent import abi

CONDITIONS = ("absent", "loaded", "window")
PAIRS = (("loaded", "absent"), ("window", "absent"), ("window", "loaded"))
STEPS = 4  # timed in a turn
ROOT = Path(__file__).resolve().parents[2]
Facts = dict[str, int]
Times = dict[str, int]
Row = dict[str, Times]  # of one turn, by condition


class Work:
    """A training step of a few milliseconds on one thread."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        layer = torch.nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
        self.model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)
        self.batch = torch.randn(8, 32, 64)

    def step(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.model(self.batch).square().mean().backward()
        self.optimizer.step()


def nobody(step: int) -> None:
    """Told of a step where the agent is not loaded."""


def timed(work: Work, steps: int, tell: Callable[[int], None]) -> Times:
    """Nanoseconds of CPU time of a few steps, after one that warms the caches."""
    work.step()
    told = 0
    begin = time.process_time_ns()
    for number in range(steps):
        before = time.thread_time_ns()
        tell(number)
        told += time.thread_time_ns() - before
        work.step()
    return {"steps": time.process_time_ns() - begin, "told": told}


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


def device_bytes(library: abi.Library) -> int:
    caps = abi.Caps(struct_size=ctypes.sizeof(abi.Caps))
    library.quick.reprise_capabilities(ctypes.byref(caps))
    return int(caps.cupti_device_bytes)


def start(socket: Path) -> abi.Library:
    library = abi.load()
    config = abi.Config(
        struct_size=ctypes.sizeof(abi.Config), abi=abi.ABI, socket_path=os.fsencode(socket)
    )
    code = library.blocking.reprise_start(ctypes.byref(config))
    if code not in (abi.OK, abi.DEGRADED):
        raise SystemExit(f"{library.path}: no session with the daemon at {socket} ({code})")
    return library


def record_a_window(library: abi.Library, build: Path, work: Work) -> int:
    """Kernels through the fake CUPTI; the device's memory it had meanwhile."""
    cupti = ctypes.CDLL(os.environ["REPRISE_CUPTI_PATH"])
    cupti.FakeCuptiLaunch.argtypes = [ctypes.c_char_p, ctypes.c_uint64]
    if library.quick.reprise_window_begin(abi.KIND_KERNELS | abi.KIND_OPS) != abi.OK:
        raise SystemExit(f"{build}: the window does not begin on the fake CUPTI")
    for number in range(20):
        library.quick.reprise_step(number)
        for _ in range(50):
            cupti.FakeCuptiLaunch(b"kernel", 1000)
        work.step()
    taken = device_bytes(library)
    library.quick.reprise_window_end()
    library.blocking.reprise_flush(2000)
    return taken


def serve(condition: str, work: Work, ask: int, say: int, build: Path, socket: Path) -> None:
    """A child's life: "t" times a turn, "c" makes the condition, "f" says the facts, and ends."""
    facts: Facts = {"threads_before": threads()}
    tell: Callable[[int], None] = nobody
    library: abi.Library | None = None
    command = b""
    while command != b"f":
        command = os.read(ask, 1)
        answer: Facts | Times = {}
        if command == b"t":
            answer = timed(work, STEPS, tell)
        elif command == b"c" and condition != "absent":
            if condition == "window":
                # By its soname, as the driver's own is found.
                ctypes.CDLL(str(build / "fake_cuda/libcuda.so.1"), mode=ctypes.RTLD_GLOBAL)
            library = start(socket)
            tell = library.quick.reprise_step
            if condition == "window":
                facts["device_bytes_in_window"] = record_a_window(library, build, work)
        elif command == b"f":
            facts["threads_after"] = threads()
            if library is not None:
                facts["device_bytes"] = device_bytes(library)
                library.blocking.reprise_stop()
            answer = facts
        elif command == b"":
            return  # the other side is gone
        os.write(say, json.dumps(answer).encode() + b"\n")


class Child:
    """`serve` in a fork of this process."""

    def __init__(self, condition: str, work: Work, build: Path, socket: Path) -> None:
        self.condition = condition
        theirs, self.ask = os.pipe()
        mine, say = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                os.close(self.ask)
                serve(condition, work, theirs, say, build, socket)
                code = 0
            except SystemExit as error:
                print(error, file=sys.stderr)
            finally:
                os._exit(code)
        os.close(theirs)
        os.close(say)
        self.answers = os.fdopen(mine, "rb")

    def do(self, command: bytes) -> Any:
        os.write(self.ask, command)
        line = self.answers.readline()
        if not line:
            raise SystemExit(f"the child of {self.condition!r} ended by itself")
        return json.loads(line)

    def end(self) -> Facts:
        facts: Facts = self.do(b"f")
        os.close(self.ask)
        self.answers.close()
        os.waitpid(self.pid, 0)
        return facts


def interval(values: list[float]) -> dict[str, float]:
    """The median, and the bootstrap interval of 95 %."""
    source = random.Random(0)
    medians = sorted(statistics.median(source.choices(values, k=len(values))) for _ in range(2000))
    return {"median": statistics.median(values), "low": medians[50], "high": medians[1949]}


def daemon(build: Path, folder: Path) -> tuple[subprocess.Popen[bytes], Path]:
    socket = folder / "agent.sock"
    flags = ("--listen=127.0.0.1:0", f"--data-dir={folder / 'data'}", f"--agent-socket={socket}")
    process = subprocess.Popen([build / "bin/reprised", *flags, "--log-level=error"])
    for _ in range(200):
        if socket.exists():
            return process, socket
        if process.poll() is not None:
            break
        time.sleep(0.05)
    process.kill()
    raise SystemExit(f"{build}/bin/reprised does not start")


def one_round(first: int, turns: int, work: Work, build: Path, socket: Path) -> Round:
    """Three children step in turn, before and after they become what they are."""
    order = CONDITIONS[first:] + CONDITIONS[:first]
    children = {name: Child(name, work, build, socket) for name in order}
    times: dict[str, list[Row]] = {"before": [], "after": []}
    for phase, rows in times.items():
        if phase == "after":
            for child in children.values():
                child.do(b"c")
        for turn in range(turns + 2):
            row = {name: child.do(b"t") for name, child in children.items()}
            if turn >= 2:  # pages of the parent's are copied
                rows.append(row)
            children = dict(reversed(children.items()))
    return Round(times["before"], times["after"], {n: c.end() for n, c in children.items()})


@dataclass(frozen=True)
class Round:
    """Times of each turn by condition, and what each child said at its end."""

    before: list[Row]
    after: list[Row]
    facts: dict[str, Facts]

    def cost(self, of: str, against: str) -> float:
        """By how many percent more `of` grew than `against`, turn by turn."""

        def ratio(rows: list[Row]) -> float:
            return statistics.median(row[of]["steps"] / row[against]["steps"] for row in rows)

        return 100 * (ratio(self.after) / ratio(self.before) - 1)

    def call(self) -> float:
        """Microseconds that telling the agent of a step takes there and then."""
        told = [row["loaded"]["told"] - row["absent"]["told"] for row in self.after]
        return statistics.median(told) / (1000 * STEPS)


def report(found: list[Round]) -> dict[str, Any]:
    said: dict[str, Any] = {
        "step_us": statistics.median(row["absent"]["steps"] for one in found for row in one.before)
        / (1000 * STEPS),
        "call_us": interval([one.call() for one in found]),
    }
    for of, against in PAIRS:
        said[f"{of}_against_{against}_percent"] = interval([one.cost(of, against) for one in found])
    with_agent = [one.facts[name] for one in found for name in ("loaded", "window")]
    said["threads_added"] = max(f["threads_after"] - f["threads_before"] for f in with_agent)
    said["device_bytes_outside"] = max(f["device_bytes"] for f in with_agent)
    said["device_bytes_in_window"] = max(
        one.facts["window"]["device_bytes_in_window"] for one in found
    )
    said["rounds"] = len(found)
    said["load"] = round(os.getloadavg()[0], 1)
    return said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build")
    parser.add_argument("--seconds", type=float, default=80, help="no round begins after them")
    parser.add_argument("--turns", type=int, default=20, help="of each child, before, after")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    build = options.build.resolve()
    os.environ["REPRISE_AGENT"] = str(build / "lib/libreprise_agent.so")
    os.environ["REPRISE_CUPTI_PATH"] = str(build / "lib/libfake_cupti_130.so")
    torch.set_num_threads(1)  # a pool of threads would not live through a fork

    with tempfile.TemporaryDirectory() as name:
        process, socket = daemon(build, Path(name))
        try:
            work = Work()
            for _ in range(20):
                timed(work, STEPS, nobody)
            rounds: list[Round] = []
            until = time.monotonic() + options.seconds
            while not rounds or time.monotonic() < until:
                first = len(rounds) % len(CONDITIONS)
                rounds.append(one_round(first, options.turns, work, build, socket))
            said = report(rounds)
        finally:
            process.terminate()
            process.wait(10)

    if options.json:
        print(json.dumps(said))
        return
    print(f"a step {said['step_us']:.0f} us of CPU")
    rows = {"reprise_step in it": (said["call_us"], "us")}
    for of, against in PAIRS:
        rows[f"{of} against {against}"] = (said[f"{of}_against_{against}_percent"], "%")
    for what, (row, unit) in rows.items():
        print(f"{what:22s} {row['median']:+.2f} {unit} [{row['low']:+.2f}, {row['high']:+.2f}]")
    print(f"a thousandth of a step from {said['call_us']['median']:.0f} ms on")
    print(
        f"threads added {said['threads_added']}; bytes of the device {said['device_bytes_outside']}"
        f" ({said['device_bytes_in_window']} inside a window); {said['rounds']} rounds; "
        f"load {said['load']}"
    )


if __name__ == "__main__":
    main()
