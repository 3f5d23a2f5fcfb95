# SPDX-License-Identifier: Apache-2.0
"""Counts the steps above their budget where the data decides sizes within the step.

python bench/zoo/varying.py --steps 1000 --seeds 3 --out bench/results/varying.md
"""

from __future__ import annotations

import argparse
import datetime
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests/python/pytorch"))

BUDGETS = {
    "routed": "0.75x",
    "masked": "0.5x",
    "detector": "0.9x",
    "ragged": "0.6x",
    "packed": "0.6x",
    "exits": "0.6x",
}


def main() -> int:
    import torch
    from varying import run

    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--job", action="append", choices=sorted(BUDGETS))
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="rp", dir="/tmp"))
    (folder / "run").mkdir(mode=0o700)
    os.environ.update(XDG_RUNTIME_DIR=str(folder / "run"), XDG_STATE_HOME=str(folder / "state"))
    torch.set_num_threads(1)
    lines = [
        "# Sizes that the data decides",
        "",
        f"{datetime.date.today()}, torch {torch.__version__}, `bench/zoo/varying.py --steps "
        f"{args.steps} --seeds {args.seeds}`: each job without Reprise, and once more under a "
        "budget. *Above*: planned steps whose peak was above the budget.",
        "",
        "| job | budget | seeds | steps | planned | above | by at most | captures | bits equal |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name in args.job or BUDGETS:
        found = [run(name, BUDGETS[name], args.steps, seed) for seed in range(args.seeds)]
        steps = sum(one.steps for one in found)
        over = max(one.most_above for one in found)
        lines.append(
            f"| {name} | {BUDGETS[name]} | {args.seeds} | {steps:,} "
            f"| {sum(one.planned for one in found) / steps:.1%} "
            f"| {sum(one.above for one in found)} | {over:.1%} "
            f"| {max(one.captures for one in found)} | {all(one.equal for one in found)} |"
        )
        print(lines[-1], flush=True)
        args.out.write_text("\n".join([*lines, ""]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
