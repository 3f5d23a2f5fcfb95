# SPDX-License-Identifier: Apache-2.0
"""Which server is asked for plans, and with which token.

`REPRISE_SERVER` names one: HOST:PORT, or https://HOST:PORT for TLS. Without it, it is the daemon
beside this process, which is started if none answers. The token is in the file that
`REPRISE_TOKEN_FILE` names, else in the one beside the socket of the daemon that runs here.
"""

from __future__ import annotations

import json
import os

from reprise.base.errors import RepriseError
from reprise.plan.server import Server, split_address


def find_server() -> Server:
    """Returns the server to ask. Raises ServerUnavailable if none answers and none can be
    started, and RepriseError if `REPRISE_SERVER` or its token cannot be used."""
    named = os.environ.get("REPRISE_SERVER")
    return server_at(named) if named else Server.find()


def server_at(address: str) -> Server:
    """Returns the server at an address. Raises RepriseError if it is no address."""
    scheme, mark, rest = address.partition("://")
    if mark and scheme not in ("http", "https"):
        raise RepriseError(
            f"server {address!r}: this client speaks HTTP, which the same port answers; write "
            f"{rest}, or https://{rest} for TLS"
        )
    token, owner = _token_of(address)
    return Server(address, token, trusted=(owner,))


def _token_of(address: str) -> tuple[str, int]:
    """Returns the token of a server that was named, and the user whose token it is; "" if none is
    known."""
    from reprise.agent import daemon

    named = os.environ.get("REPRISE_TOKEN_FILE")
    if named:
        try:
            with open(named) as file:
                return file.read().strip(), os.fstat(file.fileno()).st_uid
        except (OSError, UnicodeDecodeError) as error:
            raise RepriseError(f"{named}: the token cannot be read ({error})") from None
    wanted, _, _ = split_address(address.rpartition("://")[2])
    wanted = wanted.replace("localhost:", "127.0.0.1:")
    for socket in daemon.socket_paths():
        try:
            about = socket.with_name("server.json")
            said = json.loads(about.read_text())
            if Server(said["url"]).address == wanted:
                token = socket.with_name("server.token").read_text().strip()
                return token, about.stat().st_uid
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RepriseError):
            continue
    return "", os.geteuid()
