# SPDX-License-Identifier: Apache-2.0
"""The other processes that train the model.

    ranks = Ranks.here()                       # None: this process trains alone
    words = ranks.gather(word)                 # everybody's, in order; RepriseError: one is missing
    leave()                                    # after a fault: who waits for this one goes on

Solvers are not reproducible to the bit, so one rank asks and all apply what it got, or none does.
Every call is a collective over a group of our own (gloo, with a timeout): the job's collectives
keep their order. All ranks come here at the same points of the program (coordination.py),
never because of what one rank alone has seen.
"""

from __future__ import annotations

import datetime
import sys
from types import FrameType
from typing import Any

import torch

from reprise.errors import RepriseError

__all__ = ["Missing", "Ranks", "leave"]

TIMEOUT = datetime.timedelta(seconds=120)
# For the others to come to their first forward: a rank that waits in one holds up whoever needs
# what it makes.
PATIENCE = datetime.timedelta(seconds=5)
_PIPELINES = "torch.distributed.pipelining"

_groups = 0  # that this process wanted
_open: list[Ranks] = []  # and has


class Ranks:
    """The processes that train one model together."""

    def __init__(self, distributed: Any) -> None:
        self._distributed = distributed
        self.rank: int = distributed.get_rank()
        self.count: int = distributed.get_world_size()
        self._await_all()
        try:
            self._group = distributed.new_group(backend="gloo", timeout=TIMEOUT)
        except RuntimeError as error:
            raise RepriseError(
                f"the ranks could not create a process group for Reprise ({_fact(error)})"
            ) from error
        _open.append(self)

    @classmethod
    def here(cls) -> Ranks | None:
        """Returns all ranks of this job; None if there is one. All ranks call this at the same
        point of the program."""
        distributed: Any = torch.distributed
        if not (distributed.is_available() and distributed.is_initialized()):
            return None
        if distributed.get_world_size() == 1:
            return None
        if _called_from(_PIPELINES):
            raise RepriseError(
                f"the model is a stage of a pipeline ({_PIPELINES}): its ranks are not in their "
                "forwards at the same time, and all ranks are planned together"
            )
        return cls(distributed)

    def gather(self, value: Any) -> list[Any]:
        """Returns the values of all ranks, in order of rank."""
        found: list[Any] = [None] * self.count
        try:
            self._distributed.all_gather_object(found, value, group=self._group)
        except RuntimeError as error:
            raise RepriseError(
                f"another of the {self.count} ranks has ended, trains without Reprise now, or did "
                f"not come to the same step within {TIMEOUT.total_seconds():.0f} s ({_fact(error)})"
            ) from error
        return found

    def _await_all(self) -> None:
        """Groups are numbered as they are made: one that only some ranks made would be in the way
        of the job's own. So first all say, in the store that the ranks met at, that they come."""
        global _groups
        _groups += 1
        default_store = getattr(self._distributed.distributed_c10d, "_get_default_store", None)
        if default_store is None:
            return
        store = default_store()
        here = [f"reprise/{_groups}/{rank}" for rank in range(self.count)]
        store.set(here[self.rank], "here")
        try:
            store.wait(here, PATIENCE)
            found = "all"
        except RuntimeError:
            found = "some"
        # What the first one found holds for all: none makes a group that another gave up.
        try:
            found = store.compare_set(f"reprise/{_groups}/found", "", found).decode()
        except (NotImplementedError, RuntimeError):
            if found == "some":
                store.delete_key(here[self.rank])
        if found != "all":
            missing = [str(rank) for rank, key in enumerate(here) if not store.check([key])]
            who = (
                f"rank{'s' if len(missing) > 1 else ''} {', '.join(missing[:4])}" if missing else ""
            )
            raise Missing(
                f"not all of the {self.count} ranks came to a forward of this model within "
                f"{PATIENCE.total_seconds():.0f} s of each other"
                + (f" ({who} did not)" if who else "")
                + "; all ranks are planned together"
            )


def leave() -> None:
    """Closes this rank's end of all groups of ours: a `gather` of the others, under way or to come,
    fails at once instead of after the timeout."""
    while _open:
        ranks = _open.pop()
        group, ranks._group = ranks._group, None  # it ends with its last user
        torch.distributed.destroy_process_group(group)


class Missing(RepriseError):
    """Not all ranks have come. They may at the next step, if one was late."""


def _called_from(module: str) -> bool:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith(module):
            return True
        frame = frame.f_back
    return False


def _fact(error: RuntimeError) -> str:
    """The first sentence, without the place in the source where gloo says it."""
    text = (str(error).strip().splitlines() or [type(error).__name__])[0]
    if text.startswith("["):
        text = text.partition("] ")[2] or text
    return text.split(". ")[0][:160]
