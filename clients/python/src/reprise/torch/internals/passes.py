# SPDX-License-Identifier: Apache-2.0
"""Whether the current backward keeps its graph for another one.

Autograd does not tell its hooks, so this module looks at the call that is running: on this thread,
or, if this is a thread of a device, on the thread that waits for it.
"""

from __future__ import annotations

import sys
from types import FrameType

__all__ = ["graph_is_kept"]


def graph_is_kept() -> bool:
    """Returns whether this backward was called with retain_graph; True if it is not known."""
    own = _keeps(sys._getframe(1))
    if own is not None:
        return own
    others = [_keeps(frame) for frame in sys._current_frames().values()]
    known = [kept for kept in others if kept is not None]
    return any(known) if known else True


def _keeps(frame: FrameType | None) -> bool | None:
    """Returns the retain_graph argument of the innermost backward on a stack; None if there is
    none."""
    while frame is not None:
        if frame.f_code.co_name == "_engine_run_backward":
            args = frame.f_locals.get("args", ())
            return bool(args[1]) if len(args) > 1 else True
        frame = frame.f_back
    return None
