# SPDX-License-Identifier: Apache-2.0
"""The daemon's HTTP API, called with the standard library alone.

    server = Server.find()
    server.call("Query/GetRun", {"runId": run})         # one answer
    for message in server.stream("Planner/Plan", {...}): ...
    server.upload("step.json", graph_json)              # a file becomes a run

For https, `REPRISE_CA`, `REPRISE_CERT` and `REPRISE_KEY` are as for the command. `_open` makes
every connection, and one to each server stays open for the next request. Which server a program
talks to is decided in `finding.py`.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reprise.base.errors import RepriseError, ServerUnavailable
from reprise.base.listeners import check_listener
from reprise.plan.step_graph import StepGraph

if TYPE_CHECKING:
    from http.client import HTTPConnection, HTTPResponse
    from pathlib import Path
    from ssl import SSLContext


# A plan may be searched for ten minutes (server/service/planning/planning.h).
LONGEST_S = 660.0
ENDING_S, POLL_S = 10.0, 0.02
# Of a stream: a byte of flags and the size of the message that follows, in four.
_HEAD_BYTES = 5
_COMPRESSED, _END = 1, 2

# A connection to each server that waits for the next request, of this process alone.
_idle: dict[tuple[Any, ...], HTTPConnection] = {}


@dataclass(frozen=True, slots=True)
class Sent:
    """A graph that a server has stored, and the run that it made for it."""

    graph_id: str
    run_id: str


def split_address(address: str) -> tuple[str, str, int]:
    """Returns "HOST:PORT" without a slash at its end, the host without brackets, and the port.
    Raises RepriseError if it is something else."""
    text = address.rstrip("/")
    host, colon, port = text.rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdecimal() and int(port) < 65536):
        raise RepriseError(f"server {address!r}: must be HOST:PORT, such as 127.0.0.1:7070")
    return text, host.strip("[]"), int(port)


class Server:
    """Where requests go. No two requests share a connection at a time, so it may be used from any
    thread."""

    def __init__(
        self, address: str, token: str = "", certificate: str = "", trusted: Collection[int] = ()
    ) -> None:
        """Takes where the server is, and what it asks for.

        `address`: "HOST:PORT", with or without "http://", or "https://HOST:PORT". `token`: what
        the server asks for; empty: nothing is sent. `certificate`: file of the one certificate
        that is trusted, whoever signed it and whatever it names. `trusted`: the users, beside this
        one and root, whose process may be given the token where TLS does not show who it is.
        `RepriseError`: not an address.
        """
        self._tls = address.startswith("https://")
        self._token, self._certificate = token, certificate
        self._trusted = {0, os.geteuid(), *trusted}
        plain = address.removeprefix("https://").removeprefix("http://")
        self.address, self._host, self._port = split_address(plain)

    @classmethod
    def find(cls) -> Server:
        """Returns the server of the daemon beside this process, over HTTP. Raises ServerUnavailable
        if none answers and none can be started."""
        from reprise.agent import daemon

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

    def page(self, path: str, *, with_token: bool) -> str:
        """Returns the link to a page of the dashboard; with the token it opens in any browser."""
        token = f"?token={self._token}" if with_token and self._token else ""
        return f"{'https' if self._tls else 'http'}://{self.address}{path}{token}"

    def call(self, method: str, message: dict[str, Any]) -> dict[str, Any]:
        """Calls a method with one answer, as "Query/GetRun", and returns the answer.
        `RepriseError`: what the server says."""
        body = json.dumps(message).encode()
        with self._open(f"/reprise.v1.{method}", body, "application/json") as reply:
            return _object(_read(reply), method)

    def stream(self, method: str, message: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Calls a method with a stream of answers, as "Planner/Plan", and yields them. Closing the
        iterator ends the call."""
        body = json.dumps(message).encode()
        framed = len(body).to_bytes(_HEAD_BYTES, "big") + body
        with self._open(f"/reprise.v1.{method}", framed, "application/connect+json") as reply:
            while True:
                head = _read(reply, _HEAD_BYTES)
                flags, part = head[0], _read(reply, int.from_bytes(head[1:], "big"))
                if flags & _COMPRESSED:
                    raise RepriseError(
                        f"{method}: the answer is compressed, which was not requested"
                    )
                answer = _object(part, method)
                if flags & _END:
                    _read(reply)
                    _raise(answer.get("error"))
                    return
                yield answer

    def upload(self, name: str, body: bytes) -> dict[str, Any]:
        """Makes a run of a file. Returns what the server says of the run, its `runId` too."""
        from urllib.parse import quote

        path = f"/import?name={quote(name, safe='')}"
        with self._open(path, body, "application/octet-stream") as reply:
            for line in _read(reply).splitlines():
                part = _object(line, "import")
                _raise(part.get("error"))
                if "run" in part:
                    return _object(json.dumps(part["run"]).encode(), "import")
        raise RepriseError(f"{name}: the server closed the import without an answer")

    def send(self, graph: StepGraph) -> Sent:
        """Makes a run of a graph, by importing its file."""
        run = self.upload(graph.name or "step graph", graph.to_json().encode()).get("runId")
        if not isinstance(run, str):
            raise RepriseError("import: the server does not say which run it made")
        graph_id = self.call("Query/GetRun", {"runId": run}).get("graphId")
        if not isinstance(graph_id, str):
            raise RepriseError(f"run {run}: has no step graph after the import")
        return Sent(graph_id, run)

    def has(self, sent: Sent) -> bool:
        """Returns whether it has the run that a daemon at another port made for a graph."""
        try:
            found = self.call("Query/GetRun", {"runId": sent.run_id})
        except ServerUnavailable:
            raise
        except RepriseError:
            return False
        return found.get("graphId") == sent.graph_id

    @contextmanager
    def _open(self, path: str, body: bytes, kind: str) -> Iterator[HTTPResponse]:
        """Sends a request and waits for the head of its answer; errors become exceptions. The
        connection stays open if the answer is read to its end."""
        who = (self._token, self._certificate, *sorted(self._trusted))
        key = (os.getpid(), self._tls, self._host, self._port, *who)
        connection, reply = self._sent(_idle.pop(key, None), path, body, kind)
        try:
            if reply.status != 200:
                text = _read(reply)
                try:
                    error_message = json.loads(text)
                except ValueError:
                    error_message = {"message": text.decode("utf-8", "replace").strip()[:400]}
                _raise(error_message, f"the server at {self.address} answers {reply.status}")
            yield reply
        finally:
            if reply.isclosed() and not reply.will_close and key not in _idle:
                _idle[key] = connection
            else:
                connection.close()

    def _sent(
        self, idle: HTTPConnection | None, path: str, body: bytes, kind: str
    ) -> tuple[HTTPConnection, HTTPResponse]:
        """Sends a request over an idle connection, or a new one where the server has closed that
        one since, and returns the head of the answer."""
        from http.client import HTTPConnection, HTTPException, HTTPSConnection

        headers = {"Content-Type": kind}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        if idle is not None:
            try:
                idle.request("POST", path, body, headers)
                return idle, idle.getresponse()
            except (OSError, HTTPException):
                idle.close()
        if self._tls:
            connection: HTTPConnection = HTTPSConnection(
                self._host, self._port, timeout=LONGEST_S, context=_trust(self._certificate)
            )
        else:
            connection = HTTPConnection(self._host, self._port, timeout=LONGEST_S)
        # It never opens again by itself: who listens then may be another one.
        connection.auto_open = 0
        try:
            connection.connect()
            # Only now: who listened before may be another one.
            if self._token and not self._tls:
                check_listener(self._host, self._port, self._trusted)
            connection.request("POST", path, body, headers)
            return connection, connection.getresponse()
        except (OSError, HTTPException) as error:
            connection.close()
            if isinstance(error, PermissionError):
                raise RepriseError(f"the server at {error}") from None
            raise ServerUnavailable(
                f"the server at {self.address} does not answer ({error or type(error).__name__}); "
                "start one with `reprise serve`"
            ) from None


