#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Adds many ended runs to the store of a stopped reprised, one of them with very many steps.

Rows are written as the server writes them (server/store/migrations); a StepReport is encoded by
hand, so that nothing but the standard library is needed.
"""

from __future__ import annotations

import argparse
import random
import sqlite3
import uuid
from pathlib import Path

FINISHED, KILLED, FAILED = 2, 3, 4
START_NS = 1_790_000_000_000_000_000


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def step_report(step: int, step_ns: int, peak: int) -> bytes:
    """reprise.v1.StepReport with step, step_ns, peak_bytes and end_ns."""
    fields = ((1, step), (3, step_ns), (4, peak), (14, step * step_ns))
    return b"".join(varint(number << 3) + varint(value) for number, value in fields)


def add_run(
    store: sqlite3.Connection, number: int, name: str, state: int, steps: int, draw: random.Random
) -> str:
    """Adds a run with one session and its steps; returns its id."""
    run_id = str(uuid.UUID(int=draw.getrandbits(128)))
    session = f"s-{run_id}"
    started = START_NS + number * 1_000_000_000
    code = {FINISHED: 0, KILLED: 137, FAILED: 1 + number % 7}[state]
    store.execute(
        "INSERT INTO runs (run_id, name, host, pid, world, state, started_ns, ended_ns, steps,"
        " exit_code, exit_signal) VALUES (?, ?, 'bench', ?, 1, ?, ?, ?, ?, ?, ?)",
        (run_id, name, 1000 + number, state, started, started + 10**9, steps, code,
         9 if state == KILLED else 0),
    )  # fmt: skip
    store.execute(
        "INSERT INTO sessions (session_id, run_id, host, pid, pid_start_ticks, boot_id, rank,"
        " local_rank, world, uid, labels, monotonic_ns, realtime_ns, state)"
        " VALUES (?, ?, 'bench', ?, 0, 'b', 0, 0, 1, 0, '', 0, ?, ?)",
        (session, run_id, 1000 + number, started, state),
    )
    peak = draw.randrange(1 << 28, 1 << 34)
    store.executemany(
        "INSERT INTO steps (run_id, session_id, step, planned, window, report)"
        " VALUES (?, ?, ?, 0, 0, ?)",
        (
            (
                run_id,
                session,
                step,
                step_report(
                    step, draw.randrange(400_000_000, 500_000_000), peak + draw.randrange(1 << 24)
                ),
            )
            for step in range(1, steps + 1)
        ),
    )
    return run_id


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="the data folder of a reprised that is stopped")
    parser.add_argument("--runs", type=int, default=5000)
    parser.add_argument("--steps", type=int, default=100_000, help="of the newest run")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    store = sqlite3.connect(options.folder / "reprise.db")
    with store:
        for number in range(options.runs - 1):
            state = draw.choice((FINISHED, FINISHED, FINISHED, KILLED, FAILED))
            name = f"{draw.choice(('gpt', 'resnet', 'unet', 'moe'))}-{number % 97}"
            add_run(store, number, name, state, draw.randrange(5, 40), draw)
        print(add_run(store, options.runs, "long-run", FINISHED, options.steps, draw))
    store.close()


if __name__ == "__main__":
    main()
