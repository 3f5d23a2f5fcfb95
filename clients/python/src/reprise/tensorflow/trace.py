# SPDX-License-Identifier: Apache-2.0
"""Reads what TensorFlow records of a step that ran under `FULL_TRACE`: bytes, times, the peak.

metadata = run_traced(session, fetches, feed_dict)
peak_bytes(metadata)               # without variables and feeds, which no op allocates
op_records(metadata)["Conv2D"]     # time, workspace and output bytes of one op
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import tensorflow as tf

__all__ = ["OpRecord", "op_records", "peak_bytes", "run_traced"]


@dataclass(frozen=True, slots=True)
class OpRecord:
    """What a traced step recorded of one op."""

    time_ns: int
    # The most bytes alive while it ran, minus those that it left.
    workspace_bytes: int
    # By output. Of one that is a part of another tensor: the bytes of that one.
    output_bytes: tuple[int, ...]
    # All that it allocated, freed again or not.
    allocated_bytes: int = 0


def run_traced(session: Any, fetches: Any, feed_dict: Any = None) -> tuple[Any, Any]:
    """Runs a step; returns the fetched values and its metadata."""
    metadata = tf.compat.v1.RunMetadata()
    options = tf.compat.v1.RunOptions(trace_level=tf.compat.v1.RunOptions.FULL_TRACE)
    fetched = session.run(fetches, feed_dict, options=options, run_metadata=metadata)
    return fetched, metadata


def peak_bytes(metadata: Any, released: Mapping[str, int] = MappingProxyType({})) -> int:
    """Returns the most bytes that ops had allocated at once, on the device that had most.
    `released`: the bytes that ops of these names let go when they end, of which there is no record:
    the old memory of a variable that is given another value."""
    events: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    ends: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for device in metadata.step_stats.dev_stats:
        for node in device.node_stats:
            for memory in node.memory:
                into = events[_machine(device.device), memory.allocator_name]
                into += [(r.alloc_micros, r.alloc_bytes) for r in memory.allocation_records]
            if node.node_name in released:
                ended = node.all_start_micros + node.op_end_rel_micros
                ends[_machine(device.device)].append((ended, -released[node.node_name]))
    for (where, _), into in events.items():
        into += ends.pop(where, [])
    return max((_highest(found) for found in events.values()), default=0)


def _highest(events: Iterable[tuple[int, int]]) -> int:
    """Returns the highest sum of allocations and frees over time. Within one microsecond, frees
    come first."""
    alive = peak = 0
    for _, size in sorted(events):
        alive += size
        peak = max(peak, alive)
    return peak


def op_records(metadata: Any) -> dict[str, OpRecord]:
    """Returns the records of a traced step by op name."""
    records: dict[str, OpRecord] = {}
    for device in metadata.step_stats.dev_stats:
        # A GPU lists the same ops a second time, as streams of kernels, without memory.
        if "stream" in device.device:
            continue
        for node in device.node_stats:
            records[node.node_name] = _record(node)
    return records


def _record(node: Any) -> OpRecord:
    """Returns the record of one op."""
    ended = node.all_start_micros + node.op_end_rel_micros
    workspace = allocated = 0
    for memory in node.memory:
        alive = highest = left = 0
        for record in memory.allocation_records:
            alive += record.alloc_bytes
            allocated += max(0, record.alloc_bytes)
            highest = max(highest, alive)
            if record.alloc_micros <= ended:
                left = alive
        workspace += max(0, highest - left)
    sizes: dict[int, int] = {}
    for output in node.output:
        described = output.tensor_description.allocation_description
        sizes[output.slot] = int(described.requested_bytes)
    outputs = tuple(sizes.get(slot, 0) for slot in range(max(sizes, default=-1) + 1))
    time_ns = node.op_end_rel_nanos - node.op_start_rel_nanos
    return OpRecord(max(1, time_ns), workspace, outputs, allocated)


def _machine(device: str) -> str:
    """Returns the name of a device without its stream."""
    return device.split("/stream")[0]
