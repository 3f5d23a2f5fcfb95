# SPDX-License-Identifier: Apache-2.0
"""Runs one peer in a process of its own, so that its time and memory are its own."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import graphs


def main() -> int:
    peer = importlib.import_module(f"peers.{sys.argv[1]}")
    if len(sys.argv) == 2:
        print(json.dumps({"not_run": peer.missing()}))
        return 0
    graph_path, budget, seconds = sys.argv[2:5]
    graph = graphs.read(Path(graph_path))
    why_not = peer.missing() or peer.fits(graph)
    if why_not:
        print(json.dumps({"not_run": why_not}))
        return 0
    budget_bytes = graphs.budget_bytes(graph, budget)
    execs = peer.solve(graph, budget_bytes, float(seconds))
    if execs is None:
        print(json.dumps({"found": False}))
        return 0
    _, base_time = graphs.base(graph)
    peak, time = graphs.evaluate(graph, execs)
    print(
        json.dumps(
            {
                "found": True,
                "overhead": time / base_time - 1,
                "peak_bytes": peak,
                "budget_bytes": budget_bytes,
            }
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
