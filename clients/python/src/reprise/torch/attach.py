# SPDX-License-Identifier: Apache-2.0
"""Finds the models of a program that does not know of Reprise, and arms them.

    attach()      # once, after torch was imported

A model to arm is a module that is called from outside any other module, with gradients on and
parameters that want them. Global hooks watch the calls until some optimizer has stepped a few
times; then they are taken out again, because they make every module call slower. A model inside
DistributedDataParallel is armed itself: the wrapper communicates, the module computes.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as modules
from torch.optim.optimizer import register_optimizer_step_post_hook

__all__ = ["attach"]

# Calls of optimizers after which every model has been seen.
STEPS = 3


def attach() -> None:
    """Starts to watch. In a program that arms its models itself, those stay as they are."""
    if os.environ.get("REPRISE_DISABLE") != "1":
        _Watch()


class _Watch:
    def __init__(self) -> None:
        self._depth = 0
        self._steps = 0
        self._pid = os.getpid()
        self._handles: list[Any] = [
            modules.register_module_forward_pre_hook(self._enter),
            modules.register_module_forward_hook(self._leave, always_call=True),
        ]
        register_optimizer_step_post_hook(self._stepped)

    def _enter(self, module: nn.Module, _: Any) -> None:
        self._depth += 1
        try:
            if self._depth == 1 and self._is_root(module):
                self._arm(_unwrapped(module))
        except Exception as error:
            print(f"reprise: trains without Reprise: {error}", file=sys.stderr, flush=True)
            self._stop()

    def _leave(self, *_: Any) -> None:
        self._depth = max(0, self._depth - 1)

    def _stepped(self, *_: Any) -> None:
        # torch is walking through its optimizer hooks: this one stays, and does nothing more.
        self._steps += 1
        if self._steps == STEPS:
            self._stop()

    def _stop(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _is_root(self, module: nn.Module) -> bool:
        return (
            module.training
            and torch.is_grad_enabled()
            and os.getpid() == self._pid
            and not torch.compiler.is_compiling()
            and any(p.requires_grad for p in module.parameters())
        )

    @staticmethod
    def _arm(module: nn.Module) -> None:
        from reprise import api

        if module not in api._sessions:
            api.auto(module, budget=None)
            session = api._sessions.get(module)
            if session is not None:
                session.attached = True


def _unwrapped(module: nn.Module) -> nn.Module:
    inner = getattr(module, "module", None)
    wrappers = (nn.parallel.DistributedDataParallel,)
    return inner if isinstance(module, wrappers) and isinstance(inner, nn.Module) else module
