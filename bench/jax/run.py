# SPDX-License-Identifier: Apache-2.0
"""Functions of JAX under budgets: what XLA compiles them to, beside prediction and budget.

    python -m bench.jax.run --out bench/results/jax.md [--net NAME...]

Bytes are those of XLA's buffer assignment: arguments, results and temporaries. Compile times are
CPU seconds of the process, planned over plain. Results are compared on the net's data.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

BUDGETS = ("0.7x", "0.5x", "0.3x")
MIB = 1 << 20


def cells(name: str, time_limit_s: float | None) -> list[dict[str, Any]]:
    """All budgets of one net."""
    from bench.jax.nets import NETS

    import jax
    import reprise.jax
    from reprise import InfeasibleBudget
    from reprise.jax import planning

    loss, params, data = NETS[name]()
    compiling = [0.0]
    compile_flat = planning.compile_flat

    def timed(*args: Any, **how: Any) -> Any:
        started = time.process_time()
        made = compile_flat(*args, **how)
        compiling.append(time.process_time() - started)
        return made

    planning.compile_flat = timed
    rows = []
    for budget in BUDGETS:
        compiling.clear()
        step = reprise.jax.value_and_grad(loss, budget=budget, time_limit_s=time_limit_s)
        row: dict[str, Any] = {"net": name, "budget": budget}
        started = time.process_time()
        try:
            step.check(params, *data)
        except InfeasibleBudget as refusal:
            rows.append({**row, "refused": str(refusal)})
            continue
        found, difference = step.found, step.difference
        assert found is not None
        assert found.compiled is not None
        assert found.plan is not None
        assert difference is not None
        everything = time.process_time() - started
        rows.append(
            {
                **row,
                "plain": found.plain.total,
                "limit": found.budget_bytes,
                "predicted": found.predicted_bytes,
                "compiled": found.compiled.total,
                "rounds": found.rounds,
                "again": len(found.plan.recomputed_ops),
                "overhead": found.plan.overhead,
                "compile": compile_ratio(step, found, (params, *data)),
                "all": everything / compiling[0],
                "differing": difference.differing,
                "arrays": difference.arrays,
                "relative": difference.most_relative,
            }
        )
        del step, found
        jax.clear_caches()
    return rows


def compile_ratio(step: Any, found: Any, args: tuple[Any, ...], times: int = 3) -> float:
    """CPU time of compiling the planned function over that of the plain one: the least of a few
    compilations that take turns."""
    import jax
    from jax.extend import core
    from reprise.jax.compiled import compile_flat, compiler_options

    made = step.trace(*args)
    least = {True: float("inf"), False: float("inf")}
    for _ in range(times):
        for planned, function in ((False, core.jaxpr_as_fun(made.closed)), (True, found.function)):
            jax.clear_caches()
            started = time.process_time()
            options = compiler_options() if planned else None
            compile_flat(function, made.leaves, made.donated, options)
            least[planned] = min(least[planned], time.process_time() - started)
    return least[True] / least[False]


def table(rows: list[dict[str, Any]]) -> str:
    """Returns the measured rows as a table in Markdown."""
    lines = [
        "| net | | plain | budget | predicted | compiled | plans | again | overhead | compile time "
        "| results |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        head = f"| {row['net']} | {row['budget']} |"
        if "refused" in row:
            lines.append(f"{head} refused: {row['refused']} |" + " |" * 8)
            continue
        off = row["compiled"] / row["predicted"] - 1
        same = f"{row['differing']} of {row['arrays']} differ, {row['relative']:.0e}"
        lines.append(
            f"{head} {row['plain'] / MIB:.2f} | {row['limit'] / MIB:.2f} | "
            f"{row['predicted'] / MIB:.2f} | {row['compiled'] / MIB:.2f} ({off:+.1%}) | "
            f"{row['rounds']} | {row['again']} | {row['overhead']:+.1%} | {row['compile']:.1f}x | "
            f"{same if row['differing'] else 'equal'} |"
        )
    return "\n".join(lines)


def summary(rows: list[dict[str, Any]]) -> str:
    """How many cells are within their budget, near their prediction, and compiled in twice the
    time of the plain function."""
    made = [row for row in rows if "refused" not in row]
    kept = sum(row["compiled"] <= row["limit"] for row in made)
    near = sum(abs(row["compiled"] / row["predicted"] - 1) <= 0.05 for row in made)
    over = sum(row["compiled"] > row["predicted"] * 1.05 for row in made)
    quick = sum(row["compile"] <= 2 for row in made)
    return (
        f"Of {len(rows)} cells, {len(rows) - len(made)} are refused and {kept} are within their "
        f"budget. {near} are within 5 % of the prediction; {over} are above it by more. {quick} "
        "compile in at most twice the time of the plain function.\n"
    )


TEXT = """# JAX under budgets

Measured by `{command}` on {date} with JAX {version} on a CPU ({machine}). MiB of arguments,
results and temporaries in XLA's buffer assignment of `jax.value_and_grad`. *plain*: the function
as it is. A share as `0.5x` is arguments and results plus half of the plain temporaries.
*predicted*: the peak of the plan's schedule, without what earlier rounds held back. *plans*: how
many were compiled until one was within the budget; at most three. *overhead*: estimated from
operations and bytes. *compile time*: CPU time of compiling the plan that runs over that of the
plain function, the least of three compilations of each, which took turns. *results*: bits, and the
largest difference as a share of the largest number of its
array.

"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--net", action="append")
    parser.add_argument("--time-limit", type=float)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(cells(options.one, options.time_limit)))
        return

    from importlib.metadata import version

    from bench.jax.nets import NETS

    rows: list[dict[str, Any]] = []
    for name in options.net or NETS:
        # A process each: compiled programs and caches of one net are no part of the next.
        command = [sys.executable, "-m", "bench.jax.run", "--one", name]
        if options.time_limit:
            command += ["--time-limit", str(options.time_limit)]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, env=os.environ)
        rows += json.loads(done.stdout.splitlines()[-1])
        text = TEXT.format(
            command="python -m bench.jax.run"
            + (f" --time-limit {options.time_limit:g}" if options.time_limit else ""),
            date=time.strftime("%Y-%m-%d", time.gmtime()),
            version=version("jax"),
            machine=f"{os.cpu_count()} cores, busy with other work",
        )
        text += table(rows) + "\n\n" + summary(rows)
        print(table(rows[-len(BUDGETS) :]), flush=True)
        if options.out:
            options.out.write_text(text)


if __name__ == "__main__":
    main()
