# SPDX-License-Identifier: Apache-2.0
"""The first steps of a job: what they peak at, against the budget and what shapes foretold.

    python bench/start/first_steps.py [--budget 0.5x] [--steps 9] [NETWORK ...]

Every network of the zoo (tests/python/pytorch/zoo.py) trains in a process of its own, without
Reprise and with it; parameters and losses must be equal, bit for bit. Peaks are those of torch's
allocator, workspaces of libraries included.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/python/pytorch"))


def one(name: str, budget: str, steps: int) -> dict[str, Any]:
    """Trains one network in this process."""
    import torch
    from zoo import ZOO

    import reprise
    from reprise.torch.session.session import Session
    from reprise.torch.training import armed

    torch.set_num_threads(1)
    plain = ZOO[name](seed=0)
    begin = time.process_time()
    losses = [plain.step(0).item()]
    plain_s = time.process_time() - begin
    losses += [plain.step(number).item() for number in range(1, steps)]
    expected = [p.detach().clone() for p in plain.model.parameters()]
    del plain
    job = ZOO[name](seed=0)
    reprise.auto(job.model, budget=budget)
    session = armed.current(job.model)
    assert isinstance(session, Session)
    peaks, foretold, found = [], 0, []
    begin = time.process_time()
    for number in range(steps):
        found.append(job.step(number).item())
        if not number:
            first_s = time.process_time() - begin
        state = session.job
        peaks.append(max(state.step.peak, state.meter.peak()))
        rung = state.plans.rung
        if number == 2 and rung is not None and rung.plan is not None and rung.sketch:
            foretold = rung.plan.peak_bytes - rung.spare_bytes
    report = reprise.report(job.model)
    same = all(map(torch.equal, expected, job.model.parameters()))
    return {
        "equal": same and found == losses,
        "budget": report.budget_bytes,
        "base": report.base_peak_bytes,
        "peaks": peaks,
        "foretold": foretold,
        "beyond_s": first_s - plain_s,
        "sentence": report.sentence,
    }


def main() -> None:
    """Every network, and the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*")
    parser.add_argument("--budget", default="0.5x")
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--one")
    args = parser.parse_args()
    if args.one:
        print(json.dumps(one(args.one, args.budget, args.steps)))
        return
    from zoo import ZOO

    heads = ["network", "budget", "highest peak", "of the first steps", "steps above"]
    heads += ["foretold / measured, step 3", "first step beyond plain, CPU s", "bits"]
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for name in args.networks or ZOO:
        line = [sys.executable, __file__, "--one", name, "--budget", args.budget]
        line += ["--steps", str(args.steps)]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"{name}: {done.stderr[-2000:]}")
        it = json.loads(done.stdout.splitlines()[-1])
        budget, peaks = it["budget"], it["peaks"]
        above = sum(peak > budget for peak in peaks) if budget else "no plan"
        near = f"{it['foretold'] / peaks[2]:.3f}" if it["foretold"] else "-"
        why = [x for x in done.stderr.splitlines() if "first steps run without" in x]
        print(
            f"| {name} | {budget / 1e6:.2f} MB | {max(peaks) / 1e6:.2f} MB "
            f"| {max(peaks[:4]) / 1e6:.2f} MB | {above} | {near} | {it['beyond_s']:.2f} "
            f"| {'equal' if it['equal'] else 'DIFFER'} |",
            flush=True,
        )
        for text in why:
            print(text, file=sys.stderr)


if __name__ == "__main__":
    main()
