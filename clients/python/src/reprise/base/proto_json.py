# SPDX-License-Identifier: Apache-2.0
"""Reads one proto3 JSON message and checks every field.

    f = Fields(json.loads(text), "plan")
    f.size("peak_bytes")       # RepriseError: plan.peak_bytes: must not be negative, got -1

Absent and null fields have proto3's defaults, unknown fields are ignored. A name
may be in lowerCamelCase or as written in the proto; a 64-bit integer may be a
number or a string, an enum a name or a number.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from enum import IntEnum
from typing import Any, TypeVar

from reprise.base.errors import RepriseError

# More entries than any step has; limits how much memory hostile text can take.
MAX_ENTRIES = 4_000_000

_INT64_MAX = 2**63 - 1

E_ = TypeVar("E_", bound=IntEnum)
T = TypeVar("T")


def shorten(value: object) -> str:
    """Returns a value as an error shows it: on one line of at most 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)


class Fields:
    """Reads the fields of one JSON object. Every getter raises RepriseError that names the
    field."""

    def __init__(self, value: object, where: str) -> None:
        if not isinstance(value, Mapping):
            raise RepriseError(f"{where}: must be an object, got {shorten(value)}")
        self._value: Mapping[str, Any] = value
        self._where = where

    def _raw(self, name: str) -> Any:
        """Returns the value under either spelling; None if it is absent or null."""
        value = self._value.get(_camel(name))
        return self._value.get(name) if value is None else value

    def _path(self, name: str) -> str:
        return f"{self._where}.{name}"

    def text(self, name: str) -> str:
        """Returns a string; "" if it is absent."""
        return self._typed(name, str, "text")

    def hex_id(self, name: str) -> str:
        """Returns an id of 16 lower-case hex digits."""
        value = self.text(name)
        if len(value) != 16 or set(value) - set("0123456789abcdef"):
            raise RepriseError(
                f"{self._path(name)}: must be 16 lower-case hex digits, got {shorten(value)}"
            )
        return value

    def flag(self, name: str) -> bool:
        """Returns a boolean; False if it is absent."""
        return self._typed(name, bool, "true or false")

    def _typed(self, name: str, kind: type[T], what: str) -> T:
        value = self._raw(name)
        if value is None:
            return kind()
        if not isinstance(value, kind):
            raise RepriseError(f"{self._path(name)}: must be {what}, got {shorten(value)}")
        return value

    def number(self, name: str) -> float:
        """Returns a finite number; 0 if it is absent."""
        value = self._raw(name)
        if value is None:
            return 0.0
        if isinstance(value, str):
            with contextlib.suppress(ValueError):
                value = float(value)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise RepriseError(f"{self._path(name)}: must be a number, got {shorten(value)}")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise RepriseError(f"{self._path(name)}: must be finite, got {shorten(value)}")
        return number

    def size(self, name: str) -> int:
        """Returns an integer that is not negative; 0 if it is absent."""
        value = self._raw(name)
        return 0 if value is None else _integer(value, self._path(name), 0)

    def integers(self, name: str, least: int = 0) -> tuple[int, ...]:
        """Returns a list of integers of at least `least`; empty if it is absent."""
        return self._list(name, lambda value, where: _integer(value, where, least))

    def enum(self, name: str, kind: type[E_], prefix: str) -> E_:
        """Returns a member of an enum, whose names have a prefix; its zero member if it is
        absent."""
        value = self._raw(name)
        return kind(0) if value is None else _one_of(value, self._path(name), kind, prefix)

    def enums(self, name: str, kind: type[E_], prefix: str) -> tuple[E_, ...]:
        """Returns a list of members of an enum; empty if it is absent."""
        return self._list(name, lambda value, where: _one_of(value, where, kind, prefix))

    def message(self, name: str) -> Fields | None:
        """Returns the reader of a nested message; None if it is absent."""
        value = self._raw(name)
        return None if value is None else Fields(value, self._path(name))

    def made(self, name: str, kind: type[T]) -> T | None:
        """Returns a nested message as a data class whose fields `plain` reads; None if it is
        absent."""
        found = self.message(name)
        return None if found is None else kind(**found.plain(kind))

    def plain(self, kind: type[Any], but: Collection[str] = ()) -> dict[str, Any]:
        """Returns the fields of a data class, but these, by their types: texts, flags, numbers,
        sizes, and lists of sizes."""
        read = {
            "str": self.text,
            "bool": self.flag,
            "float": self.number,
            "int": self.size,
            "tuple[int, ...]": self.integers,
        }
        return {f.name: read[f.type](f.name) for f in fields(kind) if f.name not in but}  # type: ignore[index]

    def _list(self, name: str, read: Callable[[object, str], T]) -> tuple[T, ...]:
        """Returns a list, each item read by `read(item, path)`."""
        value = self._raw(name)
        if value is None:
            return ()
        if not isinstance(value, list):
            raise RepriseError(f"{self._path(name)}: must be a list, got {shorten(value)}")
        if len(value) > MAX_ENTRIES:
            raise RepriseError(
                f"{self._path(name)}: {len(value)} entries, more than the {MAX_ENTRIES} allowed"
            )
        path = self._path(name)
        return tuple(read(item, f"{path}[{i}]") for i, item in enumerate(value))


def _integer(value: object, where: str, least: int) -> int:
    """Returns a value as an integer from `least` to 2**63 - 1. Raises RepriseError that names the
    field."""
    number: int | None = None
    if isinstance(value, int) and not isinstance(value, bool):
        number = value
    elif isinstance(value, float) and value.is_integer():
        number = int(value)
    elif isinstance(value, str) and len(value) <= 20:
        # int() alone would also take "1_000", " 7 " and other alphabets' digits.
        digits = value[1:] if value.startswith("-") else value
        if digits.isascii() and digits.isdigit():
            number = int(value)
    if number is None:
        raise RepriseError(f"{where}: must be an integer, got {shorten(value)}")
    if not least <= number <= _INT64_MAX:
        fact = "must not be negative" if least == 0 and number < 0 else "does not fit in 64 bits"
        raise RepriseError(f"{where}: {fact}, got {shorten(value)}")
    return number


def _one_of(value: object, where: str, kind: type[E_], prefix: str) -> E_:
    if isinstance(value, str) and value.startswith(prefix):
        name = value[len(prefix) :]
        if name in kind.__members__:
            return kind[name]
    elif (
        isinstance(value, int) and not isinstance(value, bool) and value in kind._value2member_map_
    ):
        return kind(value)
    names = ", ".join(prefix + member for member in kind.__members__)
    raise RepriseError(f"{where}: must be one of {names}, got {shorten(value)}")
