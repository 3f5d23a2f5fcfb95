# SPDX-License-Identifier: Apache-2.0
"""Reads the agent's file sink (profiler/include/reprise_sink.h)."""

from __future__ import annotations

import struct
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

KERNEL, COPY, SET, LINK, API, OP_BEGIN, OP_END, ALLOC, STEP = range(1, 10)
LOSS = 11
UNTIMED, IN_GRAPH = 1, 2
DRIVER, POOL = 6, 5

_HEADER = struct.Struct("<IHHII")
_SLOT = struct.Struct("<QHBBIQ40s")
_KERNEL = struct.Struct("<QIIIIQIHH")
_API = struct.Struct("<QQII16x")
_OP = struct.Struct("<QQqQII")
_ALLOC = struct.Struct("<QqQQiI")
_LOSS = struct.Struct("<QQI20x")


@dataclass
class Kernel:
    start: int
    dur: int
    correlation: int
    name: int
    graph: int
    flags: int


@dataclass
class Records:
    kernels: list[Kernel] = field(default_factory=list)
    copies: int = 0
    link: dict[int, int] = field(default_factory=dict)
    api: dict[int, tuple[int, int]] = field(default_factory=dict)
    begin: dict[int, tuple[int, int]] = field(default_factory=dict)
    end: dict[int, int] = field(default_factory=dict)
    driver_bytes: int = 0
    driver: int = 0
    pool: int = 0
    lost: int = 0
    names: dict[int, str] = field(default_factory=dict)
    clocks: Counter[int] = field(default_factory=Counter)

    def attributed(self) -> float:
        """Share of the kernels that belong to an op."""
        known = sum(1 for kernel in self.kernels if kernel.correlation in self.link)
        return known / len(self.kernels) if self.kernels else 0.0


def read(path: Path) -> Records:
    records = Records()
    data = path.read_bytes()
    at = 0
    while at + _HEADER.size <= len(data):
        magic, kind, _, size, _ = _HEADER.unpack_from(data, at)
        if magic != 0x31505252:
            raise ValueError(f"{path}: byte {at}: not an entry of a sink")
        body = data[at + _HEADER.size : at + _HEADER.size + size]
        if len(body) < size:
            break
        if kind == 2:
            _read_names(body, records)
        if kind == 64:
            for slot in _SLOT.iter_unpack(body):
                _read_slot(slot, records)
        at += _HEADER.size + (size + 7) // 8 * 8
    return records


def _read_names(body: bytes, records: Records) -> None:
    at = 0
    while at + 8 <= len(body):
        name, n = struct.unpack_from("<II", body, at)
        records.names[name] = body[at + 8 : at + 8 + n].decode("utf-8", "replace")
        at += 8 + (n + 3) // 4 * 4


def _read_slot(slot: tuple[int, int, int, int, int, int, bytes], records: Records) -> None:
    _, kind, clock, _, thread, ts, body = slot
    if kind == KERNEL:
        dur, correlation, name, _, _, _, graph, _, flags = _KERNEL.unpack(body)
        records.kernels.append(Kernel(ts, dur, correlation, name, graph, flags))
        records.clocks[clock] += 1
    elif kind in (COPY, SET):
        records.copies += 1
    elif kind == LINK:
        op, _, correlation, _ = _API.unpack(body)
        records.link[correlation] = op
    elif kind == API:
        _, _, correlation, _ = _API.unpack(body)
        records.api[correlation] = (thread, ts)
    elif kind == OP_BEGIN:
        records.begin[_OP.unpack(body)[0]] = (thread, ts)
    elif kind == OP_END:
        records.end[_OP.unpack(body)[0]] = ts
    elif kind == ALLOC:
        _, size, _, _, _, what = _ALLOC.unpack(body)
        if what == DRIVER:
            records.driver += 1
            records.driver_bytes += max(size, 0)
        records.pool += what == POOL
    elif kind == LOSS:
        records.lost += _LOSS.unpack(body)[1]
