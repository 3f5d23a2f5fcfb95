# SPDX-License-Identifier: Apache-2.0
"""Wraps the calls of autograd's engine, for backwards that run out of memory and for writes during
a backward, finds the one that runs, and walks the graph of one.

    around(wrapper)        # wrapper(engine, heads, *rest, **options) calls engine(heads, ...)
    no_longer(wrapper)     # safe to call twice; after the last one torch is restored
    graph_is_kept()        # whether the backward that runs keeps its graph for another one
    leaves(heads)          # the tensors that a backward of these adds gradients to; nodes(heads)

All wrappers share one place. If each replaced the engine's entry point on its own, they would have
to leave in reverse order.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from reprise.torch.internals import calls

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


def graph_is_kept() -> bool:
    """Returns whether this backward was called with retain_graph; True if it is not known. Autograd
    does not tell its hooks, so this looks at the call that is running: on this thread, or, if this
    is a thread of a device, on the thread that waits for it."""
    own = _keeps(sys._getframe(1))
    if own is not None:
        return own
    others = [_keeps(frame) for frame in sys._current_frames().values()]
    known = [kept for kept in others if kept is not None]
    return any(known) if known else True


def nodes(heads: Iterable[Any]) -> Iterator[Any]:
    """Yields every function of the graph that a backward of these tensors runs, once."""
    todo = [head.grad_fn for head in heads if isinstance(head, Tensor)]
    seen = set()
    while todo:
        node = todo.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            todo.extend(following for following, _ in node.next_functions)


def leaves(heads: Iterable[Any]) -> Iterator[Tensor]:
    """Yields the tensors that a backward of these adds gradients to."""
    return (node.variable for node in nodes(heads) if hasattr(node, "variable"))


def _keeps(frame: FrameType | None) -> bool | None:
    """Returns the retain_graph argument of the innermost backward on a stack; None if there is
    none."""
    while frame is not None:
        if frame.f_code.co_name == _NAME:
            args = frame.f_locals.get("args", ())
            return bool(args[1]) if len(args) > 1 else True
        frame = frame.f_back
    return None
