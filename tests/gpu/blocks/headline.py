# SPDX-License-Identifier: Apache-2.0
"""The figure of 2018 at full size, by bench/headline: CIFAR's ResNet, batch 1280, as deep as it
went and as deep as usual; plain twice, by hand, and Reprise at both peaks and at a tenth."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from runner import MEMORY, Block, Figures, Here, Row
from sizes import FULL, sizes
from training import added

ROOT = Path(__file__).resolve().parents[3]
STEPS = 5
# A row's name here, of the benchmark's.
COLUMNS = {
    "requested": "peak_bytes",
    "allocated": "allocated_bytes",
    "reserved": "reserved_bytes",
    "driver": "driver_bytes",
    "announced": "predicted_peak_bytes",
}


def train(here: Here, way: str, depth: int) -> None:
    """One way at one depth (a place in the sizes), in this process."""
    sys.path[:0] = [str(ROOT / "bench/headline"), str(ROOT / "examples")]
    from on_gpu import attempt
    from ways import bits, budget, is_reprise

    size = sizes(here.rehearsal)
    blocks = size.resnet_blocks[depth]
    found = {}
    for name in ("plain", "plain-again", "sqrt", "block"):
        known = here.report.known.get(f"{here.block}/{blocks} {name}")
        if known is not None:
            found[name] = known["row"]
    within: Any = None
    if is_reprise(way):
        within = budget(way, found)
        if within is None:
            target = way.partition("@")[2].replace("tenth", "plain")
            here.found(f"{blocks} {target}")  # says that it is needed
    row: Figures = attempt(
        "resnet", way if within is None else str(within), blocks, size.resnet_batch, STEPS
    )
    here.say(row=row)
    if "error" in row:
        here.say(outcome=[MEMORY, row["error"]])
        return
    here.say(step_ms=row["step_ns"] / 1e6)
    here.say(**{name: row[key] or None for name, key in COLUMNS.items() if key in row})
    plain = found.get("plain", {}).get("step_ns")
    if plain:
        here.say(added=added(row["step_ns"], plain))
        here.say(bits=bits(way, found | {way: row}))
    if "sentence" in row:
        here.say(
            announced_added=added(row["predicted_step_ns"], row["base_step_ns"]),
            ops=row["ops"],
            planned_after_s=row.get("planned_after_s"),
            planned_in_series=row["planned_in_series"],
            over=row["over_budget_steps"],
            checks=row["checks"],
            wrong=row["failed_checks"],
            in_python=row["in_python"],
            sentence=row["sentence"],
        )


def way(name: str, depth: int) -> Callable[[Here], None]:
    return lambda here: train(here, name, depth)


WAYS = ("plain", "block", "sqrt", "reprise@block", "reprise@sqrt", "reprise@tenth")
HEADLINE = Block(
    "headline",
    "ResNet, batch 1280: the figure that gradient checkpointing became known by.",
    115.0,
    tuple(
        Row(f"{blocks} {name}", way(name, depth), 40)
        for depth, blocks in enumerate(FULL.resnet_blocks)
        for name in (WAYS[0], *(("plain-again",) if depth == 0 else ()), *WAYS[1:])
    ),
)
