#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Opens many pages' worth of WatchRun streams on one running job, and measures what they cost.

    python watchers.py http://127.0.0.1:7070 TOKEN_FILE RUN_ID --pages 500 --seconds 20 --pid PID

For each step it prints how long after its end the first and the last stream had it. The clock
is that of this machine: the end of a step is CLOCK_MONOTONIC of the job. With --pid also the
processor time of the daemon.
"""

from __future__ import annotations

import argparse
import json
import selectors
import socket
import struct
import time
from pathlib import Path
from urllib.parse import urlparse


def processor_s(pid: int) -> float:
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def open_stream(host: str, port: int, token: str, run_id: str) -> socket.socket:
    """Asks for a run as a page does; the answer comes as chunks of HTTP/1.1."""
    body = json.dumps({"runId": run_id, "buckets": 700}).encode()
    body = b"\0" + struct.pack(">I", len(body)) + body
    head = (
        f"POST /reprise.v1.Query/WatchRun HTTP/1.1\r\nHost: {host}:{port}\r\n"
        f"Authorization: Bearer {token}\r\nContent-Type: application/connect+json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    stream = socket.create_connection((host, port), timeout=30)
    stream.sendall(head.encode() + body)
    stream.setblocking(False)
    return stream


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("token", type=Path)
    parser.add_argument("run_id")
    parser.add_argument("--pages", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--pid", type=int, default=0)
    options = parser.parse_args()
    where = urlparse(options.url)
    assert where.hostname
    assert where.port
    token = options.token.read_text().strip()
    selector = selectors.DefaultSelector()
    for _ in range(options.pages):
        stream = open_stream(where.hostname, where.port, token, options.run_id)
        selector.register(stream, selectors.EVENT_READ, bytearray())
    first: dict[int, float] = {}
    last: dict[int, float] = {}
    streams: dict[int, int] = {}
    begun, cpu = time.monotonic(), processor_s(options.pid) if options.pid else 0.0
    while time.monotonic() - begun < options.seconds:
        for key, _ in selector.select(0.2):
            data = key.fileobj.recv(1 << 20)  # type: ignore[union-attr]
            now = time.monotonic()
            if not data:
                selector.unregister(key.fileobj)
                continue
            text = bytes(key.data[-200:]) + data
            key.data[:] = data
            at = 0
            while (at := text.find(b'"endNs":"', at)) >= 0:
                at += 9
                end = text.find(b'"', at)
                if end < 0:
                    break
                ended = int(text[at:end]) / 1e9
                if not begun < ended < now:
                    continue
                late = now - ended
                step = int(ended * 1e6)
                first[step] = min(first.get(step, late), late)
                last[step] = max(last.get(step, late), late)
                streams[step] = streams.get(step, 0) + 1
    took = time.monotonic() - begun
    steps = sorted(step for step, seen in streams.items() if seen >= options.pages)
    print(f"{options.pages} streams, {len(steps)} steps seen by all of them in {took:.1f} s")
    if steps:
        latest = sorted(last[step] for step in steps)
        earliest = sorted(first[step] for step in steps)
        print(f"first stream after {1000 * earliest[len(earliest) // 2]:.0f} ms (median)")
        print(f"last stream after {1000 * latest[len(latest) // 2]:.0f} ms (median), ", end="")
        print(f"{1000 * latest[-1]:.0f} ms (worst)")
    if options.pid:
        spent = processor_s(options.pid) - cpu
        print(f"daemon: {spent:.2f} s of processor time, {100 * spent / took:.1f} % of a core")


if __name__ == "__main__":
    main()
