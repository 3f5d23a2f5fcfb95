# SPDX-License-Identifier: Apache-2.0
"""Host memory in the plans that several ranks share.

    offer = offered(executor, graph)     # what this rank can do
    terms = agreed(offers)               # what all of them can; None if one has no host memory
    schedule = terms.carried(graph, plan.schedule)   # from the rank that has asked for it ...
    schedule = terms.arrived(graph, schedule)        # ... to each rank

One rank asks, with the slowest link and the least host memory of all, for what all can send.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from reprise.torch.capture.step_graph import CapturedGraph
from reprise.torch.tape.carried import Name, carried, movable, storages_of
from reprise.torch.tape.executor import TapeExecutor
from reprise.torch.tape.link import Link


class HostTerms(NamedTuple):
    """The link to host memory, and which storages may leave, of one rank or of all."""

    link: Link
    names: tuple[Name, ...]  # ascending

    def sizes(self, graph: CapturedGraph, message: dict[str, Any]) -> list[int]:
        """Returns the bytes of what may leave, as a step graph has them with the numbers of a
        capture."""
        return [message["storages"][storage]["bytes"] for storage in storages_of(graph, self.names)]

    def staying(self, graph: CapturedGraph) -> set[int]:
        """Returns the storages of a capture that may not leave."""
        return {s.id for s in graph.storages}.difference(storages_of(graph, self.names))

    def carried(self, graph: CapturedGraph, schedule: Sequence[int]) -> tuple[int, ...]:
        """Returns a schedule of a capture as all ranks read it."""
        numbers = storages_of(graph, self.names)
        return carried(schedule, {storage: n for n, storage in enumerate(numbers)})

    def arrived(self, graph: CapturedGraph, schedule: Sequence[int]) -> tuple[int, ...]:
        """Returns a schedule that came from a rank, for the capture of this one."""
        return carried(schedule, dict(enumerate(storages_of(graph, self.names))))


def offered(executor: TapeExecutor, graph: CapturedGraph) -> HostTerms:
    """Returns what plans of a step may do on this rank. Raises RepriseError if it has no host
    memory."""
    link = executor.link()
    return HostTerms(link, tuple(sorted(movable(graph, executor.least_bytes))))


def agreed(offers: Sequence[HostTerms | None]) -> HostTerms | None:
    """Returns what all ranks can do; None if one has no host memory, or nothing may leave."""
    every = [offer for offer in offers if offer is not None]
    if not every or len(every) < len(offers):
        return None
    names = set(every[0].names).intersection(*(offer.names for offer in every))
    links = [offer.link for offer in every]
    slowest = Link(
        out_bytes_per_s=min(link.out_bytes_per_s for link in links),
        in_bytes_per_s=min(link.in_bytes_per_s for link in links),
        latency_ns=max(link.latency_ns for link in links),
        host_bytes=min(link.host_bytes for link in links),
    )
    return HostTerms(slowest, tuple(sorted(names))) if names else None
