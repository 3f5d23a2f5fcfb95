# SPDX-License-Identifier: Apache-2.0
"""Formats and parses bytes, times and percentages.

The C++ and TypeScript versions give the same results; all three are tested against
tests/fixtures/units.json. The server interprets a budget, not the client: the check here
rejects a typing mistake before the first step instead of after the warm-up.
"""

from __future__ import annotations

import math
import re

from reprise.errors import RepriseError

__all__ = [
    "check_budget",
    "format_bytes",
    "format_bytes_up",
    "format_duration",
    "format_percent",
    "parse_bytes",
    "scaled_budget",
]

_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_WRITTEN_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "kB", "MB", "GB", "TB")
_HINT = "write 8GiB, 8GB, a number of bytes, 0.5x, 90% or fit"


def format_bytes(value: int) -> str:
    """Formats bytes in binary units with one decimal, rounding halves up: 1536 -> "1.5 KiB"."""
    minus, size = ("-", -value) if value < 0 else ("", value)
    if size < 1024:
        return f"{minus}{size} B"
    for power, unit in enumerate(_BYTE_UNITS[1:], start=1):
        one = 1 << (10 * power)
        tenths = (size * 20 + one) // (2 * one)
        # 1023.96 KiB rounds to 1024.0 KiB: say 1.0 MiB.
        if tenths < 10240 or unit == _BYTE_UNITS[-1]:
            break
    return f"{minus}{tenths // 10}.{tenths % 10} {unit}"


def format_bytes_up(value: int) -> str:
    """Formats bytes as `format_bytes` does, rounded up: 9.11 MiB -> "9.2 MiB"."""
    minus, size = ("-", -value) if value < 0 else ("", value)
    if minus or size < 1024:
        return format_bytes(value)
    for power, unit in enumerate(_BYTE_UNITS[1:], start=1):
        tenths = -(-size * 10 >> (10 * power))
        if tenths < 10240 or unit == _BYTE_UNITS[-1]:
            break
    return f"{tenths // 10}.{tenths % 10} {unit}"


def format_duration(ns: int) -> str:
    """Formats a time with three digits, without trailing zeros: 412_000_000 -> "412 ms"."""
    minus, value = ("-", -ns) if ns < 0 else ("", ns)
    if value < 1000:
        return f"{minus}{value} ns"
    # The thresholds are those at which three digits round up to the next unit.
    if value < 999_500:
        return f"{minus}{_three_digits(value, 1000)} us"
    if value < 999_500_000:
        return f"{minus}{_three_digits(value, 1_000_000)} ms"
    return f"{minus}{_three_digits(value, 1_000_000_000)} s"


def _three_digits(value: int, unit: int) -> str:
    """Formats `value` in units of `unit` with three digits, without trailing zeros."""
    digits = 0 if value >= 100 * unit else 1 if value >= 10 * unit else 2
    scale = 10**digits
    scaled = (2 * value * scale + unit) // (2 * unit)
    text = f"{scaled // scale}.{scaled % scale:0{digits}d}" if digits else str(scaled)
    return text.rstrip("0").rstrip(".") if digits else text


def format_percent(fraction: float, sign: bool = False) -> str:
    """Formats a fraction as a percentage: 0.0937 -> "9.4 %"; with `sign`, "+9.4 %"."""
    if not math.isfinite(fraction) or abs(fraction) > 1e12:
        return "? %"
    # Halves away from zero, as llround does.
    tenths = math.floor(abs(fraction * 1000) + 0.5)
    minus = "-" if fraction < 0 and tenths else "+" if sign else ""
    return f"{minus}{tenths // 10}.{tenths % 10} %"


def check_budget(budget: str | int) -> str:
    """Returns a budget as the server takes it: "22GiB", "22GB", 23622320128, "90%", "fit" or
    "0.5x". Raises RepriseError that names the text, what is wrong and what to write."""
    if isinstance(budget, bool) or not isinstance(budget, (str, int)):
        raise RepriseError(f"budget: must be text or a number of bytes, got {budget!r}; {_HINT}")
    text = str(budget).strip(" \t\r\n")
    if text == "fit":
        return text
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
    elif unit == "%":
        if not 0 < value <= 100:
            raise _refuse(
                text,
                "must be above 0 % and at most 100 %",
                "90% is a share of the device's memory",
            )
    elif len(unit) == 1 and unit in "kKmMgGtT":
        prefix = unit.upper()
        raise _refuse(
            text,
            f'the unit "{unit}" can mean two sizes',
            f"write {number}{prefix}iB (binary) or {number}{prefix.replace('K', 'k')}B (decimal)",
        )
    elif unit == "" and "." in number:
        raise _refuse(text, "bytes are whole numbers")
    elif unit and unit not in _WRITTEN_UNITS:
        units = {known.lower(): known for known in (*_WRITTEN_UNITS, "x")}
        meant = units.get(unit.lower())
        remedy = f"did you mean {number}{meant}?" if meant else _HINT
        raise _refuse(text, "the unit is not known", remedy)
    elif value <= 0:
        raise _refuse(text, "must be positive")
    return text


def scaled_budget(text: str, factor: float) -> str:
    """Returns a budget multiplied by a factor below 1: a size as bytes, a share as a share. "fit"
    stays."""
    match = re.fullmatch(r"([0-9.]+)[ \t]*([x%])", check_budget(text))
    if text == "fit" or factor >= 1:
        return text
    if match is not None:
        return f"{float(match[1]) * factor:.6g}{match[2]}"
    return str(int(parse_bytes(text) * factor))


def parse_bytes(text: str) -> int:
    """Returns the bytes of a size such as "2GiB" or "500MB". Raises RepriseError for a share, which
    has none."""
    checked = check_budget(text)
    match = re.fullmatch(r"([0-9.]+)[ \t]*([A-Za-z]*)", checked)
    unit = match[2] if match else ""
    if match is None or unit == "x":
        raise _refuse(checked, "is a share, not a size", "write 8GiB, 8GB or a number of bytes")
    base = 1024 if unit.endswith("iB") else 1000
    power = " KMGT".index(unit[0].upper()) if unit not in ("", "B") else 0
    return int(float(match[1]) * base**power)


def _refuse(text: str, fact: str, remedy: str = _HINT) -> RepriseError:
    """Returns the error for a budget, with its text, what is wrong, and what to do."""
    shown = "".join(c if " " <= c <= "~" else "?" for c in text[:40])
    return RepriseError(f'budget "{shown}{"..." if len(text) > 40 else ""}": {fact}; {remedy}')
