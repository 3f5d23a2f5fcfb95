# SPDX-License-Identifier: Apache-2.0
"""Wraps the calls of autograd's engine, for backwards that run out of memory and for writes during
a backward.

    around(wrapper)        # wrapper(engine, heads, *rest, **options) calls engine(heads, ...)
    no_longer(wrapper)     # safe to call twice; after the last one torch is restored

All wrappers share one place. If each replaced the engine's entry point on its own, they would have
to leave in reverse order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from reprise.torch.internals import calls

__all__ = ["around", "no_longer"]

_NAME = "_engine_run_backward"

Wrapper = Callable[..., Any]

_wrappers: list[Wrapper] = []  # the last one is called first
_plain: Any = None
_run: Any = None  # replaces it


def around(wrapper: Wrapper) -> None:
    """Makes every call of the engine go through the wrapper from now on."""
    global _plain, _run
    if wrapper in _wrappers:
        return
    if not _wrappers:
        found = getattr(torch.autograd, _NAME)
        if _run is None or found is not _run:
            _plain, _run = found, calls.chained(found, _wrappers)
            setattr(torch.autograd, _NAME, _run)
    _wrappers.append(wrapper)


def no_longer(wrapper: Wrapper) -> None:
    """Removes the wrapper. After the last one torch is restored. If another library has replaced
    the call since, our replacement stays and only calls on."""
    if wrapper in _wrappers:
        _wrappers.remove(wrapper)
        if not _wrappers and getattr(torch.autograd, _NAME) is _run:
            setattr(torch.autograd, _NAME, _plain)
