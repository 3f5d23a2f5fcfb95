# SPDX-License-Identifier: Apache-2.0
"""What a server of plans can do, whichever way it is called: `server.py` over HTTP, `over_grpc.py`
over gRPC."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from reprise.errors import RepriseError
from reprise.plan.step_graph import StepGraph

__all__ = ["LONGEST_S", "PlanServer", "Sent", "split_address"]

# A plan may be searched for ten minutes (server/service/planning.h).
LONGEST_S = 660.0


@dataclass(frozen=True, slots=True)
class Sent:
    """A graph that a server has stored, and the run that it made for it."""

    graph_id: str
    run_id: str


class PlanServer(Protocol):
    """A server that makes plans."""

    address: str

    def send(self, graph: StepGraph) -> Sent:
        """Makes a run of a graph."""

    def has(self, sent: Sent) -> bool:
        """Returns whether it has a run that another server made for a graph."""

    def stream(self, method: str, message: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Calls a method with a stream of answers and yields them."""


def split_address(address: str) -> tuple[str, str, int]:
    """Returns "HOST:PORT" without a slash at its end, the host without brackets, and the port.
    Raises RepriseError if it is something else."""
    text = address.rstrip("/")
    host, colon, port = text.rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdecimal() and int(port) < 65536):
        raise RepriseError(f"server {address!r}: must be HOST:PORT, such as 127.0.0.1:7070")
    return text, host.strip("[]"), int(port)
