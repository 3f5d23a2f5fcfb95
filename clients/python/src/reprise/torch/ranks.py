# SPDX-License-Identifier: Apache-2.0
"""One plan for all ranks of a job.

    ranks = Ranks.here()                       # None: this process trains alone
    ranks.agree(structure)                     # do all ranks run the same program?
    plan = ranks.broadcast(plan)               # rank 0 asked; everybody gets the same bytes

Solvers are not reproducible to the bit and ranks with different plans may wait for each other for
ever, so one rank asks and all apply what it got, or none does. Every call is a collective over a
group of our own (gloo, with a timeout): the job's collectives keep their order. All ranks come here
at the same points: the step after a capture, and never because of what one rank alone has seen.
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

    @property
    def first(self) -> bool:
        """The rank that asks for plans."""
        return self.rank == 0

    def gather(self, value: Any) -> list[Any]:
        """What every rank has."""
        found: list[Any] = [None] * self.count
        self._distributed.all_gather_object(found, value, group=self._group)
        return found

    def agree(self, structure: str) -> str:
        """Empty when all ranks captured the same program, else the difference in a sentence."""
        found = self.gather(structure)
        others = [rank for rank, other in enumerate(found) if other != found[0]]
        if not others:
            return ""
        return (
            f"trains without a plan: rank {others[0]} runs another program than rank 0 "
            f"({len(others)} of {self.count} ranks differ)"
        )

    def broadcast(self, value: Any) -> Any:
        """What rank 0 has, on every rank."""
        box = [value]
        self._distributed.broadcast_object_list(box, src=0, group=self._group)
        return box[0]
