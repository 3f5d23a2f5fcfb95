# SPDX-License-Identifier: Apache-2.0
"""Takes the place of one module's `forward` and gives it back.

    armed = ArmedForward(model, around)      # model.forward(...) now runs inside around(...)
    armed.remove()

Nothing else of the module changes: no wrapper module, the same names, the same state_dict. A copy
or a pickle of the module is plain: what is armed is this object, not its class.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

__all__ = ["ArmedForward"]

Around = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


class ArmedForward:
    """Stands in `model.__dict__["forward"]`."""

    def __init__(self, model: nn.Module, around: Around) -> None:
        self._model = weakref.ref(model)
        self._around = around
        self._own = model.__dict__.get("forward")  # somebody else's, put back later
        model.__dict__["forward"] = self

    def plain(self, *args: Any, **kwargs: Any) -> Any:
        """The forward as it was."""
        if self._own is not None:
            return self._own(*args, **kwargs)
        return _plain_forward(self._model())(*args, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return self.plain(*args, **kwargs)  # the compiler sees the model as it was
        return self._around(self.plain, args, kwargs)

    @property
    def __wrapped__(self) -> Any:
        """So that `inspect.signature(model.forward)` shows the model's own."""
        return self._own or _plain_forward(self._model())

    def remove(self) -> None:
        """The module is as it was. Idempotent."""
        model = self._model()
        if model is not None and model.__dict__.get("forward") is self:
            if self._own is None:
                del model.__dict__["forward"]
            else:
                model.__dict__["forward"] = self._own

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return _plain_forward(memo.get(id(self._model()), self._model()))

    def __reduce__(self) -> Any:
        return _plain_forward, (self._model(),)


def _plain_forward(model: Any) -> Any:
    return types.MethodType(type(model).forward, model)
