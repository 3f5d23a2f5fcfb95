#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a memory snapshot of PyTorch's form with millions of events.

The events are of steps that each allocate so many tensors and free them again, newest first, as a
forward and a backward do. In the middle of the recording one allocation of 8 GiB is freed by the
next event: the peak of the file, which a viewer that thins out by stride loses.
"""

from __future__ import annotations

import argparse
import random
import struct
from pathlib import Path
from typing import BinaryIO

BASE = 0x7F0000000000
SPIKE_BYTES = 1 << 33
STACKS = 2000


class Pickle:
    """The few opcodes of protocol 4 that such a file needs, written as a stream."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._parts: list[bytes] = [b"\x80\x04"]
        self._held = 0
        self._memo = 0

    def put(self, data: bytes) -> None:
        self._parts.append(data)
        self._held += len(data)
        if self._held > 1 << 22:
            self._file.write(b"".join(self._parts))
            self._parts.clear()
            self._held = 0

    def keep(self) -> bytes:
        """Memoizes what is on top; returns the opcode that gets it again."""
        self.put(b"\x94")
        self._memo += 1
        index = self._memo - 1
        return b"h%c" % index if index < 256 else b"j" + struct.pack("<I", index)

    def text(self, value: str) -> bytes:
        raw = value.encode()
        self.put(b"X" + struct.pack("<I", len(raw)) + raw)
        return self.keep()

    def close(self) -> None:
        self.put(b".")
        self._file.write(b"".join(self._parts))


def integer(value: int) -> bytes:
    if value < 256:
        return b"K%c" % value
    if value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    return b"\x8a\x08" + struct.pack("<q", value)


def write(file: BinaryIO, events: int, tensors: int, seed: int) -> dict[str, int]:
    """Writes the snapshot; returns what is in it.

    Args:
        file: where to write.
        events: allocations and frees, about; whole steps are written.
        tensors: alive at the peak of each step.
        seed: of sizes and stacks.
    """
    draw = random.Random(seed)
    pickle = Pickle(file)
    pickle.put(b"}(")
    pickle.text("device_traces")
    pickle.put(b"](")
    pickle.put(b"](")
    # The words and stacks stand in a first entry that no reader counts as an allocation.
    pickle.put(b"}(")
    words = {}
    words["action"] = pickle.text("action")
    words["snapshot"] = pickle.text("snapshot")
    for word in ("alloc", "free_completed", "addr", "size", "stream", "time_us", "frames"):
        words[word] = pickle.text(word)
        pickle.put(b"N")
    pickle.put(b"u")

    def frames(index: int) -> None:
        pickle.put(b"](")
        for depth in range(4):
            pickle.put(b"}(")
            for key, value in (
                ("filename", f"/home/me/model/block_{(index + depth) % 97}.py"),
                ("name", "forward" if depth < 3 else "main"),
            ):
                pickle.text(key)
                pickle.text(value)
            pickle.text("line")
            pickle.put(integer(10 + index % 500 + depth) + b"u")
        pickle.put(b"e")

    known: list[bytes | None] = [None] * STACKS
    action, addr, size = words["action"], words["addr"], words["size"]
    rest = words["stream"] + b"K\x00" + words["time_us"]
    alloc_head = b"}(" + action + words["alloc"] + addr
    free_head = b"}(" + action + words["free_completed"] + addr

    count = 0

    def entry(head: bytes, address: int, bytes_: int, stack: int) -> None:
        nonlocal count
        if count % 1000 == 0:
            pickle.put(b"e(")  # batches of a thousand, as Python writes them
        pickle.put(head + integer(address) + size + integer(bytes_) + rest + integer(count))
        if stack >= 0:
            pickle.put(words["frames"])
            again = known[stack]
            if again is None:
                frames(stack)
                known[stack] = pickle.keep()
            else:
                pickle.put(again)
        pickle.put(b"u")
        count += 1

    steps = max(1, events // (2 * tensors))
    live = peak = 0
    for step in range(steps):
        # With the spike, each step has as many events.
        tensors_here = tensors - 1 if step == steps // 2 else tensors
        sizes = [512 * draw.randint(1, 64) for _ in range(tensors_here)]
        for i, bytes_ in enumerate(sizes):
            entry(alloc_head, BASE + i * 65536, bytes_, draw.randrange(STACKS))
            live += bytes_
        peak = max(peak, live)
        if step == steps // 2:
            entry(alloc_head, BASE - SPIKE_BYTES, SPIKE_BYTES, 0)
            entry(free_head, BASE - SPIKE_BYTES, SPIKE_BYTES, -1)
            peak = max(peak, live + SPIKE_BYTES)
        for i in range(tensors_here - 1, -1, -1):
            entry(free_head, BASE + i * 65536, sizes[i], -1)
        live = 0
    pickle.put(b"ee")
    pickle.text("segments")
    pickle.put(b"]u")
    pickle.close()
    return {"events": count, "steps": steps, "peak_bytes": peak}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--tensors", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with options.file.open("wb") as file:
        made = write(file, options.events, options.tensors, options.seed)
    print(", ".join(f"{key} {value}" for key, value in made.items()))


if __name__ == "__main__":
    main()
