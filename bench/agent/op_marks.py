# SPDX-License-Identifier: Apache-2.0
"""What an op's begin and end cost a Python program: nanoseconds per pair.

    .venv/bin/python bench/agent/op_marks.py       # REPRISE_AGENT names another build

A pair is what the PyTorch adapter does around every op of a traced step: `agent.op_begin(number,
name)` and `agent.op_end(number)`. Records go into the ring of a session whose file sink nothing
writes to while a batch is timed; the loop's own cost is taken off. Beside it the same pair through
ctypes. Times are CPU times of the thread, the median and the 95th percentile of batches. Prints;
asserts nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from reprise.agent import abi
from reprise.agent.agent import Agent
from reprise.agent.marks import OpBegin, OpEnd

BATCHES, PAIRS = 300, 1000


def pairs(begin: OpBegin, end: OpEnd, name: int) -> Callable[[], None]:
    def run() -> None:
        for number in range(PAIRS):
            begin(number, name)
            end(number)

    return run


def empty() -> None:
    for _ in range(PAIRS):
        pass


def measure(run: Callable[[], None], between: Callable[[], None]) -> dict[str, float]:
    """Nanoseconds of one of the PAIRS turns, without those of an empty loop."""
    found = []
    for _ in range(BATCHES):
        begin = time.thread_time_ns()
        run()
        took = time.thread_time_ns() - begin
        begin = time.thread_time_ns()
        empty()
        found.append((took - (time.thread_time_ns() - begin)) / PAIRS)
        between()
    found.sort()
    return {
        "p50_ns": round(statistics.median(found), 1),
        "p95_ns": round(found[len(found) * 95 // 100], 1),
        "least_ns": round(found[0], 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    json_wanted = parser.parse_args().json
    library = abi.load()
    through_ctypes = (library.quick.reprise_op_begin, library.quick.reprise_op_end)

    def through_six(op: int, name: int = 0, *_: int) -> None:
        through_ctypes[0](op, name, 0, 0, -1, 0)

    rows = {"inert": measure(pairs(library.op_begin, library.op_end, 0), lambda: None)}
    with tempfile.TemporaryDirectory() as folder:
        agent = Agent.start(sink=f"file:{Path(folder) / 'sink'}", ring_slots=1 << 20)
        name = agent.intern("aten.relu.default")
        flush = agent.flush
        rows["recorded"] = measure(pairs(agent.op_begin, agent.op_end, name), flush)
        rows["recorded, through ctypes"] = measure(
            pairs(through_six, through_ctypes[1], name), flush
        )
        dropped = agent.capabilities().dropped
        agent.stop()
    load = round(os.getloadavg()[0], 1)
    if json_wanted:
        print(json.dumps({"rows": rows, "dropped": dropped, "load": load}))
        return
    for what, row in rows.items():
        figures = "   ".join(f"{key[:-3]} {value:7.1f} ns" for key, value in row.items())
        print(f"op begin/end pair, {what:26s} {figures}")
    print(f"{dropped} records dropped; load {load}")


if __name__ == "__main__":
    main()
