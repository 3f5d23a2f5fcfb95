# SPDX-License-Identifier: Apache-2.0
"""What every check stands on: its agent and its workload, windows around code, times."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import records
import workload

from reprise import abi

Result = dict[str, Any]


class Context:
    def __init__(self, out: Path, fake: bool, name: str) -> None:
        self.out, self.fake = out, fake
        self.sink = out / f"{name}.records"
        self.sink.unlink(missing_ok=True)
        self.make = workload.choose(fake)

    def start(self, record: bool = True) -> tuple[abi.Library, workload.Ops]:
        library = workload.start(str(self.sink) if record else None)
        return library, workload.Ops(library)


def interval(values: list[float]) -> Result:
    """Median with a bootstrap interval of 95 %."""
    source = random.Random(0)
    medians = sorted(statistics.median(source.choices(values, k=len(values))) for _ in range(1000))
    ordered = sorted(values)
    return {
        "median": statistics.median(values),
        "low": medians[25],
        "high": medians[974],
        "p95": ordered[int(0.95 * (len(ordered) - 1))],
        "n": len(values),
    }


def ratio(on: list[float], off: list[float]) -> float:
    return statistics.median(on) / statistics.median(off) - 1


def window(library: abi.Library, ops: workload.Ops, kinds: int, body: Callable[[], None]) -> int:
    """A window around `body`; its status."""
    status = int(library.quick.reprise_window_begin(kinds))
    ops.on = bool(kinds & abi.KIND_OPS)
    body()
    ops.on = False
    library.quick.reprise_window_end()
    return status


def read_records(context: Context, library: abi.Library, work: workload.Workload) -> Any:
    work.synchronize()
    library.blocking.reprise_flush(5000)
    library.blocking.reprise_stop()
    return records.read(context.sink)
