# SPDX-License-Identifier: Apache-2.0
"""What an internal error of Reprise does to a compiled job: it takes Reprise off the model.

    faults = Faults(clear_up)
    faults.listen()
    if faults.found: faults.clear_up()          # at the next call of the model
    faults.guarded(do, optimizer)               # a hook of the optimizer
    faults.close()

An error may be noticed in the middle of a step, inside compiled code or its compiler
(internals/guard.py). Nothing is removed there: that waits for the next call of the model or of a
hook. Until then, and afterwards, the program's own compiled code is called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from reprise.torch.internals import guard

__all__ = ["Faults"]


class Faults:
    """Remembers the first internal error, and clears up after it once."""

    def __init__(self, clear_up: Callable[[], None]) -> None:
        """Calls `clear_up` after the first error, when it is safe to remove things."""
        self.why = ""
        self._clear_up = clear_up
        self._cleared_up = False

    def listen(self) -> None:
        """Takes note of errors from now on."""
        guard.listen(self._noted)

    @property
    def found(self) -> bool:
        """Whether there has been an internal error."""
        return bool(self.why)

    def close(self) -> None:
        """Stops listening for errors. Calling it again does nothing."""
        guard.no_longer(self._noted)

    def guarded(self, do: Callable[..., Any], *args: Any) -> None:
        """Calls `do` unless there was an error; an error in it is not raised. Clears up where there
        was one, now or before."""
        if not self.found:
            guard.quietly(do, *args)
        if self.found:
            self.clear_up()

    def clear_up(self) -> None:
        """Removes what is in the way of the program. Calling it again does nothing."""
        if not self._cleared_up:
            self._cleared_up = True
            guard.quietly(self._clear_up)

    def _noted(self, error: Exception) -> bool:
        """Keeps the first error. Returns False: whoever reports the error says so."""
        if not self.why:
            self.why = guard.failure(error)
        return False
