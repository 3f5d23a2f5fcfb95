# SPDX-License-Identifier: Apache-2.0
"""Whose process listens on a port of this machine: asked before a secret is sent there.

    check_listener("127.0.0.1", 7070, {os.geteuid()})     # PermissionError says who does

Every user can listen on a port of loopback, and the kernel says who does (`/proc/net/tcp`). The
command has the same rule (base/tcp_sockets.h).
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Collection, Iterator, Sequence

_LISTENS = "0A"
_ANY = ("0" * 8, "0" * 32)
_MAPPED = "0000000000000000FFFF0000"  # ::ffff:0:0/96
_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")


def check_listener(host: str, port: int, trusted: Collection[int]) -> None:
    """Raises PermissionError if what listens at an address belongs to none of these users, or the
    kernel does not say whom it belongs to; ConnectionRefusedError if nothing listens."""
    names = ("127.0.0.1", "::1") if host == "localhost" else (host.strip("[]"),)
    there = [(address, uid) for address, at, uid in _listeners() if at == port]
    owners = [uid for name in names for uid in _reached(_in_table(name), there)]
    strangers = [uid for uid in owners if uid not in trusted]
    if strangers:
        raise PermissionError(
            f"{host}:{port}: user {strangers[0]} listens there, who is neither you nor the owner "
            "of its token: the token is not sent"
        )
    if not owners:
        raise ConnectionRefusedError(f"nobody is seen to listen at {host}:{port}")


def _reached(wanted: str, there: Sequence[tuple[str, int]]) -> list[int]:
    """Returns the users of the sockets that a connection to an address may reach. The kernel gives
    it to one that listens at this very address, otherwise to one that does at any."""
    exact = [uid for address, uid in there if address in (wanted, _MAPPED + wanted)]
    return exact or [uid for address, uid in there if address in _ANY]


def _in_table(host: str) -> str:
    """Returns an address as the kernel's tables have it: words of this machine, in hexadecimal."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    packed = socket.inet_pton(family, host)
    words = (packed[i : i + 4] for i in range(0, len(packed), 4))
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)


def _listeners() -> Iterator[tuple[str, int, int]]:
    """Yields address, port and user of each socket that listens."""
    readable = False
    for path in _TABLES:
        try:
            with open(path) as table:
                lines = table.read().splitlines()[1:]
        except OSError:
            continue
        readable = True
        for line in lines:
            fields = line.split()
            if len(fields) > 7 and fields[3] == _LISTENS:
                address, _, port = fields[1].partition(":")
                yield address, int(port, 16), int(fields[7])
    if not readable:
        raise PermissionError(
            f"{_TABLES[0]} does not say who listens here: the token is not sent; use TLS"
        )
