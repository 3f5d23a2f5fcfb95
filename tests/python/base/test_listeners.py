# SPDX-License-Identifier: Apache-2.0
"""A secret goes only where a trusted user's process listens."""

from __future__ import annotations

import os
import socket

import pytest

from reprise.base.listeners import check_listener

STRANGER = os.geteuid() + 1


@pytest.mark.parametrize(
    ("family", "bound", "reached"),
    [
        (socket.AF_INET, "127.0.0.1", "127.0.0.1"),
        (socket.AF_INET, "0.0.0.0", "127.0.0.1"),
        (socket.AF_INET, "127.0.0.1", "localhost"),
        (socket.AF_INET6, "::1", "[::1]"),
        (socket.AF_INET6, "::", "127.0.0.1"),
    ],
)
def test_the_owner_of_what_listens_is_known(
    family: socket.AddressFamily, bound: str, reached: str
) -> None:
    with socket.socket(family) as listening:
        try:
            listening.bind((bound, 0))
        except OSError:
            pytest.skip(f"this machine has no {bound}")
        listening.listen(1)
        port = listening.getsockname()[1]
        check_listener(reached, port, {os.geteuid()})
        with pytest.raises(PermissionError, match=f"user {os.geteuid()} listens there"):
            check_listener(reached, port, {STRANGER})
    with pytest.raises(ConnectionRefusedError):
        check_listener(reached, port, {os.geteuid()})


def test_without_the_kernels_word_nobody_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reprise.base.listeners._TABLES", ("/nowhere/tcp",))
    with pytest.raises(PermissionError, match="does not say who listens"):
        check_listener("127.0.0.1", 1, {os.geteuid()})
