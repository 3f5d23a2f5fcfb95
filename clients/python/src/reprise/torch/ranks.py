# SPDX-License-Identifier: Apache-2.0
"""The other processes that train the model.

    ranks = Ranks.here()                       # None: this process trains alone
    words = ranks.gather(word)                 # everybody's, in order

Solvers are not reproducible to the bit, so one rank asks and all apply what it got, or none does.
Every call is a collective over a group of our own (gloo, with a timeout): the job's collectives
keep their order. All ranks come here at the same points of the program, which together.py sees to:
never because of what one rank alone has seen.
"""

from __future__ import annotations

import datetime
from typing import Any

import torch

__all__ = ["Ranks"]

TIMEOUT = datetime.timedelta(seconds=120)


class Ranks:
    """The processes that train one model together."""

    def __init__(self, distributed: Any) -> None:
        self._distributed = distributed
        self.rank: int = distributed.get_rank()
        self.count: int = distributed.get_world_size()
        self._group = distributed.new_group(backend="gloo", timeout=TIMEOUT)

    @classmethod
    def here(cls) -> Ranks | None:
        """All ranks call this at the same point of the program."""
        distributed: Any = torch.distributed
        if not (distributed.is_available() and distributed.is_initialized()):
            return None
        return cls(distributed) if distributed.get_world_size() > 1 else None

    def gather(self, value: Any) -> list[Any]:
        """What every rank has."""
        found: list[Any] = [None] * self.count
        self._distributed.all_gather_object(found, value, group=self._group)
        return found
