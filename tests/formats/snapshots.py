# SPDX-License-Identifier: Apache-2.0
"""Memory snapshots in the structure of torch.cuda.memory._snapshot, without a GPU."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any, BinaryIO

Frame = dict[str, Any]


def frame(filename: str, line: int, name: str) -> Frame:
    return {"filename": filename, "line": line, "name": name}


def stack(line: int) -> list[Frame]:
    return [
        frame("/usr/lib/python3/site-packages/torch/nn/functional.py", 2000, "linear"),
        frame("/home/me/model.py", line, "forward"),
        frame("/home/me/train.py", 7, "main"),
    ]


def event(action: str, addr: int, size: int, time_us: int, frames: list[Frame]) -> dict[str, Any]:
    return {
        "action": action,
        "addr": addr,
        "size": size,
        "stream": 0,
        "time_us": time_us,
        "compile_context": "N/A",
        "user_metadata": "",
        "pool_id": (0, 0),
        "frames": frames,
    }


def block(address: int, size: int, requested: int, state: str) -> dict[str, Any]:
    return {
        "address": address,
        "size": size,
        "requested_size": requested,
        "state": state,
        "frames": [],
    }


BASE = 0x7F0000000000


def snapshot() -> dict[str, Any]:
    """3000 bytes are there before; x 1000 and y 2000 at the peak; y and the 3000 at the end.

    time_us  100 alloc x, 150 alloc y, 300 free x, 400 alloc z 500, 450 free z:
    3000, 4000, 6000, 5000, 5500, 5000, and the peak is 6000 at 50 us after the first event.
    """
    x, y, z = BASE, BASE + 4096, BASE + 8192
    trace = [
        event("segment_alloc", BASE, 1 << 20, 90, stack(1)),
        event("alloc", x, 1000, 100, stack(11)),
        event("alloc", y, 2000, 150, stack(12)),
        event("free_requested", x, 1000, 290, []),
        event("free_completed", x, 1000, 300, []),
        event("alloc", z, 500, 400, stack(11)),
        event("free_requested", z, 500, 440, []),
        event("free_completed", z, 500, 450, []),
        {
            "action": "snapshot",
            "addr": 0,
            "size": 0,
            "stream": 0,
            "time_us": 460,
            "frames": [],
        },
    ]
    segment = {
        "device": 0,
        "address": BASE,
        "total_size": 1 << 20,
        "allocated_size": 5000,
        "active_size": 5000,
        "requested_size": 5000,
        "stream": 0,
        "segment_type": "small",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": [
            block(BASE, 4096, 0, "inactive"),
            block(y, 4096, 2000, "active_allocated"),
            block(z, 8192, 0, "inactive"),
            block(BASE + 16384, 4096, 3000, "active_allocated"),
            block(BASE + 20480, (1 << 20) - 20480, 0, "inactive"),
        ],
    }
    return {
        "segments": [segment],
        "device_traces": [trace],
        "allocator_settings": {
            "PYTORCH_CUDA_ALLOC_CONF": "",
            "max_split_size": -1,
            "x": 0.5,
        },
        "external_annotations": [],
    }


def write_large(file: BinaryIO, target_bytes: int) -> tuple[int, int]:
    """Streams a snapshot of about so many bytes, as pickle protocol 4 would write it: every
    entry with a stack of its own list, the frames shared. Returns events and the peak."""
    entries = 0
    out = bytearray(b"\x80\x04")
    memo = 0

    def put(data: bytes) -> None:
        nonlocal out
        out += data
        if len(out) > 1 << 20:
            file.write(out)
            out = bytearray()

    def text(value: str) -> bytes:
        nonlocal memo
        memo += 1
        raw = value.encode()
        return b"X" + len(raw).to_bytes(4, "little") + raw + b"\x94"

    def get(index: int) -> bytes:
        return b"j" + index.to_bytes(4, "little")

    def integer(value: int) -> bytes:
        return pickle.dumps(value, protocol=2)[2:-1]

    put(b"}\x94(")
    memo += 1
    put(text("segments") + b"]\x94")
    memo += 1
    put(text("device_traces") + b"]\x94(")
    memo += 1
    put(b"]\x94")
    memo += 1
    keys: dict[str, int] = {}

    def word(value: str) -> bytes:
        if value in keys:
            return get(keys[value])
        keys[value] = memo
        return text(value)

    frames: list[int] = []
    written = 0
    live = peak = 0
    pending: list[tuple[int, int]] = []
    while written < target_bytes:
        put(b"(")
        for _ in range(1000):
            if len(pending) < 4000 or entries % 2 == 0:
                address, size, action = (
                    BASE + 512 * entries,
                    512 + entries % 7 * 64,
                    "alloc",
                )
                pending.append((address, size))
                live += size
            else:
                address, size = pending.pop(len(pending) // 2)
                action = "free_completed"
                live -= size
            peak = max(peak, live)
            entry = b"}\x94("
            memo += 1
            entry += word("action") + word(action)
            entry += word("addr") + integer(address) + word("size") + integer(size)
            entry += word("stream") + integer(0) + word("time_us") + integer(entries)
            entry += word("frames") + b"]\x94("
            memo += 1
            while len(frames) < 40:
                frame_at = memo
                entry += b"}\x94("
                memo += 1
                entry += word("filename") + text(f"/home/me/model{len(frames)}.py")
                entry += word("line") + integer(len(frames)) + word("name") + word("forward") + b"u"
                frames.append(frame_at)
                if len(frames) % 20 == 0:
                    break
            else:
                entry += b"".join(get(frames[(entries + k) % 40]) for k in range(20))
            entry += b"eu"
            put(entry)
            written += len(entry)
            entries += 1
        put(b"e")
    put(b"eu.")
    file.write(out)
    return entries, peak


if __name__ == "__main__":
    Path(sys.argv[1]).write_bytes(pickle.dumps(snapshot()))
