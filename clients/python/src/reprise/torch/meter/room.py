# SPDX-License-Identifier: Apache-2.0
"""How many more bytes a device can provide, and how large it is in total.

    room = room_on(device)       # None: not known
    room.bytes, room.what, room.host_apart
    capacity(device)             # of a GPU: the most this process can have in total
    advice(device)               # of a GPU: a setting that would waste less of it
    share_of(Budget("90%"), device, meter.live())     # what the planner must know for such a budget
    in_bytes(Budget("90%"), device, alive)            # such a budget as a number of bytes

On a GPU the room is what the driver has free, within the share that the process has set for itself,
plus what torch's allocator holds unused. Free parts of segments that also hold live blocks are not
included, because only smaller tensors fit there, unless segments are expandable. On the CPU it is
the tightest of the limits that end a process: its own (RLIMIT_DATA, RLIMIT_AS), its control
group's, and the machine's available memory. Only RLIMIT_DATA does not count saved tensors in host
memory, because those are shared mappings (host.py). The total is the smallest of the same limits
and the machine's memory.
"""

from __future__ import annotations

import resource
from dataclasses import dataclass
from pathlib import Path

import torch

from reprise.base.budget import Budget
from reprise.base.units import format_bytes
from reprise.torch.meter.cuda_meter import expandable

EXPANDABLE = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
HOST = torch.device("cpu")
ADVICE_FROM = 0.05  # the share of a GPU in fragments from which on we give advice


@dataclass(frozen=True, slots=True)
class Room:
    """How many bytes can still be allocated, and under which limit."""

    bytes: int
    what: str  # the limit, as users read it
    host_apart: bool  # copies in host memory do not count towards the limit


def room_on(device: torch.device) -> Room | None:
    """Returns the room under the tightest limit of a device, or None if no limit is known."""
    if device.type == "cuda":
        return _on_gpu(device)
    if device.type != "cpu":
        return None
    found = _own_limits()
    for most, used, cache in _groups():  # the page cache of a control group counts as free
        found.append(Room(max(0, most - used + cache), "the control group's memory", False))
    if (free := _fields(Path("/proc/meminfo")).get("MemAvailable")) is not None:
        found.append(Room(free, "the machine's memory", host_apart=False))
    return min(found, key=lambda room: room.bytes, default=None)


def capacity(device: torch.device) -> int:
    """Returns how many bytes of a GPU this process can have in total: those that it has and those
    that are free."""
    free, total = torch.cuda.mem_get_info(device)
    reserved = torch.cuda.memory_reserved(device)
    own = total * torch.cuda.get_per_process_memory_fraction(device)
    return min(int(free) + reserved, int(own))


def advice(device: torch.device) -> str:
    """Returns advice for a job that ran out of GPU memory while a part of it lies in fragments;
    empty if there is none to give."""
    if device.type != "cuda" or expandable():
        return ""
    counters = torch.cuda.memory_stats_as_nested_dict(device)
    parts = counters.get("inactive_split_bytes", {}).get("all", {}).get("current", 0)
    if parts < capacity(device) * ADVICE_FROM:
        return ""
    return (
        f" ({format_bytes(parts)} of {device} lie in fragments; {EXPANDABLE} lets the allocator "
        "use them)"
    )


def _on_gpu(device: torch.device) -> Room:
    counters = torch.cuda.memory_stats_as_nested_dict(device)

    def now(name: str) -> int:
        return int(counters.get(name, {}).get("all", {}).get("current", 0))

    parts = 0 if expandable() else now("inactive_split_bytes")
    left = capacity(device) - now("allocated_bytes") - parts
    return Room(max(0, left), f"the memory of {device}", host_apart=True)


def whole_of(device: torch.device) -> int | None:
    """Returns the most bytes of the device that this process may have, which a budget of "90%"
    refers to; None if it is not known."""
    if device.type == "cuda":
        _, total = torch.cuda.mem_get_info(device)
        return int(total * torch.cuda.get_per_process_memory_fraction(device))
    if device.type != "cpu":
        return None
    soft = [resource.getrlimit(which)[0] for which in (resource.RLIMIT_DATA, resource.RLIMIT_AS)]
    found = [limit for limit in soft if limit != resource.RLIM_INFINITY]
    found += [most for most, _, _ in _groups()]
    if (machine := _fields(Path("/proc/meminfo")).get("MemTotal")) is not None:
        found.append(machine)
    return min(found, default=None)


def share_of(budget: Budget, device: torch.device, held_bytes: int) -> dict[str, int]:
    """Returns what `Agent.submit_graph` needs in addition to this budget: the total for a
    percentage; what is free plus what the job holds for "fit"; nothing for any other budget."""
    if budget.kind == "percent":
        return {"device_bytes": whole_of(device) or 0}
    if budget.kind == "fit" and (room := room_on(device)) is not None:
        return {"device_free_bytes": room.bytes + held_bytes}
    return {}


def in_bytes(budget: Budget, device: torch.device, held_bytes: int) -> Budget:
    """Returns a percentage or "fit" as a number of bytes if the device's bytes are known; any other
    budget unchanged."""
    known = share_of(budget, device, held_bytes)
    if known.get("device_bytes"):
        return Budget(int(known["device_bytes"] * budget.amount / 100))
    if "device_free_bytes" in known:
        return Budget(known["device_free_bytes"])
    return budget


def _own_limits() -> list[Room]:
    """Returns the room under the limits of this process: RLIMIT_DATA limits its private writable
    pages, RLIMIT_AS its address space."""
    status = _fields(Path("/proc/self/status"))
    found = []
    for which, field, name, apart in (
        (resource.RLIMIT_DATA, "VmData", "RLIMIT_DATA", True),
        (resource.RLIMIT_AS, "VmSize", "RLIMIT_AS", False),
    ):
        soft, _ = resource.getrlimit(which)
        if soft != resource.RLIM_INFINITY and field in status:
            found.append(Room(max(0, soft - status[field]), name, apart))
    return found


def _groups() -> list[tuple[int, int, int]]:
    """Returns limit, use and page cache of the control group (version 2) and of each of its parents
    that has a limit."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        own = next(line[3:].strip("/") for line in lines if line.startswith("0::"))
    except (OSError, StopIteration):
        return []
    root, found = Path("/sys/fs/cgroup"), []
    for folder in (root / own, *(root / own).parents):
        try:
            most = (folder / "memory.max").read_text().strip()
            used = int((folder / "memory.current").read_text())
        except (OSError, ValueError):
            continue
        if most.isdigit():
            cache = _fields(folder / "memory.stat", unit=1).get("inactive_file", 0)
            found.append((int(most), used, cache))
    return found


def _fields(path: Path, unit: int = 1024) -> dict[str, int]:
    """Reads a file of `name: number kB` lines; returns bytes by name."""
    found = {}
    try:
        for line in path.read_text().splitlines():
            words = line.replace(":", " ").split()
            if len(words) > 1 and words[1].isdigit():
                found[words[0]] = int(words[1]) * unit
    except OSError:
        return {}
    return found