def _beside(socket: Path) -> Server:
    """Returns the server of the daemon that listens at `socket`, by what it wrote about itself."""
    about = socket.with_name("server.json")
    try:
        said, owner = json.loads(about.read_text()), about.stat().st_uid
        url, listen = str(said["url"]), str(said["listen"])
        certificate = str(said.get("certificate", ""))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ServerUnavailable(
            f"{about}: does not say where the server listens ({error}); set REPRISE_SERVER"
        ) from None
    try:
        token = socket.with_name("server.token").read_text().strip()
    except OSError:
        token = ""  # and the server says so
    if certificate:
        # The name in the certificate need not be one of this machine's.
        host, _, port = listen.rpartition(":")
        reached = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)
        url = f"https://{reached}:{port}"
    return Server(url, token, certificate, (owner,))


def _trust(certificate: str) -> SSLContext:
    """Returns what is trusted of a server over https: one certificate, else an authority."""
    import ssl

    authority = os.environ.get("REPRISE_CA") or None
    own, key = os.environ.get("REPRISE_CERT"), os.environ.get("REPRISE_KEY")
    used = authority or certificate
    try:
        context = ssl.create_default_context(cafile=used or None)
        if certificate and not authority:
            context.check_hostname = False
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        if own:
            used = f"{own}, with the key {key}" if key else own
            context.load_cert_chain(own, key)
    except OSError as error:
        raise RepriseError(f"{used}: this certificate cannot be used ({error})") from None
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
    """Raises the exception that a {"code", "message"} stands for; does nothing for None."""
    if error is None:
        return
    message = error.get("message") if isinstance(error, dict) else None
    code = error.get("code") if isinstance(error, dict) else None
    sentence = str(message or otherwise)
    raise (ServerUnavailable if code == "unavailable" else RepriseError)(sentence)
