# SPDX-License-Identifier: Apache-2.0
"""How long a job waits for its first step: compiled plainly, planned, and planned once more.

    python -m bench.jax.starts [--net NAME...] [--budget 0.5x...] [--times 3]

Each time is taken in a process of its own, from the call until the program is compiled, the
planner's search and the start of its daemon included; the least of some.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

WAYS = ("plain", "first", "second")


def seconds(name: str, budget: str, way: str) -> dict[str, Any]:
    """Compiles one net once."""
    from bench.jax.nets import NETS

    import jax
    import jax.numpy as jnp
    import reprise.jax

    loss, params, data = NETS[name]()
    jax.block_until_ready(jax.jit(jnp.sin)(jnp.ones(4)))  # what any first compilation takes
    if way == "plain":
        started = time.monotonic()
        jax.jit(jax.value_and_grad(loss)).lower(params, *data).compile()
        return {"s": time.monotonic() - started}
    step = reprise.jax.value_and_grad(loss, budget=budget)
    started = time.monotonic()
    found = step.plan(params, *data)
    took = time.monotonic() - started
    assert found.compiled is not None
    assert found.compiled.total <= found.budget_bytes
    assert (found.rounds == 0) == (way == "second")
    return {"s": took, "rounds": found.rounds}


def row(name: str, budget: str, times: int) -> str:
    """Returns a row of the table."""
    least = dict.fromkeys(WAYS, float("inf"))
    for _ in range(times):
        with tempfile.TemporaryDirectory() as folder:
            for way in WAYS:
                done = subprocess.run(
                    [sys.executable, "-m", "bench.jax.starts", "--one", name, budget, way],
                    stdout=subprocess.PIPE,
                    env={**os.environ, "XDG_CACHE_HOME": folder},
                )
                if done.returncode:
                    return f"| {name} | {budget} | no plan |"
                found = json.loads(done.stdout.splitlines()[-1])
                least[way] = min(least[way], found["s"])
    plain = least["plain"]
    said = (f"{least[way]:.1f} s ({least[way] / plain:.1f}x)" for way in WAYS[1:])
    return f"| {name} | {budget} | {plain:.1f} s | {' | '.join(said)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--net", action="append")
    parser.add_argument("--budget", action="append")
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(seconds(*options.one)))
        return

    from bench.jax.nets import NETS

    print("| net | budget | plain compile | first call | second start |\n|---|---|---|---|---|")
    for name in options.net or NETS:
        for budget in options.budget or ["0.5x"]:
            print(row(name, budget, options.times), flush=True)


if __name__ == "__main__":
    main()
