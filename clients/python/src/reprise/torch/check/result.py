# SPDX-License-Identifier: Apache-2.0
"""What a check found, as those who report it and act on it read it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BUFFER", "GRADIENTS", "VALUES", "CheckResult"]

# What a program may ask to be compared.
VALUES, GRADIENTS = "values", "gradients"
# Before the name of a buffer, among the names of what differs.
BUFFER = "buffer "


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What a check found: of gradients, or of values that were made again, and of buffers.
    `differing`: names, those of buffers after "buffer "; `buffers`: so many were compared that the
    step wrote; `extra_bytes`: what the check itself held during the step. Not `repeatable`: the
    step without a plan differs from itself."""

    checked: int
    differing: tuple[str, ...]
    left_out: int = 0
    extra_bytes: int = 0
    values: bool = False
    repeatable: bool = True
    buffers: int = 0

    def what_differs(self) -> str:
        """Says how many gradients and buffers differ in a check of gradients."""
        buffers = sum(name.startswith(BUFFER) for name in self.differing)
        gradients = len(self.differing) - buffers
        found = [f"{gradients} of {self.checked} gradients"] if gradients else []
        found += [f"{buffers} of {self.buffers} buffers that the forward writes"] if buffers else []
        return f"{' and '.join(found)} differ"
