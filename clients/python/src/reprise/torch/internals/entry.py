# SPDX-License-Identifier: Apache-2.0
"""Keeps internal errors of Reprise away from the program at the public API.

@otherwise(lambda model, *_, **__: model)
def auto(model, ...): ...      # after an internal error the model is returned as it is
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from reprise.base.errors import RepriseError

F = TypeVar("F", bound=Callable[..., Any])


def otherwise(instead: Callable[..., Any]) -> Callable[[F], F]:
    """Decorates a function of the public API: if it fails, the internal error is reported and
    `instead(*args, **kwargs)` is returned. A RepriseError is meant for the program and is
    raised, and so is a TypeError because the function has no such argument."""

    def decorate(do: F) -> F:
        @wraps(do)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            try:
                return do(*args, **kwargs)
            except RepriseError:
                raise
            except Exception as error:
                trace = error.__traceback__
                if isinstance(error, TypeError) and (trace is None or trace.tb_next is None):
                    raise  # the function did not begin
                from reprise.torch.internals import guard

                if not guard.caught(error):
                    raise
            return instead(*args, **kwargs)

        return guarded  # type: ignore[return-value]

    return decorate
