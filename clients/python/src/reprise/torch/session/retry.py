# SPDX-License-Identifier: Apache-2.0
"""A budget that was refused is asked for again when the step has changed.

retry.refused()               # no plan fits the steps as they are
retry.ended(key, peak)        # a plain step has ended; may begin anew

A refusal is about the step that was captured. Layers that are unfrozen, a longer sequence, a buffer
that is gone make another one of it, which may have a plan. What tells is the peak of plain steps: a
few in a row with another one than any before the refusal. Each try costs a captured step, so each
next one waits longer, and there are not many.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

from reprise.torch.ladder.stage import Stage
from reprise.units import format_bytes

if TYPE_CHECKING:
    from reprise.torch.session.session import Session

__all__ = ["Retry"]

# Steps in a row with another peak, by so much, before a try; twice as many before each next one.
STEPS, CHANGED = 3, 0.1
# Less than this comes and goes with garbage.
LEAST_BYTES = 1 << 16
TRIES = 5


class Retry:
    """Of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._refused = False
        self._tries = 0
        self._in_a_row = 0
        # Peaks of plain steps as they were refused: lowest and highest, by input.
        self._known: dict[Hashable, tuple[int, int]] = {}
        self._new: dict[Hashable, tuple[int, int]] = {}

    def refused(self) -> None:
        """By the planner, for what the steps need."""
        self._refused = True

    def ended(self, key: Hashable, peak: int) -> None:
        """A plain step has ended."""
        session = self._session
        if not self._refused or session.stage is not Stage.PLAIN:
            _widen(self._known, key, peak)
            return
        if session.planning.together is not None or self._tries >= TRIES:
            return
        low, high = self._range(key)
        less, more = max(LEAST_BYTES, CHANGED * low), max(LEAST_BYTES, CHANGED * high)
        if low - less <= peak <= high + more:
            self._in_a_row = 0
            self._new.clear()
            _widen(self._known, key, peak)
            return
        self._in_a_row += 1
        _widen(self._new, key, peak)
        if self._in_a_row >= STEPS << self._tries:
            self._again(high, peak)

    def _range(self, key: Hashable) -> tuple[int, int]:
        """Peaks that are nothing new. Of an input that was not seen before, any that is not higher
        than all of them."""
        known = self._known.get(key)
        return known or (0, max((high for _, high in self._known.values()), default=0))

    def _again(self, before: int, now: int) -> None:
        session = self._session
        self._tries += 1
        self._known, self._new = self._new, {}
        self._in_a_row, self._refused = 0, False
        session.say(
            f"the step is another one than that whose budget was refused: it peaks at "
            f"{format_bytes(now)}, that one at {format_bytes(before)}. It is captured, and a plan "
            "asked for again"
        )
        session.planning.begin_again()
        session.measured.begin_again()
        session.stage, session.why = Stage.WARMUP, ""


def _widen(peaks: dict[Hashable, tuple[int, int]], key: Hashable, peak: int) -> None:
    known = peaks.get(key)
    if known is not None:
        peaks[key] = min(known[0], peak), max(known[1], peak)
    elif len(peaks) < 64:
        peaks[key] = peak, peak
