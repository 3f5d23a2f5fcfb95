# SPDX-License-Identifier: Apache-2.0
"""TensorFlow graphs under budgets, beside the three modes: predicted and measured bytes, bits.

    python -m bench.tensorflow.run --out bench/results/tensorflow.md [--net NAME...]

Bytes are exact counts of TensorFlow's own allocation records (`FULL_TRACE`) of one step, above
variables and inputs. Gradients are compared bit for bit with those of the plain graph. A refusal is
shown with the sentence of the planner.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

BUDGETS = ("0.7x", "0.5x", "0.35x")
MODES = ("memory", "speed", "collection")
MIB = 1 << 20


def measured(build: Any, how: dict[str, Any]) -> dict[str, Any]:
    """One cell: builds the graph, runs two steps, traces a third."""
    import reprise
    import reprise.tensorflow as planned
    import tensorflow as tf
    from reprise.tensorflow.trace import peak_bytes, run_traced

    v1 = tf.compat.v1
    with tf.Graph().as_default() as graph:
        loss, variables, feed = build()
        try:
            if how:
                grads = planned.gradients(loss, variables, on_infeasible="raise", **how)
            else:
                grads = v1.gradients(loss, variables)
        except reprise.InfeasibleBudget as refusal:
            proof = refusal.plan.bound_proof.name.lower() if refusal.plan else "none"
            return {"refused": str(refusal), "proof": proof}
        fetches = [loss, *grads]
        # As TensorFlow has it by default, with Grappler, which leaves planned graphs alone.
        with v1.Session(graph=graph) as session:
            session.run([variable.initializer for variable in variables])
            session.run(fetches, feed)
            if not how:
                _, metadata = run_traced(session, fetches, feed)
                return {
                    "values": as_written(graph, variables, fetches, feed),
                    "peak": peak_bytes(metadata),
                }
            values, found = planned.validate(session, fetches, feed)
            applied = planned.applied_to(graph)
            assert applied is not None
            static = applied.step.graph.static_bytes
            same = {} if applied.plan else at_its_peak(applied)
            return {
                **same,
                "values": values,
                "base": applied.base.peak_bytes - static,
                "predicted": applied.peak_bytes - static,
                "peak": found.measured_bytes - static,
                "budget": found.budget_bytes - static if found.budget_bytes else 0,
                "copies": applied.copies,
                "overhead": applied.predicted.time_ns / applied.base.time_ns - 1,
                "within": found.measured_bytes <= found.budget_bytes,
            }


def as_written(graph: Any, variables: Any, fetches: Any, feed: Any) -> Any:
    """What a plain graph gives if Grappler does not rewrite it."""
    import tensorflow as tf

    config = tf.compat.v1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    with tf.compat.v1.Session(graph=graph, config=config) as session:
        session.run([variable.initializer for variable in variables])
        return session.run(fetches, feed)


def at_its_peak(applied: Any) -> dict[str, Any]:
    """What a plan for the bytes of a mode runs again, and takes."""
    from reprise.plan import plan

    found = plan(applied.step.graph, applied.predicted.peak_bytes, "tf-graph")
    return {
        "plan_copies": len(found.recomputed_ops),
        "plan_overhead": found.time_ns / found.base_time_ns - 1,
    }


def chain_cost(build: Any, steps: int = 5) -> float:
    """Step time of the graph whose order is fixed and where nothing runs again, over that of the
    plain one: medians of steps that take turns."""
    import reprise.tensorflow as planned
    import tensorflow as tf

    v1 = tf.compat.v1
    sessions = []
    for how in ({}, {"budget": "1x"}):
        with tf.Graph().as_default() as graph:
            loss, variables, feed = build()
            grads = (planned.gradients if how else v1.gradients)(loss, variables, **how)
            session = v1.Session(graph=graph)
            session.run([variable.initializer for variable in variables])
            sessions.append((session, [loss, *grads], feed, []))
    for _ in range(steps + 1):
        for session, fetches, feed, times in sessions:
            started = time.perf_counter()
            session.run(fetches, feed)
            times.append(time.perf_counter() - started)
    plain, chained = (statistics.median(times[1:]) for *_, times in sessions)
    return chained / plain


def dense(value: Any) -> Any:
    """The values of an embedding's gradient, whose rows are fed."""
    return getattr(value, "values", value)


