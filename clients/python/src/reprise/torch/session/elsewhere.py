# SPDX-License-Identifier: Apache-2.0
"""Where an armed model runs whose own forward is never called.

    compiled_around(model)           # what torch.compile made of it after it was armed
    elsewhere = Elsewhere(model)     # watches which of its parts are called from outside
    elsewhere.parts()                # their names; no longer watched

A LightningModule's training_step calls its parts; a model that is compiled after it was armed is
called inside code that Dynamo has made. Looked for once, a few steps after nothing has happened.
"""

from __future__ import annotations

import gc
import threading
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from reprise.torch.internals.guard import quiet
from reprise.torch.joint.site import site_of


def compiled_around(model: nn.Module) -> nn.Module | None:
    """Returns the model itself if it was compiled in place, or the wrapper around it."""
    if site_of(model) is not None:
        return model
    for thing in gc.get_objects():
        # Not `isinstance`: asking a lazy proxy for its class could run it.
        if issubclass(type(thing), nn.Module) and "dynamo_ctx" in thing.__dict__:
            found: nn.Module = thing
            if getattr(found, "_orig_mod", None) is model:
                return found
    return None


class Elsewhere:
    """Finds the parts of a model that the program calls instead of the model: watches calls until
    `parts` is read."""

    def __init__(self, model: nn.Module) -> None:
        self._inside = 0
        self._thread = threading.get_ident()
        self._names = {id(part): name for name, part in model.named_modules() if name}
        self._found: dict[str, nn.Module] = {}
        self._handles: list[Any] = [
            register_module_forward_pre_hook(quiet(self._before)),
            register_module_forward_hook(quiet(self._after), always_call=True),
        ]

    def _before(self, module: nn.Module, _: Any) -> None:
        if torch.compiler.is_compiling() or threading.get_ident() != self._thread:
            return
        self._inside += 1
        name = self._names.get(id(module))
        trains = module.training and torch.is_grad_enabled()
        if self._inside == 1 and name and trains and any(True for _ in module.parameters()):
            self._found[name] = module

    def _after(self, module: nn.Module, *_: Any) -> None:
        if not torch.compiler.is_compiling() and threading.get_ident() == self._thread:
            self._inside -= 1

    def parts(self) -> dict[str, nn.Module]:
        """Returns the modules, by name, that were called with gradients from outside any other
        module."""
        for handle in self._handles:
            handle.remove()
        self._handles, self._inside = [], 0
        return self._found
