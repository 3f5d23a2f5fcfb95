# SPDX-License-Identifier: Apache-2.0
"""The gradients of a step as autograd left them, known by digests.

    gradients = Gradients(parameters)        # by name; before the backward
    gradients.stop()                         # after it
    gradients.after, gradients.touched, gradients.before

Digests are taken as soon as autograd has added a gradient up. What the program does to it
afterwards (unscaling, clipping, a step within the backward) is no matter of a check.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from reprise.torch.compiled.digest import digest
from reprise.torch.internals import guard
from reprise.torch.internals.outside import OutsideCopy


class Gradients:
    """Watches what the backwards of one step do to the gradients of parameters."""

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        # By name: the digest of the gradient after the last backward, and the gradient before the
        # first one that counts (None: there was none).
        self.after: dict[str, bytes] = {}
        self.before: dict[str, OutsideCopy | None] = {}
        # Names of gradients that something changed between two backwards.
        self.touched: set[str] = set()
        # By name: the last backward (autograd's graph task), and the first one that counts.
        self._tasks: dict[str, int] = {}
        self._since: dict[str, int] = {}
        self._handles: list[Any] = []
        for name, parameter in parameters.items():
            arrives = guard.quiet(partial(self._arrives, name, parameter))
            accumulated = guard.quiet(partial(self._accumulated, name))
            self._handles.append(parameter.register_hook(arrives))
            self._handles.append(parameter.register_post_accumulate_grad_hook(accumulated))

    def counts(self, name: str, task: int) -> bool:
        """Returns whether what a backward added to a gradient is still part of it."""
        return task >= self._since.get(name, task)

    def stop(self) -> None:
        """Removes the hooks. Calling it again does nothing."""
        while self._handles:
            self._handles.pop().remove()

    def _arrives(self, name: str, parameter: nn.Parameter, _: Tensor) -> None:
        task = torch._C._current_graph_task_id()
        if self._tasks.get(name) == task:
            return
        self._tasks[name] = task
        before, last = parameter.grad, self.after.get(name)
        if last is not None and before is not None and digest(before, parameter) == last:
            return
        kept = before is not None and bool(before.any())
        if last is not None and kept:
            self.touched.add(name)
        # None or zero: gradients of earlier passes were thrown away (zero_grad).
        self._since[name] = task
        self.before[name] = OutsideCopy(before) if kept and before is not None else None

    def _accumulated(self, name: str, parameter: Tensor) -> None:
        if parameter.grad is not None:
            self.after[name] = digest(parameter.grad, parameter)
