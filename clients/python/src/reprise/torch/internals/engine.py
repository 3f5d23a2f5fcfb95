# SPDX-License-Identifier: Apache-2.0
"""The calls of autograd's engine, for who has to see them: backwards that run out of memory, writes
during a backward.

    around(wrapper)        # wrapper(engine, heads, *rest, **options) calls engine(heads, ...)
    no_longer(wrapper)     # idempotent; after the last one torch is as it was

One place for all of them: each taking the engine's place by itself, they would have to leave in the
order in which they did not come.
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
_run: Any = None  # stands in for it


def around(wrapper: Wrapper) -> bool:
    """Calls of the engine go through it from now on. False: this torch has no such call."""
    global _plain, _run
    if wrapper in _wrappers:
        return True
    if not _wrappers:
        found = getattr(torch.autograd, _NAME, None)
        if found is None:
            return False
        if _run is None or found is not _run:
            _plain, _run = found, calls.chained(found, _wrappers)
            setattr(torch.autograd, _NAME, _run)
    _wrappers.append(wrapper)
    return True


def no_longer(wrapper: Wrapper) -> None:
    """They do not; where somebody else has taken the place since, what is left of ours does
    nothing."""
    if wrapper in _wrappers:
        _wrappers.remove(wrapper)
        if not _wrappers and getattr(torch.autograd, _NAME, None) is _run:
            setattr(torch.autograd, _NAME, _plain)