def one_net(name: str) -> list[dict[str, Any]]:
    """All cells of a net, in this process."""
    import numpy as np
    from bench.tensorflow.nets import NETS

    plain = measured(NETS[name], {})
    rows = []
    for how in [{"budget": b} for b in BUDGETS] + [{"checkpoints": m} for m in MODES]:
        row = measured(NETS[name], how)
        values = row.pop("values", None)
        if values is not None:
            pairs = zip(plain["values"], values, strict=True)
            row["differing"] = sum(not np.array_equal(dense(a), dense(b)) for a, b in pairs)
        row |= {"net": name, "how": next(iter(how.values())), "plain": plain["peak"]}
        rows.append(row)
        print(json.dumps(row), flush=True)
    print(json.dumps({"net": name, "chain": chain_cost(NETS[name])}), flush=True)
    return rows


def line(row: dict[str, Any]) -> str:
    head = f"| {row['net']} | {row['how']} | {row['plain'] / MIB:.2f} |"
    if "refused" in row:
        return f"{head} refused ({row['proof']}): {row['refused']} | | | | | |"
    off = row["peak"] / row["predicted"] - 1
    budget = f"{row['budget'] / MIB:.2f}" if row["budget"] else ""
    return (
        f"{head} {budget} | {row['predicted'] / MIB:.2f} | {row['peak'] / MIB:.2f} ({off:+.2%}) | "
        f"{row['copies']} | {row['overhead']:+.1%} | {row['differing']} |"
    )


HEAD = """# TensorFlow under budgets

Measured by `python -m bench.tensorflow.run` on {day} with TensorFlow {version}, a CPU, oneDNN off,
Grappler on as by default (it rewrites the plain graph and leaves planned ones alone). MiB above
variables and inputs, from TensorFlow's allocation records of one step. *plain*: `tf.gradients` as
it is; a share as `0.5x` is of the step in a fixed order, whose peak is lower already. *again*: ops
that run a second time. *overhead*: predicted from the times of one traced step. *differ*: losses
and gradients that are not equal bit for bit to those of the graph as written (without Grappler). A
refusal is `checked` where the planner's verifier accepted its proof. *collection* keeps the output
of every block.

| net | | plain | budget | predicted | measured | again | overhead | differ |
|---|---|---|---|---|---|---|---|---|
"""


AT_ITS_PEAK = """
A plan for the peak of a mode, instead of the mode: ops run again and predicted overhead.

| net | | mode: again | overhead | plan: again | overhead |
|---|---|---|---|---|---|
"""

CHAIN = """
The fixed order alone, without anything run again: step time over that of the plain graph, medians
of five steps that took turns. The machine was busy with other work; of such times a tenth or two
mean nothing.

| net | ratio |
|---|---|
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--net", nargs="*")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if options.one:
        one_net(options.one)
        return
    from bench.tensorflow.nets import NETS

    rows, chains = [], []
    for name in options.net or NETS:
        command = [sys.executable, "-m", "bench.tensorflow.run", "--one", name]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        for text in done.stdout.splitlines():
            row = json.loads(text)
            (chains if "chain" in row else rows).append(row)
            print(text, flush=True)
        if options.out:
            options.out.write_text(table(rows, chains))


def table(rows: list[dict[str, Any]], chains: list[dict[str, Any]]) -> str:
    import tensorflow as tf

    text = HEAD.format(
        version=tf.__version__, day=time.strftime("%Y-%m-%d", time.gmtime())
    ) + "".join(line(row) + "\n" for row in rows)
    text += AT_ITS_PEAK + "".join(
        f"| {row['net']} | {row['how']} | {row['copies']} | {row['overhead']:+.1%} | "
        f"{row['plan_copies']} | {row['plan_overhead']:+.1%} |\n"
        for row in rows
        if "plan_copies" in row
    )
    text += CHAIN
    return text + "".join(f"| {row['net']} | {row['chain']:.2f} |\n" for row in chains)


if __name__ == "__main__":
    main()
