# SPDX-License-Identifier: Apache-2.0
"""A training step of another framework under a budget: a hundred lines of automatic
differentiation on numpy, planned and reported through `reprise.plan` alone.

    python examples/numpy_autodiff.py --budget 0.5x

What any framework has to do stands here in small: say which op reads and writes which arrays
(`Step.op`), run a schedule instead of the list (`Step.run`), and report what was measured.
"""

from __future__ import annotations

import argparse
import time
import tracemalloc
from collections.abc import Callable

import numpy as np

from reprise import RepriseError
from reprise.plan import StepGraph, base_schedule, plan, report_check, report_step

Array = np.ndarray


class Step:
    """One training step as a list of ops on arrays that are named by numbers."""

    def __init__(self, static_bytes: int) -> None:
        self.graph = StepGraph("numpy autodiff", static_bytes=static_bytes, flavour="numpy")
        self.code: list[Callable[..., Array]] = []
        self.backward: list[Callable[[], None]] = []
        self.gradient_of: dict[int, int] = {}
        self.phase = "forward"

    def op(self, name, shape, code, *reads, workspace=0) -> int:
        """Adds an op that makes one array, and returns the array's number."""
        made = self.graph.storage(4 * int(np.prod(shape)), name)
        self.graph.op(name, reads, [made], time_ns=0, workspace_bytes=workspace, phase=self.phase)
        self.code.append(code)
        return made

    def linear(self, x: int, weight: Array, rows: int) -> tuple[int, list[int]]:
        """x @ weight. The list gets the number of the weight's gradient."""
        y = self.op("linear", (rows, weight.shape[1]), lambda a: a @ weight, x)
        found: list[int] = []

        def backward() -> None:
            dy = self.gradient_of[y]
            found.append(self.op("d weight", weight.shape, lambda a, d: a.T @ d, x, dy))
            shape = (rows, weight.shape[0])
            self.gradient_of[x] = self.op("d input", shape, lambda d: d @ weight.T, dy)

        self.backward.append(backward)
        return y, found

    def relu(self, x: int, shape: tuple[int, int]) -> int:
        y = self.op("relu", shape, lambda a: np.maximum(a, np.float32(0)), x)

        def backward() -> None:
            mask_bytes = shape[0] * shape[1]  # of `a > 0`, while the op runs
            self.gradient_of[x] = self.op(
                *("d relu", shape, lambda a, d: d * (a > 0), x, self.gradient_of[y]),
                workspace=mask_bytes,
            )

        self.backward.append(backward)
        return y

    def finish(self, loss_gradient: int, of: int) -> None:
        """Adds the backward ops, the last forward op first."""
        self.gradient_of[of] = loss_gradient
        self.phase = "backward"
        for add in reversed(self.backward):
            add()

    def run(self, schedule, keep: list[int]) -> tuple[list[Array], int]:
        """Runs a schedule; the arrays to keep, and the most bytes that were allocated at once."""
        alive: dict[int, Array] = {}
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        for entry in schedule:
            if entry < 0:
                del alive[-entry - 1]
                continue
            op, started = self.graph.ops[entry], time.perf_counter_ns()
            alive[op.writes[0]] = self.code[entry](*(alive[s] for s in op.reads))
            op.time_ns = op.time_ns or time.perf_counter_ns() - started
        peak = tracemalloc.get_traced_memory()[1] - before
        return [alive[s] for s in keep], peak + self.graph.static_bytes


def perceptron(layers: int, width: int, rows: int) -> tuple[Step, list[int]]:
    """The step of a multilayer perceptron, and the numbers of its weights' gradients."""
    random = np.random.default_rng(0)
    weights = [random.normal(0, 0.05, (width, width)).astype(np.float32) for _ in range(layers)]
    data = random.normal(size=(rows, width)).astype(np.float32)
    step = Step(static_bytes=sum(w.nbytes for w in weights) + data.nbytes)
    x, gradients = step.op("input", data.shape, data.copy), []
    for weight in weights:
        y, found = step.linear(x, weight, rows)
        gradients.append(found)
        x = step.relu(y, data.shape)
    step.finish(step.op("d loss", data.shape, lambda a: a / np.float32(a.size), x), x)
    kept = [number for found in gradients for number in found]
    step.graph.require(*kept)
    return step, kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--budget", default="0.5x")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--rows", type=int, default=2048)
    options = parser.parse_args()

    tracemalloc.start()
    step, gradients = perceptron(options.layers, options.width, options.rows)
    plain, plain_peak = step.run(base_schedule(step.graph), gradients)
    try:
        answer = plan(step.graph, options.budget)
    except RepriseError as error:
        raise SystemExit(str(error)) from None
    print(answer.sentence)
    started = time.perf_counter_ns()
    planned, peak = step.run(answer.schedule, gradients)
    took = time.perf_counter_ns() - started
    differing = sum(not np.array_equal(a, b) for a, b in zip(plain, planned, strict=True))
    report_step(answer, step=1, peak_bytes=peak, step_ns=took)
    report_check(answer, step=1, checked=len(plain), differing=differing)
    print(f"plain: {plain_peak} bytes measured, {answer.base_peak_bytes} predicted")
    print(f"planned: {peak} bytes measured, {answer.peak_bytes} predicted")
    print(f"gradients: {differing} of {len(plain)} differ")


if __name__ == "__main__":
    main()
