# SPDX-License-Identifier: Apache-2.0
"""What copies to host memory and back cost on this machine.

    link = link_to(tier, device, host_bytes)
    link.capabilities()               # as the server reads it

The rate is that of the largest copies while both directions are busy, or of one alone if that is
less; the latency is what the smallest copy takes beyond it. Measured once per machine and number of
ranks on it, which measure at about the same time, and kept with the costs of the tape
(costs_kept.py), together with the times by size. (Not run on a GPU.)
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from reprise.torch.internals.distributed import ranks_here
from reprise.torch.internals.outside import hide, host_buffer
from reprise.torch.offload.tier import Copying, Tier
from reprise.torch.tape.costs_kept import KeptCosts

SIZES = (1 << 16, 1 << 20, 1 << 24)
ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Link:
    """The way to host memory: bytes per second each way, the time that every copy takes besides,
    and how many bytes may be there."""

    out_bytes_per_s: int
    in_bytes_per_s: int
    latency_ns: int
    host_bytes: int

    def capabilities(self) -> str:
        """Returns the keys to be added to the capabilities of an executor."""
        return (
            f":out_bytes_per_s={self.out_bytes_per_s}:in_bytes_per_s={self.in_bytes_per_s}"
            f":latency_ns={self.latency_ns}:host_bytes={self.host_bytes}"
        )


def link_to(tier: Tier, device: torch.device, host_bytes: int) -> Link:
    """Returns the link of a device, as measured. Raises RepriseError if there is no host memory to
    copy to."""
    kept = KeptCosts(f"link of {tier.name}, {ranks_here()} ranks")
    figures = kept.find(SIZES[-1])
    if figures is None:
        figures = _measured(tier, device)
        kept.keep(SIZES[-1], figures)
    small, large = SIZES[0], SIZES[-1]
    both_ns = figures[f"both_{large}"]
    rates = [large * 1_000_000_000 // max(both_ns, figures[f"{way}_{large}"]) for way in _WAYS]
    latency = min(figures[f"{way}_{small}"] - small * 1_000_000_000 // max(rates) for way in _WAYS)
    return Link(rates[0], rates[1], max(0, latency), host_bytes)


_WAYS = ("out", "in")


def _measured(tier: Tier, device: torch.device) -> dict[str, int]:
    """Returns the times of copies by direction and size (ns), the least of several rounds."""
    found = {}
    out, back = _on(device, SIZES[-1]), _on(device, SIZES[-1])
    host = tier.slab(2 * SIZES[-1]).memory
    for size in SIZES:
        there, here = host[:size], host[SIZES[-1] :][:size]
        leave = (lambda size=size, there=there: tier.out(out[:size], there),)
        come = (lambda size=size, here=here: tier.back(here, back[:size]),)
        for way, copies in (("out", leave), ("in", come), ("both", leave + come)):
            found[f"{way}_{size}"] = min(_time(device, copies) for _ in range(ROUNDS))
    return found


def _time(device: torch.device, copies: tuple[Callable[[], Copying], ...]) -> int:
    settle = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    settle()
    begin = time.perf_counter_ns()
    for copy in [begin_copy() for begin_copy in copies]:
        copy.wait()
    settle()
    return max(1, time.perf_counter_ns() - begin)


def _on(device: torch.device, size: int) -> Tensor:
    """Returns memory of the device; of the CPU such that nobody counts."""
    if device.type != "cpu":
        return torch.zeros(size, dtype=torch.uint8, device=device)
    return hide(torch.frombuffer(host_buffer(size), dtype=torch.uint8))
