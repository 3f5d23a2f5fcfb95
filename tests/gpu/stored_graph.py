# SPDX-License-Identifier: Apache-2.0
"""A step graph as the server keeps it: where its times come from, and what each op took.

Reads the few fields it needs off protobuf's wire format: there is no protobuf where this runs.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

# The op that carries what no op accounts for.
REST = "reprise.step_begin"
# reprise.v1.StepGraph and Op.
_OPS, _TIMING = 6, 21
_NAME, _TIME_NS = 2, 5


@dataclass
class StoredGraph:
    timing: str = ""
    times: dict[str, list[int]] = field(default_factory=dict)  # by op name, ns, in order

    def sums(self) -> dict[str, float]:
        """Milliseconds by op name."""
        return {name: sum(times) / 1e6 for name, times in self.times.items()}


def find(folder: Path, since_ns: int = 0) -> StoredGraph:
    """The newest graph of the one server that keeps its state below this folder. Raises
    LookupError if it has none that was stored since a time of the clock."""
    path = next(folder.glob("**/reprise.db"), None)
    if path is None:
        raise LookupError("no database below the daemon's folder")
    with sqlite3.connect(path, timeout=30) as database:
        row = database.execute(
            "SELECT body FROM graphs WHERE created_ns >= ? ORDER BY created_ns DESC LIMIT 1",
            (since_ns,),
        ).fetchone()
    if row is None:
        raise LookupError("no step graph was stored")
    (body,) = row
    found = StoredGraph()
    for number, value in _fields(body):
        if number == _TIMING and isinstance(value, bytes):
            found.timing = value.decode()
        if number == _OPS and isinstance(value, bytes):
            op = dict(_fields(value))
            name, time_ns = op[_NAME], op.get(_TIME_NS, 0)
            if isinstance(name, bytes) and isinstance(time_ns, int):
                found.times.setdefault(name.decode(), []).append(time_ns)
    return found


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Field numbers with their varint or bytes."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            value |= (byte & 127) << shift
            at, shift = at + 1, shift + 7
            if byte < 128:
                return value

    while at < len(message):
        key = varint()
        number, kind = key >> 3, key & 7
        if kind not in (0, 2):
            raise ValueError(f"field {number} has wire type {kind}")
        value = varint()
        if kind == 0:
            yield number, value
        else:
            yield number, message[at : at + value]
            at += value
