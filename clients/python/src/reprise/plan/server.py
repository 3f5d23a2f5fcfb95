# SPDX-License-Identifier: Apache-2.0
"""The daemon's HTTP API, called with the standard library alone.

    server = Server.find()
    server.call("Query/GetRun", {"runId": run})         # one answer
    for message in server.stream("Planner/Plan", {...}): ...
    server.upload("step.json", graph_json)              # a file becomes a run

The server is the one that `REPRISE_SERVER` names (HOST:PORT or https://HOST:PORT), else that of
the daemon beside this process, which is started where none answers. Its token is in the file that
`REPRISE_TOKEN_FILE` names, else in the one beside the socket of the daemon that runs here; for
https, `REPRISE_CA`, `REPRISE_CERT` and `REPRISE_KEY` are as for the command. Every connection is
made in `_open`.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

from reprise.errors import RepriseError, ServerUnavailable

if TYPE_CHECKING:
    from http.client import HTTPConnection, HTTPResponse
    from pathlib import Path
    from ssl import SSLContext

__all__ = ["Server"]

# A plan may be searched for ten minutes (server/service/planning.h).
LONGEST_S = 660.0
ENDING_S, POLL_S = 10.0, 0.02
# Of a stream: a byte of flags and the size of the message that follows, in four.
_HEAD_BYTES = 5
_COMPRESSED, _END = 1, 2


class Server:
    """Where requests go. One connection per request, so it may be used from any thread."""

    def __init__(self, address: str, token: str = "", certificate: str = "") -> None:
        """Takes where the server is, and what it asks for.

        `address`: "HOST:PORT", with or without "http://", or "https://HOST:PORT". `token`: what
        the server asks for; empty: nothing is sent. `certificate`: file of the one certificate
        that is trusted, whoever signed it and whatever it names. `RepriseError`: not an address.
        """
        self._tls = address.startswith("https://")
        self._token, self._certificate = token, certificate
        self.address = address.removeprefix("https://").removeprefix("http://").rstrip("/")
        host, colon, port = self.address.rpartition(":")
        if not colon or not host or not (port.isascii() and port.isdecimal() and int(port) < 65536):
            raise RepriseError(f"server {address!r}: must be HOST:PORT, such as 127.0.0.1:7070")
        self._host, self._port = host.strip("[]"), int(port)

    @classmethod
    def find(cls) -> Server:
        """The server to ask. `ServerUnavailable`: none answers and none could be started."""
        named = os.environ.get("REPRISE_SERVER")
        if named:
            return cls(named, _token_of(named))
        from reprise import daemon

        # A private daemon that is about to end still answers at its socket for a moment.
        deadline = time.monotonic() + ENDING_S
        while True:
            collector = daemon.ensure(stay=True)
            if collector.socket is None:
                raise ServerUnavailable(collector.why)
            try:
                found = _beside(collector.socket)
                found.call("Query/GetStatus", {})
            except ServerUnavailable:
                if time.monotonic() > deadline:
                    raise
                time.sleep(POLL_S)
            else:
                return found

    def call(self, method: str, message: dict[str, Any]) -> dict[str, Any]:
        """A method with one answer, as "Query/GetRun". `RepriseError`: what the server says."""
        connection, reply = self._open(
            f"/reprise.v1.{method}", json.dumps(message).encode(), "application/json"
        )
        with closing(connection):
            return _object(_read(reply), method)

    def stream(self, method: str, message: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """A method with a stream of answers, as "Planner/Plan". Closing it ends the call."""
        body = json.dumps(message).encode()
        connection, reply = self._open(
            f"/reprise.v1.{method}",
            len(body).to_bytes(_HEAD_BYTES, "big") + body,
            "application/connect+json",
        )
        with closing(connection):
            while True:
                head = _read(reply, _HEAD_BYTES)
                flags, part = head[0], _read(reply, int.from_bytes(head[1:], "big"))
                if flags & _COMPRESSED:
                    raise RepriseError(
                        f"{method}: the answer is compressed, which was not requested"
                    )
                answer = _object(part, method)
                if flags & _END:
                    _raise(answer.get("error"))
                    return
                yield answer

    def upload(self, name: str, body: bytes) -> dict[str, Any]:
        """A file becomes a run; returns what the server says of it, its `runId` too."""
        from urllib.parse import quote

        connection, reply = self._open(
            f"/import?name={quote(name, safe='')}", body, "application/octet-stream"
        )
        with closing(connection):
            for line in _read(reply).splitlines():
                part = _object(line, "import")
                _raise(part.get("error"))
                if "run" in part:
                    return _object(json.dumps(part["run"]).encode(), "import")
        raise RepriseError(f"{name}: the server closed the import without an answer")

    def _open(self, path: str, body: bytes, kind: str) -> tuple[HTTPConnection, HTTPResponse]:
        """Sends a request and waits for the head of its answer; errors become exceptions."""
        from http.client import HTTPConnection, HTTPException, HTTPSConnection

        if self._tls:
            connection: HTTPConnection = HTTPSConnection(
                self._host, self._port, timeout=LONGEST_S, context=_trust(self._certificate)
            )
        else:
            connection = HTTPConnection(self._host, self._port, timeout=LONGEST_S)
        headers = {"Content-Type": kind}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        try:
            connection.request("POST", path, body, headers)
            reply = connection.getresponse()
        except (OSError, HTTPException) as error:
            connection.close()
            raise ServerUnavailable(
                f"the server at {self.address} does not answer ({error or type(error).__name__}); "
                "start one with `reprise serve`"
            ) from None
        if reply.status == 200:
            return connection, reply
        with closing(connection):
            text = _read(reply)
        try:
            error_message = json.loads(text)
        except ValueError:
            error_message = {"message": text.decode("utf-8", "replace").strip()[:400]}
        _raise(error_message, f"the server at {self.address} answers {reply.status}")
        raise AssertionError  # _raise does


def _beside(socket: Path) -> Server:
    """The server of the daemon that listens at `socket`, by what it wrote about itself."""
    about = socket.with_name("server.json")
    try:
        said = json.loads(about.read_text())
        url, listen = str(said["url"]), str(said["listen"])
        certificate = str(said.get("certificate", ""))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ServerUnavailable(
            f"{about}: does not say where the server listens ({error}); set REPRISE_SERVER"
        ) from None
    try:
        token = socket.with_name("server.token").read_text().strip()
    except OSError:
        token = ""  # a daemon of 0.1 asks for none
    if certificate:
        # The name in the certificate need not be one of this machine's.
        host, _, port = listen.rpartition(":")
        reached = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)
        url = f"https://{reached}:{port}"
    return Server(url, token, certificate)


def _token_of(address: str) -> str:
    """The token of a server that was named; empty where none is known."""
    from reprise import daemon

    named = os.environ.get("REPRISE_TOKEN_FILE")
    if named:
        try:
            with open(named) as file:
                return file.read().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise RepriseError(f"{named}: the token cannot be read ({error})") from None
    wanted = Server(address).address.replace("localhost:", "127.0.0.1:")
    for socket in daemon.socket_paths():
        try:
            said = json.loads(socket.with_name("server.json").read_text())
            if Server(said["url"]).address == wanted:
                return socket.with_name("server.token").read_text().strip()
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RepriseError):
            continue
    return ""


def _trust(certificate: str) -> SSLContext:
    """What is trusted of a server over https: one certificate, else an authority."""
    import ssl

    authority = os.environ.get("REPRISE_CA") or None
    own, key = os.environ.get("REPRISE_CERT"), os.environ.get("REPRISE_KEY")
    try:
        context = ssl.create_default_context(cafile=authority or certificate or None)
        if certificate and not authority:
            context.check_hostname = False
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        if own:
            context.load_cert_chain(own, key)
    except OSError as error:
        raise RepriseError(f"a certificate of this client cannot be used ({error})") from None
    return context


def _read(reply: HTTPResponse, size: int | None = None) -> bytes:
    from http.client import HTTPException

    try:
        data = reply.read(size)
    except (OSError, HTTPException) as error:
        raise ServerUnavailable(
            f"the connection to the server was lost during the answer ({error})"
        ) from None
    if size is not None and len(data) < size:
        raise ServerUnavailable("the connection to the server was lost during the answer")
    return data


def _object(text: bytes, method: str) -> dict[str, Any]:
    try:
        value = json.loads(text or b"{}")
    except (ValueError, RecursionError) as error:
        raise RepriseError(f"{method}: the answer is not JSON ({str(error)[:80]})") from None
    if not isinstance(value, dict):
        raise RepriseError(f"{method}: the answer is not an object")
    return value


def _raise(error: object, otherwise: str = "the server gave no reason") -> None:
    """The exception that a {"code", "message"} stands for; nothing for None."""
    if error is None:
        return
    message = error.get("message") if isinstance(error, dict) else None
    code = error.get("code") if isinstance(error, dict) else None
    sentence = str(message or otherwise)
    raise (ServerUnavailable if code == "unavailable" else RepriseError)(sentence)
