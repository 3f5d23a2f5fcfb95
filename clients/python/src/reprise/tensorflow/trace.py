# SPDX-License-Identifier: Apache-2.0
"""Reads what TensorFlow records of a step that ran under `FULL_TRACE`: bytes, times, the peak.

metadata = run_traced(session, fetches, feed_dict)
peak_bytes(metadata)               # without variables and feeds, which no op allocates
op_records(metadata)["Conv2D"]     # time, workspace and output bytes of one op
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import itemgetter
from types import MappingProxyType
from typing import Any

import tensorflow as tf


@dataclass(frozen=True, slots=True)
class OpRecord:
    """What a traced step recorded of one op."""

    time_ns: int
    # The most bytes alive while it ran, minus those that it left.
    workspace_bytes: int
    # By output. Of one that is a part of another tensor: the bytes of that one.
    output_bytes: tuple[int, ...]
    # All that it allocated, freed again or not, and what of that is alive when it ends.
    allocated_bytes: int = 0
    left_bytes: int = 0


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
        machine = device.device.split("/stream")[0]
        for node in device.node_stats:
            for memory in node.memory:
                into = events[machine, memory.allocator_name]
                into += [(r.alloc_micros, r.alloc_bytes) for r in memory.allocation_records]
            if node.node_name in released:
                ended = node.all_start_micros + node.op_end_rel_micros
                ends[machine].append((ended, -released[node.node_name]))
    for (machine, _), into in events.items():
        into += ends.pop(machine, [])
    # Within one microsecond, frees come first.
    sizes = ([size for _, size in sorted(found)] for found in events.values())
    return max((max(accumulate(of_one, initial=0)) for of_one in sizes), default=0)


def op_records(metadata: Any, names: Container[str] = ()) -> dict[str, OpRecord]:
    """Returns the records of a traced step by op name. What TensorFlow runs in the place of a loop
    or a conditional counts as the op of these `names` that it stands for."""
    nodes: dict[str, list[Any]] = defaultdict(list)
    for device in metadata.step_stats.dev_stats:
        # A GPU lists the same ops a second time, as streams of kernels, without memory.
        if "stream" in device.device:
            continue
        for node in device.node_stats:
            name = _stands_for(node.node_name, names)
            if name == node.node_name:
                nodes[name] = [node]
            else:
                nodes[name].append(node)
    return {name: _record(found, name) for name, found in nodes.items()}


def _stands_for(name: str, names: Container[str]) -> str:
    """Returns the op that a node was made of: while/body/_1/mul, and Func/while/body/_1/input/_2,
    of a loop named while."""
    whole = name.removeprefix("Func/")
    while name not in names and "/" in whole:
        whole = whole.rpartition("/")[0]
        if whole in names:
            return whole
    return name


def _record(nodes: Sequence[Any], name: str) -> OpRecord:
    ended = max(node.all_start_micros + node.op_end_rel_micros for node in nodes)
    events: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for node in nodes:
        for memory in node.memory:
            records = memory.allocation_records
            events[memory.allocator_name] += [(r.alloc_micros, r.alloc_bytes) for r in records]
    workspace = allocated = in_the_end = 0
    for found in events.values():
        found.sort(key=itemgetter(0))
        left = sum(size for at, size in found if at <= ended)
        workspace += max(accumulate((size for _, size in found), initial=0)) - left
        allocated += sum(max(0, size) for _, size in found)
        in_the_end += max(0, left)
    sizes: dict[int, int] = {}
    for output in (output for node in nodes if node.node_name == name for output in node.output):
        described = output.tensor_description.allocation_description
        sizes[output.slot] = int(described.requested_bytes)
    outputs = tuple(sizes.get(slot, 0) for slot in range(max(sizes, default=-1) + 1))
    time_ns = sum(node.op_end_rel_nanos - node.op_start_rel_nanos for node in nodes)
    return OpRecord(max(1, time_ns), workspace, outputs, allocated, in_the_end)
