# SPDX-License-Identifier: Apache-2.0
"""The other processes that train the model.

    ranks = Ranks.here()                       # None: this process trains alone
    words = ranks.meet(word)                   # those of all, in order; Missing: one did not come
    words = ranks.meet(word, PLAN)             # the same while a plan is awaited
    some = ranks.among([0, 2])                 # a part of them, which goes on by itself
    coming()                                   # before work of ours that ends in a meeting
    leave()                                    # after a fault: who waits for this one goes on

Solvers are not reproducible to the bit, so one rank asks and all apply what it got, or none does.
Every call is a collective over a group of our own (gloo, with a timeout): the job's collectives
keep their order. All ranks come here at the same points of the program (coordination.py),
never because of what one rank alone has seen.

A meeting begins in the store that the ranks met at: each says there that it comes, and nobody waits
longer than PATIENCE for one that does not (PLAN_PATIENCE where each has a plan to look at first).
A rank that has said `coming` is at work of ours, which a loaded machine may make long: the others
wait for it up to TIMEOUT. What the first one found holds for all.
"""

from __future__ import annotations

import datetime
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from reprise.base.errors import RepriseError
from reprise.torch.internals.distributed import rank_here, several_ranks
from reprise.torch.internals.traces import frames

TIMEOUT = datetime.timedelta(seconds=120)
# For the others to come to a meeting: a rank that waits may hold up whoever needs what it makes.
PATIENCE = datetime.timedelta(seconds=2.5)
PLAN_PATIENCE = datetime.timedelta(seconds=5)
# What ranks meet for.
STEP, PLAN = "the same step", "the plan of a step"
_PIPELINES = "torch.distributed.pipelining"
_NAMED = 4  # ranks that a sentence names
_RUN_ID = re.compile(r"[A-Za-z0-9._:-]{1,71}")

_groups = 0  # that this process wanted
_open: list[Ranks] = []  # and has
_began = ""  # what the keys of this process begin with


class Missing(RepriseError):
    """Not all ranks have come. They may at the next step, if one was late."""


class Ranks:
    """The processes that train one model together."""

    def __init__(self, distributed: Any, members: Sequence[int] | None = None) -> None:
        global _groups
        _groups += 1
        self._distributed = distributed
        self.rank: int = distributed.get_rank()
        self.members = tuple(members or range(distributed.get_world_size()))
        self.place = self.members.index(self.rank)
        self.count = len(self.members)
        # Groups are numbered as they are made: one that only some ranks made would be in the way
        # of the job's own. So all say before that they come.
        store = _store_of(distributed)
        with _as_ours("the store of the ranks cannot be reached"):
            begin = _attempt(store, self.rank)
        self._store = store
        self._name = f"{begin}/{_groups if members is None else members}"
        self._number = 0  # of the last meeting
        some = {} if members is None else {"ranks": members, "use_local_synchronization": True}
        with _as_ours("the ranks could not create a process group for Reprise"):
            # No code of ours between the two: a rank whose code fails there would not make the
            # group, and another, which waits for that, cannot be told.
            self._come("the end of a step of this model", PATIENCE)
            self._group = distributed.new_group(backend="gloo", timeout=TIMEOUT, **some)
        _open.append(self)

    @classmethod
    def here(cls) -> Ranks | None:
        """Returns the ranks of this job, all of which call this at the same point of the program.
        None if there is no other."""
        return cls(torch.distributed) if several_ranks() else None

    def among(self, members: Sequence[int]) -> Ranks:
        """Returns a part of these ranks, all of which call this."""
        return Ranks(self._distributed, members)

    def meet(self, value: Any, what: str = STEP) -> list[Any]:
        """Returns the values of all ranks, in order. Raises `Missing` if one does not come."""
        self._come(what, PLAN_PATIENCE if what == PLAN else PATIENCE)
        found: list[Any] = [None] * self.count
        with _as_ours(
            f"another of the {self.count} ranks has ended, trains without Reprise now, or did "
            f"not come to the same step within {TIMEOUT.total_seconds():.0f} s"
        ):
            self._distributed.all_gather_object(found, value, group=self._group)
        return found

    def _come(self, where: str, patience: datetime.timedelta) -> None:
        """Comes to the next meeting. Raises `Missing` if another rank does not come in time, or if
        one that was earlier has given it up."""
        store, self._number = self._store, self._number + 1
        if store is None:
            return
        name = f"{self._name}/{self._number}"
        found = f"{name}/found"
        try:
            store.set(self._at(self.rank), str(self._number))
            store.set(_way(store, self.rank), "")
            if store.add(name, 1) == self.count:
                self._forget(self._number - 1)
                store.compare_set(found, "", "all")
            else:
                self._wait(found, patience)
            seen = store.compare_set(found, "", "some").decode()
        except NotImplementedError:
            return  # a store that cannot; the meeting itself has a timeout
        except RuntimeError as error:
            raise RepriseError(
                f"the store of the ranks cannot be reached ({_fact(error)})"
            ) from error
        if seen != "all":
            raise Missing(self._missing(where, patience))

    def _wait(self, key: str, patience: datetime.timedelta) -> None:
        until = time.monotonic() + TIMEOUT.total_seconds()
        while True:
            try:
                self._store.wait([key], patience)
                return
            except RuntimeError:  # not in time
                if time.monotonic() > until or not self._all_are_coming():
                    return

    def _all_are_coming(self) -> bool:
        """Returns whether each rank that is not at this meeting has said that it is coming."""
        ways = (_way(self._store, rank) for rank in self._late())
        return all(self._store.check([way]) and self._store.get(way) for way in ways)

    def _forget(self, number: int) -> None:
        """Deletes what is in the store of a meeting that is over for all."""
        for key in (f"{self._name}/{number}", f"{self._name}/{number}/found"):
            self._store.delete_key(key)

    def _at(self, rank: int) -> str:
        return f"{self._name}/at/{rank}"

    def _missing(self, where: str, patience: datetime.timedelta) -> str:
        """Returns a sentence that names who has not come to this meeting."""
        late = [str(rank) for rank in self._late()]
        who = ", ".join(late[:_NAMED]) + (" and others" if len(late) > _NAMED else "")
        many = "s" if len(late) > 1 else ""
        said = f" (rank{many} {who} did not)" if late else ""
        return (
            f"not all of the {self.count} ranks came to {where} within "
            f"{patience.total_seconds():g} s of each other{said}"
        )

    def _late(self) -> list[int]:
        """Returns the ranks that have not come to this meeting."""
        late = []
        for rank in self.members:
            at = self._at(rank)
            if not self._store.check([at]) or int(self._store.get(at)) < self._number:
                late.append(rank)
        return late


