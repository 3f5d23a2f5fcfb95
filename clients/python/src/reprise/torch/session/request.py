# SPDX-License-Identifier: Apache-2.0
"""The budget that is asked of the planner with a step graph.

budget = within_device(session, message, budget)    # no more than this process can have
"""

from __future__ import annotations

from typing import Any

from reprise.errors import RepriseError
from reprise.torch.meter.room import advice, capacity, in_bytes
from reprise.torch.session.job import Job
from reprise.units import format_bytes, parse_bytes

__all__ = ["within_device"]

# The allocator takes memory from the driver in pieces of 20 MiB for most tensors, of 2 MiB for
# those below 1 MiB, and cannot use what is left of the device when the next piece does not fit.
PIECES = (20 << 20) + (2 << 20)


def within_device(session: Job, message: dict[str, Any], budget: str) -> str:
    """Returns the budget; a smaller one on a GPU that has less for this process than that and what
    its allocator takes beyond the bytes that are asked of it: rounding and fragments, as measured
    so far, and one more piece of each size."""
    if session.device.type != "cuda":
        return budget
    asked = _bytes_of(budget, message, session)
    there, beyond = capacity(session.device), session.measured.beyond_bytes + PIECES
    if asked is None or asked + beyond <= there or beyond >= there:
        return budget
    session.say(
        f"requesting a plan within {format_bytes(there - beyond)} instead of "
        f"{format_bytes(asked)}: this process can have {format_bytes(there)} of "
        f"{session.device}, and the allocator may take {format_bytes(beyond)} more than is "
        f"requested{advice(session.device)}"
    )
    return str(there - beyond)


def _bytes_of(budget: str, message: dict[str, Any], session: Job) -> int | None:
    """Returns a budget in bytes; None if it is not of a form that is known here."""
    try:
        if budget.endswith("x"):
            static = int(message["static_bytes"])
            return static + int(float(budget[:-1]) * (message["measured_peak_bytes"] - static))
        return parse_bytes(in_bytes(budget, session.device, session.meter.live()))
    except (RepriseError, ValueError):
        return None
