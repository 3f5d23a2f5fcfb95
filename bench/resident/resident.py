# SPDX-License-Identifier: Apache-2.0
"""What the process itself holds: resident memory per step and CPU time, by way.

    python bench/resident/resident.py [--ways WAY ...] [--steps 14]

A small convolutional network whose step peaks at 314 MiB trains on the CPU, each way in a process
of its own. VmHWM is reset before every step; the maximum is over the whole process. Losses of all
ways must be equal, bit for bit.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

ONE_MB = {"MALLOC_MMAP_THRESHOLD_": "1000000", "MALLOC_TRIM_THRESHOLD_": "1000000"}
# By way: budget, environment.
WAYS: dict[str, tuple[str | None, dict[str, str]]] = {
    "plain": (None, {}),
    "plain, thresholds": (None, ONE_MB),
    "planned": ("0.5x", {}),
    "planned, thresholds": ("0.5x", ONE_MB),
}
CHANNELS, SIZE, BATCH, LAYERS = 16, 128, 8, 18


def hwm() -> int:
    """The high-water mark of this process since the last reset, in bytes."""
    text = Path("/proc/self/status").read_text()
    return int(text.split("VmHWM:")[1].split()[0]) << 10


def one(steps: int, budget: str | None) -> dict[str, Any]:
    """Trains in this process."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    torch.set_num_threads(1)
    layers: list[nn.Module] = [nn.Conv2d(3, CHANNELS, 3, padding=1)]
    for _ in range(LAYERS):
        layers += [
            nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False),
            nn.BatchNorm2d(CHANNELS),
            nn.ReLU(),
        ]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(CHANNELS, 10))
    if budget is not None:
        import reprise

        reprise.auto(model, budget=budget, verify_every=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    losses, peaks, times, most = [], [], [], hwm()
    for _ in range(steps):
        x, y = torch.randn(BATCH, 3, SIZE, SIZE), torch.randint(0, 10, (BATCH,))
        Path("/proc/self/clear_refs").write_text("5")
        before = resource.getrusage(resource.RUSAGE_SELF)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        after = resource.getrusage(resource.RUSAGE_SELF)
        losses.append(loss.item().hex())
        peaks.append(hwm())
        most = max(most, peaks[-1])
        times.append([after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime])
    found = {"losses": losses, "peaks": peaks, "times": times, "most": most}
    if budget is not None:
        report = reprise.report(model)
        found |= {"sentence": report.sentence, "planned_steps": report.planned_steps}
    return found


def run(way: str, steps: int) -> dict[str, Any]:
    """The same in a process of its own."""
    _, environment = WAYS[way]
    line = [sys.executable, __file__, "--one", way, "--steps", str(steps)]
    done = subprocess.run(
        line, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"{way}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Every way, and the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one")
    parser.add_argument("--ways", nargs="*", default=list(WAYS))
    parser.add_argument("--steps", type=int, default=14)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(one(args.steps, WAYS[args.one][0])))
        return
    losses = None
    print("| way | step's peak of RSS, last 5 steps | process's | CPU s per step (user + system) |")
    print("|---|---|---|---|")
    for way in args.ways:
        found = run(way, args.steps)
        losses = losses or found["losses"]
        assert found["losses"] == losses, f"{way}: other losses"
        late = found["times"][-5:]
        user, system = median(t[0] for t in late), median(t[1] for t in late)
        print(
            f"| {way} | {median(found['peaks'][-5:]) >> 20} MiB | {found['most'] >> 20} MiB "
            f"| {user:.2f} + {system:.2f} |",
            flush=True,
        )
        print("   ", [p >> 20 for p in found["peaks"]], found.get("sentence"), file=sys.stderr)


if __name__ == "__main__":
    main()