def coming() -> None:
    """Tells the other ranks that this one will come to a meeting when work of ours is done."""
    _say_coming("1")


def _say_coming(word: str) -> None:
    store = _store_of(torch.distributed) if several_ranks() else None
    if store is None:
        return
    try:
        store.set(_way(store, rank_here()), word)
    except (NotImplementedError, RuntimeError):
        return  # who waits for this rank gives up after PATIENCE


def leave() -> None:
    """Closes this rank's end of all groups of ours: a meeting of the others, under way or to come,
    fails at once instead of after the timeout."""
    _say_coming("")
    while _open:
        ranks = _open.pop()
        group, ranks._group = ranks._group, None  # it ends with its last user
        torch.distributed.destroy_process_group(group)


def in_pipeline() -> bool:
    """Returns whether a schedule of pipeline stages calls this: their ranks are not in their steps
    at the same time."""
    names = (str(frame.f_globals.get("__name__", "")) for frame in frames())
    return any(name.startswith(_PIPELINES) for name in names)


def run_of_job(own: str) -> str:
    """Returns the id of the run that all ranks of this job report to, on however many machines:
    `own` if this rank is the first to ask, else what the first one made it, in the store that the
    ranks met at. Nobody waits for another rank, unless the store cannot compare: then all wait for
    rank 0, PLAN_PATIENCE at most. `own` if this process trains alone. Raises RepriseError, with
    the fact, if the store cannot be read."""
    store = _store_of(torch.distributed) if several_ranks() else None
    if store is None:
        return own
    rank = rank_here()
    try:
        key = f"{_attempt(store, rank)}/run"
        try:
            found = store.compare_set(key, "", own)
        except NotImplementedError:
            if rank == 0:
                store.set(key, own)
            store.wait([key], PLAN_PATIENCE)
            found = store.get(key)
        text: str = found.decode()
    except (RuntimeError, UnicodeDecodeError) as error:
        raise RepriseError(f"the store of the ranks cannot be read ({_fact(error)})") from error
    if not _RUN_ID.fullmatch(text):
        raise RepriseError(f"the store of the ranks has {text[:71]!r} for it")
    return text


def _store_of(distributed: Any) -> Any:
    """Returns the store that the ranks met at; None if this torch has no such function."""
    default = getattr(distributed.distributed_c10d, "_get_default_store", None)
    return None if default is None else default()


def _way(store: Any, rank: int) -> str:
    """Returns the key that is not empty while a rank is coming to a meeting."""
    return f"{_attempt(store, rank)}/way/{rank}"


def _attempt(store: Any, rank: int) -> str:
    """Returns what the keys of this attempt begin with. torchrun may start the ranks again on the
    same store, where those of the attempt before still are: so each rank counts there how often
    it came."""
    global _began
    if not _began:
        try:
            before = int(store.add(f"reprise/came/{rank}", 1)) - 1 if store is not None else 0
        except NotImplementedError:
            before = 0
        _began = f"reprise/attempt/{before}" if before else "reprise"
    return _began


@contextmanager
def _as_ours(what: str) -> Iterator[None]:
    """Raises a RepriseError, which says what went wrong, for an error of torch."""
    try:
        yield
    except RuntimeError as error:
        raise RepriseError(f"{what} ({_fact(error)})") from error


def _fact(error: RuntimeError | UnicodeDecodeError) -> str:
    """The first sentence, without the place in the source where gloo says it."""
    text = (str(error).strip().splitlines() or [type(error).__name__])[0]
    if text.startswith("["):
        text = text.partition("] ")[2] or text
    return text.split(". ")[0][:160]
