# SPDX-License-Identifier: Apache-2.0
"""Where a graph was sent, and how the address of a server is written."""

from __future__ import annotations

from dataclasses import dataclass

from reprise.base.errors import RepriseError

__all__ = ["LONGEST_S", "Sent", "split_address"]

# A plan may be searched for ten minutes (server/service/planning/planning.h).
LONGEST_S = 660.0


@dataclass(frozen=True, slots=True)
class Sent:
    """A graph that a server has stored, and the run that it made for it."""

    graph_id: str
    run_id: str


def split_address(address: str) -> tuple[str, str, int]:
    """Returns "HOST:PORT" without a slash at its end, the host without brackets, and the port.
    Raises RepriseError if it is something else."""
    text = address.rstrip("/")
    host, colon, port = text.rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdecimal() and int(port) < 65536):
        raise RepriseError(f"server {address!r}: must be HOST:PORT, such as 127.0.0.1:7070")
    return text, host.strip("[]"), int(port)
