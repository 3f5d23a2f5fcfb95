# SPDX-License-Identifier: Apache-2.0
"""Messages of the planner's RPCs as bytes: the protobuf encoding, for the fields that are needed.

    encode("GraphRef", {"graph_id": "00ff00ff00ff00ff"})
    decode("PlanEvent", data)["plan"]["peak_bytes"]

Messages are dictionaries, as in proto3 JSON. Keys may be in lowerCamelCase or as in the proto; what
is decoded has the names of the proto, and numbers for enums. Fields that `wire_fields.py` does not
list are skipped.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Any

from reprise.errors import RepriseError
from reprise.plan.wire_fields import ENUMS, MESSAGES

__all__ = ["decode", "encode"]

_VARINT, _FIXED64, _SIZED, _FIXED32 = 0, 1, 2, 5
_MASK = (1 << 64) - 1

_PREFIXES = {
    name: "".join("_" + c if c.isupper() else c for c in name)[1:].upper() + "_" for name in ENUMS
}


def encode(kind: str, message: dict[str, Any]) -> bytes:
    """Returns a message as bytes. Every key must be a field of the message."""
    left = dict(message)
    parts: list[bytes] = []
    for name, (number, type_) in MESSAGES[kind].items():
        value = left.pop(name, None)
        if value is None:
            value = left.pop(_camel(name), None)
        if value is None:
            continue
        if not type_.startswith("*"):
            parts.append(_field(number, type_, value))
        elif type_[1:] in MESSAGES:
            parts += (_field(number, type_[1:], item) for item in value)
        elif value:
            packed = b"".join(_varint(_number(type_[1:], item)) for item in value)
            parts.append(_tag(number, _SIZED) + _varint(len(packed)) + packed)
    if left:
        raise ValueError(f"{kind} has no field {next(iter(left))}")
    return b"".join(parts)


def decode(kind: str, data: bytes) -> dict[str, Any]:
    """Returns the message that `data` holds. Raises RepriseError if it holds none."""
    names = {number: (name, type_) for name, (number, type_) in MESSAGES[kind].items()}
    message: dict[str, Any] = {}
    try:
        for number, wire, value in _fields(data):
            if number not in names:
                continue
            name, type_ = names[number]
            if not type_.startswith("*"):
                message[name] = _value(type_, wire, value)
                continue
            values = message.setdefault(name, [])
            if wire == _SIZED and type_[1:] not in MESSAGES:
                values += (_value(type_[1:], _VARINT, item) for item in _varints(value))
            else:
                values.append(_value(type_[1:], wire, value))
    except (IndexError, struct.error, UnicodeDecodeError, TypeError) as error:
        raise RepriseError(f"{kind}: the answer of the server cannot be read ({error})") from None
    return message


def _camel(name: str) -> str:
    """Returns the name of a field in lowerCamelCase."""
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)


def _field(number: int, type_: str, value: Any) -> bytes:
    """Returns one field with its tag."""
    if type_ == "double":
        return _tag(number, _FIXED64) + struct.pack("<d", value)
    if type_ in ("string", "bytes") or type_ in MESSAGES:
        data = value if type_ == "bytes" else b""
        if type_ == "string":
            data = value.encode()
        elif type_ in MESSAGES:
            data = encode(type_, value)
        return _tag(number, _SIZED) + _varint(len(data)) + data
    return _tag(number, _VARINT) + _varint(_number(type_, value))


def _number(type_: str, value: Any) -> int:
    """Returns the integer that stands for a value on the wire."""
    if type_ in ENUMS and isinstance(value, str):
        return ENUMS[type_][value.removeprefix(_PREFIXES[type_])]
    if type_ == "sint64":
        return (int(value) << 1 ^ int(value) >> 63) & _MASK
    return int(value) & _MASK


def _tag(number: int, wire: int) -> bytes:
    """Returns the bytes before a field."""
    return _varint(number << 3 | wire)


def _varint(value: int) -> bytes:
    """Returns an integer in groups of seven bits."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Returns the integer at a position and the position behind it."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _MASK, at
        shift += 7


def _varints(data: bytes) -> Iterator[int]:
    """Yields the integers of a packed field."""
    at = 0
    while at < len(data):
        value, at = _read_varint(data, at)
        yield value


def _fields(data: bytes) -> Iterable[tuple[int, int, Any]]:
    """Yields number, wire type and raw value of every field."""
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        wire = tag & 7
        value: Any
        if wire == _VARINT:
            value, at = _read_varint(data, at)
        else:
            size = {_FIXED64: 8, _FIXED32: 4}.get(wire)
            if size is None:
                if wire != _SIZED:
                    raise TypeError(f"wire type {wire}")
                size, at = _read_varint(data, at)
            value, at = data[at : at + size], at + size
            if len(value) != size:
                raise IndexError("it ends too early")
        yield tag >> 3, wire, value


def _value(type_: str, wire: int, value: Any) -> Any:
    """Returns a raw value as its type says."""
    if type_ in MESSAGES:
        return decode(type_, value)
    if type_ == "string":
        return value.decode()
    if type_ == "bytes":
        return value
    if type_ == "double":
        return struct.unpack("<d", value)[0]
    if wire != _VARINT:
        raise TypeError(f"a number of wire type {wire}")
    if type_ == "bool":
        return bool(value)
    if type_ == "sint64":
        return (value >> 1) ^ -(value & 1)
    if type_ == "int64" and value >> 63:
        return value - (1 << 64)
    return value
