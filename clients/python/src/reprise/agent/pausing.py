# SPDX-License-Identifier: Apache-2.0
"""Lets another profiler use the GPU's profiling interface.

    with reprise.pause(), torch.profiler.profile() as found:
        train_step()

CUPTI has one subscriber per process. Outside a window Reprise does not subscribe, so nothing needs
to be paused. Inside a window `pause` unsubscribes at once, and subscribes again afterwards if it
can. Allocator events and op records pause too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from reprise.agent import abi
from reprise.base.errors import RepriseError

__all__ = ["pause"]


@contextmanager
def pause() -> Iterator[None]:
    """Pauses Reprise's profiling inside the block. Does nothing if there is no agent."""
    try:
        library = abi.load()
    except RepriseError:
        yield
        return
    library.blocking.reprise_pause()
    try:
        yield
    finally:
        library.blocking.reprise_resume()
