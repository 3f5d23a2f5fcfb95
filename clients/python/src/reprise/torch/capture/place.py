# SPDX-License-Identifier: Apache-2.0
"""The current position in a captured step: its phase, and the module whose forward runs, or the
optimizer that steps.

place = Place(model, unpacked)
place.begin()
with place.region(): model(x)
place.phase()                        # FORWARD, BACKWARD, OPTIMIZER
place.module, place.call             # "blocks.3.attention", and how often it was called before
place.end()
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from reprise.torch.capture.captured import BACKWARD, FORWARD, OPTIMIZER
from reprise.torch.capture.unpacked import Unpacked
from reprise.torch.internals import optimizers
from reprise.torch.internals.guard import quiet


class Place:
    """The current phase and module of a step. `unpacked` is told which autograd node runs."""

    def __init__(self, root: nn.Module, unpacked: Unpacked) -> None:
        self.running = False
        self.in_region = False
        self.in_optimizer = False
        self._seen_backward = False
        self._root = root
        self._unpacked = unpacked
        self._modules: list[tuple[str, int]] = [("", 0)]
        self._calls: Counter[str] = Counter()
        self._ordinals: Counter[tuple[str, int, str]] = Counter()
        self._handles: list[Any] = []
        self._optimizer = ""  # that steps

    def begin(self) -> None:
        """Starts to observe the forward of every module."""
        leaves = quiet(self._leaves)
        for path, module in self._root.named_modules():
            if isinstance(module, torch.jit.ScriptModule):
                continue  # takes no hooks: its ops are those of the module that calls it
            self._handles.append(
                module.register_forward_pre_hook(quiet(partial(self._enters, path)))
            )
            self._handles.append(module.register_forward_hook(leaves, always_call=True))
        optimizers.observe(self)
        self.running = True

    def end(self) -> None:
        """Removes the hooks that tell which module and which optimizer runs."""
        self.running = False
        optimizers.leave(self)
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    @contextmanager
    def region(self) -> Iterator[None]:
        """Surrounds a forward of the root module."""
        self.in_region = True
        self._modules = self._modules[:1]
        try:
            yield
        finally:
            self.in_region = False

    def phase(self) -> int:
        """Returns the current phase: forward, backward or optimizer."""
        if torch._C._current_graph_task_id() != -1:
            self._seen_backward = True
            self._unpacked.enter()
            return BACKWARD
        self._unpacked.leave()
        if self.in_region or not (self._seen_backward or self.in_optimizer):
            return FORWARD
        return OPTIMIZER

    @property
    def module(self) -> str:
        """The innermost module whose forward runs, or the optimizer; empty for the root, or outside
        of any."""
        return self._optimizer or self._modules[-1][0]

    @property
    def call(self) -> int:
        """How often that module was called before this call."""
        return self._modules[-1][1]

    def ordinal(self, module: str, call: int, name: str) -> int:
        """Returns how many ops of that name ran before this one in that call of that module."""
        found = self._ordinals[module, call, name]
        self._ordinals[module, call, name] += 1
        return found

    def _enters(self, path: str, _: nn.Module, __: Any) -> None:
        self._modules.append((path, self._calls[path]))
        self._calls[path] += 1

    def _leaves(self, _: nn.Module, __: Any, ___: Any) -> None:
        if len(self._modules) > 1:
            self._modules.pop()

    def before_optimizer(self, optimizer: Optimizer) -> None:
        """Notes that this optimizer is about to step."""
        self._optimizer = optimizers.described(optimizer)

    def after_optimizer(self, optimizer: Optimizer) -> None:
        """Notes that no optimizer steps any more."""
        self._optimizer = ""
