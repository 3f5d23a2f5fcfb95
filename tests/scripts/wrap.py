# SPDX-License-Identifier: Apache-2.0
"""Runs a training script as `python script.py arguments` would, seeded and made small.

    python wrap.py --seed 0 --stop-after 14 --set NUM_BATCHES=12 train.py --lr 0.1

Random generators are seeded first, for scripts that do not. Constants of the script that no
argument of it reaches are set by name: a name that is assigned, or the keyword of a call.
`x.cuda()` is `x` where there is no GPU. With --stop-after the script ends with exit code 0 after so
many steps of its optimizers. The folder of `wrap.py` is not in the script's path.

Where heap_counter.c is preloaded, what the steps took of the heap goes to the file that
REPRISE_SCRIPTS_HEAP names: one object, `peak` of the process, `rises` of the steps, both in bytes.
"""

from __future__ import annotations

import argparse
import ast
import atexit
import ctypes
import json
import os
import random
import sys
import types
from typing import Any

__all__: list[str] = []


class _Smaller(ast.NodeTransformer):
    """Puts other constants into a script, and takes `.cuda()` out."""

    def __init__(self, values: dict[str, Any], no_gpu: bool) -> None:
        self._values = values
        self._no_gpu = no_gpu
        self.found: set[str] = set()

    def _constant(self, name: str, old: ast.expr) -> ast.expr:
        if name not in self._values:
            return old
        self.found.add(name)
        return ast.copy_location(ast.Constant(self._values[name]), old)

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        self.generic_visit(node)
        if len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            node.value = self._constant(node.targets[0].id, node.value)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        for keyword in node.keywords:
            if keyword.arg:
                keyword.value = self._constant(keyword.arg, keyword.value)
        function = node.func
        on_gpu = isinstance(function, ast.Attribute) and function.attr == "cuda"
        if self._no_gpu and on_gpu and not node.args:
            assert isinstance(function, ast.Attribute)
            return function.value
        return node


class _Heap:
    """What steps take of the heap, written when this process ends."""

    def __init__(self, path: str) -> None:
        self._own: Any = ctypes.CDLL(None)
        self._own.heap_live.restype = self._own.heap_peak.restype = ctypes.c_int64
        self._path, self._pid = path, os.getpid()
        self._peak = 0
        self._floor = self._own.heap_live()
        self.rises: list[int] = []
        atexit.register(self._write)

    def stepped(self) -> None:
        peak = int(self._own.heap_peak())
        self._peak = max(self._peak, peak)
        self.rises.append(peak - self._floor)
        self._floor = int(self._own.heap_live())
        self._own.heap_reset_peak()

    def _write(self) -> None:
        if os.getpid() == self._pid:
            peak = max(self._peak, int(self._own.heap_peak()))
            with open(self._path, "w") as file:
                json.dump({"peak": peak, "rises": self.rises}, file)


class _Steps:
    """Counts the calls of optimizers."""

    def __init__(self, most: int, heap: _Heap | None) -> None:
        self._most, self._heap, self._number = most, heap, 0

    def __call__(self, *_: Any) -> None:
        self._number += 1
        if self._heap is not None:
            self._heap.stepped()
        if self._number == self._most:
            sys.exit(0)


def main() -> None:
    """Prepares this process, then becomes the script."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stop-after", type=int, default=0, metavar="STEPS")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--path", action="append", default=[], help="also looked in for modules")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args()

    import numpy
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    counted = os.environ.get("REPRISE_SCRIPTS_HEAP")
    heap = _Heap(counted) if counted else None
    register_optimizer_step_post_hook(_Steps(options.stop_after, heap))
    torch.set_num_threads(1)

    values = {}
    for text in options.set:
        name, _, value = text.partition("=")
        values[name] = ast.literal_eval(value)
    with open(options.script) as file:
        smaller = _Smaller(values, not torch.cuda.is_available())
        tree = ast.fix_missing_locations(smaller.visit(ast.parse(file.read(), options.script)))
    if smaller.found != set(values):
        missing = sorted(set(values) - smaller.found)[0]
        parser.error(f"--set {missing}: {options.script} has no such name")

    script = os.path.abspath(options.script)
    sys.argv = [options.script, *options.arguments]
    sys.path[0] = os.path.dirname(script)
    sys.path[1:1] = options.path
    module = types.ModuleType("__main__")
    module.__file__ = script
    sys.modules["__main__"] = module
    random.seed(options.seed)
    numpy.random.seed(options.seed)
    torch.manual_seed(options.seed)
    exec(compile(tree, script, "exec"), module.__dict__)


if __name__ == "__main__":
    main()
