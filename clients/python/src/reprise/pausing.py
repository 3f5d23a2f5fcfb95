# SPDX-License-Identifier: Apache-2.0
"""Another profiler's turn.

    with reprise.pause(), torch.profiler.profile() as found:
        train_step()

CUPTI has one subscriber per process. Outside a window Reprise holds nothing and nothing needs to be
paused; inside one it gives the slot back at once and takes it again afterwards, if it is free.
Allocator events and marks of ops pause too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from reprise import abi
from reprise.errors import RepriseError

__all__ = ["pause"]


@contextmanager
def pause() -> Iterator[None]:
    """Leaves the device to another profiler inside the block. Nothing without an agent."""
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
