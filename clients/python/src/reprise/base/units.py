# SPDX-License-Identifier: Apache-2.0
"""Formats bytes, times and percentages.

The C++ and TypeScript versions give the same results; all three are tested against
tests/fixtures/units.json.
"""

from __future__ import annotations

import math

_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def format_bytes(value: int, up: bool = False) -> str:
    """Formats bytes in binary units with one decimal, rounding halves up: 1536 -> "1.5 KiB"; with
    `up`, rounded up: 9.11 MiB -> "9.2 MiB"."""
    minus, size = ("-", -value) if value < 0 else ("", value)
    if size < 1024:
        return f"{minus}{size} B"
    for power, unit in enumerate(_BYTE_UNITS[1:], start=1):
        one = 1 << (10 * power)
        tenths = -(-size * 10 // one) if up and not minus else (size * 20 + one) // (2 * one)
        # 1023.96 KiB rounds to 1024.0 KiB: say 1.0 MiB.
        if tenths < 10240 or unit == _BYTE_UNITS[-1]:
            break
    return f"{minus}{tenths // 10}.{tenths % 10} {unit}"


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
