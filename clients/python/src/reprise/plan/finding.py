# SPDX-License-Identifier: Apache-2.0
"""Which server is asked for plans, and with which token.

`REPRISE_SERVER` names one: HOST:PORT or https://HOST:PORT over HTTP, grpc://HOST:PORT or
grpcs://HOST:PORT over gRPC, for which the package grpcio must be installed. Without it, it is the
daemon beside this process, which is started if none answers. The token is in the file that
`REPRISE_TOKEN_FILE` names, else in the one beside the socket of the daemon that runs here.
"""

from __future__ import annotations

import json
import os

from reprise.errors import RepriseError
from reprise.plan.sent import PlanServer, split_address
from reprise.plan.server import Server

__all__ = ["find_server", "server_at"]


def find_server() -> PlanServer:
    """Returns the server to ask. Raises ServerUnavailable if none answers and none can be
    started, and RepriseError if `REPRISE_SERVER` or its token cannot be used."""
    named = os.environ.get("REPRISE_SERVER")
    return server_at(named) if named else Server.find()


def server_at(address: str) -> PlanServer:
    """Returns the server at an address, whose scheme says how it is called. Raises RepriseError if
    it is no address, or if gRPC is asked for and grpcio is not installed."""
    if not address.startswith(("grpc://", "grpcs://")):
        return Server(address, _token_of(address))
    from reprise.plan.over_grpc import GrpcServer

    return GrpcServer(address, _token_of(address))


def _token_of(address: str) -> str:
    """Returns the token of a server that was named; "" if none is known."""
    from reprise import daemon

    named = os.environ.get("REPRISE_TOKEN_FILE")
    if named:
        try:
            with open(named) as file:
                return file.read().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise RepriseError(f"{named}: the token cannot be read ({error})") from None
    wanted, _, _ = split_address(address.rpartition("://")[2])
    wanted = wanted.replace("localhost:", "127.0.0.1:")
    for socket in daemon.socket_paths():
        try:
            said = json.loads(socket.with_name("server.json").read_text())
            if Server(said["url"]).address == wanted:
                return socket.with_name("server.token").read_text().strip()
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RepriseError):
            continue
    return ""
