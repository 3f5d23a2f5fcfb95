# SPDX-License-Identifier: Apache-2.0
"""A budget as people write it, parsed once.

    budget = Budget("0.5x")          # RepriseError: what is wrong with it, and what to write
    budget.kind, budget.amount       # "share", 0.5
    budget.scaled(0.9)               # "0.45x"
    budget.of_step(static, peak)     # in bytes; None where that hangs on the device

The server interprets a budget. It is parsed here, too, because a typing mistake is to end the job
before its first step and not after its warm-up, and because some decisions of a job hang on its
kind.
"""

from __future__ import annotations

import re
from typing import Literal

from reprise.base.errors import RepriseError

Kind = Literal["bytes", "share", "percent", "fit", "least"]

_WRITTEN_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "kB", "MB", "GB", "TB")
_HINT = "write 8GiB, 8GB, a number of bytes, 0.5x, 90% or fit"


class Budget(str):
    """A budget as it was written, "22GiB", "22GB", 23622320128, "90%", "fit" or "0.5x", with what
    that means: `amount` is bytes, a share of the dynamic peak of a step, or a percentage of the
    device's memory; 0 for what is free."""

    __slots__ = ("amount", "kind")

    kind: Kind
    amount: float

    def __new__(cls, budget: str | int) -> Budget:
        """Raises RepriseError that names the text, what is wrong and what to write."""
        if isinstance(budget, cls):
            return budget
        if isinstance(budget, bool) or not isinstance(budget, (str, int)):
            raise RepriseError(
                f"budget: must be text or a number of bytes, got {budget!r}; {_HINT}"
            )
        text = str(budget).strip(" \t\r\n")
        return cls._made(text, *_parsed(text))

    @classmethod
    def _made(cls, text: str, kind: Kind, amount: float) -> Budget:
        made = super().__new__(cls, text)
        made.kind, made.amount = kind, amount
        return made

    @classmethod
    def least(cls) -> Budget:
        """Returns what asks the server for the plan that needs least. Nobody writes it."""
        return cls._made("least", "least", 0)

    @property
    def is_share(self) -> bool:
        """Whether it is a share of the step that it is for."""
        return self.kind == "share"

    @property
    def bytes(self) -> int | None:
        """The bytes that it names; None if it is none of that kind."""
        return int(self.amount) if self.kind == "bytes" else None

    def of_step(self, static: int, peak: int) -> int | None:
        """Returns it in bytes for a step with this static memory and this peak, which are in bytes;
        None if it hangs on the device."""
        if self.kind == "share":
            return static + int(self.amount * max(0, peak - static))
        return self.bytes

    def scaled(self, factor: float) -> Budget:
        """Returns it multiplied by a factor below 1: a size as bytes, a share as a share. "fit"
        stays."""
        if self.kind == "fit" or factor >= 1:
            return self
        # Not parsed again: however small it gets, the server says what is wrong with it.
        amount = self.amount * factor
        if self.kind == "bytes":
            return self._made(str(int(amount)), "bytes", int(amount))
        return self._made(f"{amount:.6g}{'x' if self.is_share else '%'}", self.kind, amount)


def size_of(name: str, text: str | int, example: str) -> int:
    """Returns a size that is no budget, as "8GiB", in bytes. Raises RepriseError that names it,
    with an example of what to write."""
    try:
        size = Budget(text).bytes
    except RepriseError:
        size = None
    if size is None:
        raise RepriseError(f"{name}: must be {example}, got {str(text)[:40]!r}")
    return size


def _parsed(text: str) -> tuple[Kind, float]:
    if text == "fit":
        return "fit", 0
    if text.lower() == "fit":
        raise _refuse(text, "is not known", "did you mean fit?")
    match = re.fullmatch(r"([0-9.]*)[ \t]*(.*)", text, re.DOTALL)
    number, unit = (match[1], match[2]) if match else ("", text)
    try:
        value = float(number)
    except ValueError:
        if text.startswith("-"):
            raise _refuse(text, "must be positive") from None
        fact = "does not start with a number" if text else "is empty"
        raise _refuse(text, fact) from None

    if unit == "x":
        if not 0 < value <= 1000:
            raise _refuse(
                text,
                "the fraction must be above 0 and at most 1000",
                "0.5x is static memory plus half of the dynamic peak",
            )
        return "share", value
    if unit == "%":
        if not 0 < value <= 100:
            raise _refuse(
                text,
                "must be above 0 % and at most 100 %",
                "90% is a share of the device's memory",
            )
        return "percent", value
    if len(unit) == 1 and unit in "kKmMgGtT":
        prefix = unit.upper()
        raise _refuse(
            text,
            f'the unit "{unit}" can mean two sizes',
            f"write {number}{prefix}iB (binary) or {number}{prefix.replace('K', 'k')}B (decimal)",
        )
    if unit == "" and "." in number:
        raise _refuse(text, "bytes are whole numbers")
    if unit and unit not in _WRITTEN_UNITS:
        units = {known.lower(): known for known in (*_WRITTEN_UNITS, "x")}
        meant = units.get(unit.lower())
        remedy = f"did you mean {number}{meant}?" if meant else _HINT
        raise _refuse(text, "the unit is not known", remedy)
    if value <= 0:
        raise _refuse(text, "must be positive")
    if value >= 1 << 63:
        raise _refuse(text, "is larger than any memory")
    base = 1024 if unit.endswith("iB") else 1000
    power = " KMGT".index(unit[0].upper()) if unit not in ("", "B") else 0
    return "bytes", int(value * base**power)


def _refuse(text: str, fact: str, remedy: str = _HINT) -> RepriseError:
    shown = "".join(c if " " <= c <= "~" else "?" for c in text[:40])
    return RepriseError(f'budget "{shown}{"..." if len(text) > 40 else ""}": {fact}; {remedy}')
