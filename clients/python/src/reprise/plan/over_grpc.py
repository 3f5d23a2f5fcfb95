# SPDX-License-Identifier: Apache-2.0
"""The daemon's gRPC services, called with the package grpcio, which this needs and nothing else
does.

    server = GrpcServer("grpc://127.0.0.1:7070", token)
    server.send(graph)                                  # a graph becomes a run
    for message in server.stream("Planner/Plan", {...}): ...

Questions and answers are those of `server.Server`. Messages are encoded by `wire.py`, so neither
protobuf nor generated code is needed.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from reprise.errors import RepriseError, ServerUnavailable
from reprise.plan.graph_message import graph_message
from reprise.plan.sent import LONGEST_S, Sent, split_address
from reprise.plan.step_graph import StepGraph
from reprise.plan.wire import decode, encode

__all__ = ["GrpcServer"]

PLAIN, SECURE = "grpc://", "grpcs://"
# As in server/grpc_server.cc and server/service/put_graph_call.cc.
_MOST_RECEIVED_BYTES = 64 << 20
_PART_BYTES = 1 << 20
# By method: what it takes and what it answers with.
_METHODS = {
    "Query/GetStatus": ("StatusRequest", "ServerStatus"),
    "Planner/Plan": ("PlanRequest", "PlanEvent"),
    "Planner/Sweep": ("SweepRequest", "TradeoffPoint"),
    "Planner/PutGraph": ("GraphPart", "GraphRef"),
    "Ingest/Stream": ("Up", "Down"),
}


class GrpcServer:
    """Where requests go. All calls share one channel, so it may be used from any thread."""

    def __init__(self, address: str, token: str = "") -> None:
        """Takes where the server is, and its token, if it asks for one.

        `address`: "grpc://HOST:PORT", or "grpcs://HOST:PORT" for TLS. With TLS, `REPRISE_CA`
        names the file of the authority to trust; `REPRISE_CERT` and `REPRISE_KEY` are the
        certificate and key of this client. Raises RepriseError if it is not such an address, a
        file cannot be read, or grpcio is not installed."""
        try:
            import grpc
        except ImportError as error:
            raise RepriseError(
                f"server {address!r}: gRPC needs the package grpcio ({error}); install it, or "
                "write http:// or https://, which need no package"
            ) from None
        scheme = SECURE if address.startswith(SECURE) else PLAIN
        self.address, host, port = split_address(address.removeprefix(scheme))
        self._grpc = grpc
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()
        options = [("grpc.max_receive_message_length", _MOST_RECEIVED_BYTES)]
        target = f"{host}:{port}" if ":" not in host else f"[{host}]:{port}"
        if scheme == PLAIN:
            self._channel = grpc.insecure_channel(target, options)
        else:
            self._channel = grpc.secure_channel(target, _credentials(grpc), options)

    def call(self, method: str, message: dict[str, Any]) -> dict[str, Any]:
        """Calls a method with one answer and returns it. Raises RepriseError with what the server
        says, and ServerUnavailable if none answers."""
        asked, _ = _METHODS[method]
        with self._errors():
            answer = self._made("unary_unary", method)(encode(asked, message), **self._how())
            return dict(answer)

    def stream(self, method: str, message: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Calls a method with a stream of answers and yields them. Closing it ends the call.
        Raises as `call`."""
        asked, _ = _METHODS[method]
        with self._errors():
            answers = self._made("unary_stream", method)(encode(asked, message), **self._how())
            try:
                yield from answers
            finally:
                answers.cancel()

    def send(self, graph: StepGraph) -> Sent:
        """Makes a run of a graph. Raises as `call`."""
        run_id = f"graph-{os.urandom(8).hex()}"
        now = time.time_ns()
        labels = {"name": graph.name or "step graph", "imported": "step graph"}
        info = {
            "host": socket.gethostname(),
            "world": 1,
            "labels": [{"key": key, "value": value} for key, value in labels.items()],
            "realtime_ns": now,
        }
        hello = {"proto_version": 1, "min_version": 1, "session_id": run_id, "run_id": run_id}
        said: list[dict[str, Any]] = [{"hello": {**hello, "info": info}}, {"bye": {}}]
        data = encode("StepGraph", graph_message(graph))
        parts: list[dict[str, Any]] = [
            {"data": data[at : at + _PART_BYTES]} for at in range(0, len(data), _PART_BYTES)
        ]
        parts[0]["run_id"] = run_id
        with self._errors():
            session = self._made("stream_stream", "Ingest/Stream")
            list(session(iter([encode("Up", up) for up in said]), **self._how()))
            put = self._made("stream_unary", "Planner/PutGraph")
            reference = put(iter([encode("GraphPart", part) for part in parts]), **self._how())
        return Sent(str(reference.get("graph_id", "")), run_id)

    def has(self, _sent: Sent) -> bool:
        """Returns False: a server that is named keeps its port, so nothing was sent to another."""
        return False

    def _made(self, kind: str, method: str) -> Callable[..., Any]:
        """Returns the callable of a method."""
        _, answered = _METHODS[method]
        return getattr(self._channel, kind)(  # type: ignore[no-any-return]
            f"/reprise.v1.{method}", None, lambda data: decode(answered, data)
        )

    def _how(self) -> dict[str, Any]:
        """Returns the options of every call."""
        return {"timeout": LONGEST_S, "metadata": self._metadata}

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Raises the errors of gRPC as those of Reprise."""
        codes = self._grpc.StatusCode
        try:
            yield
        except self._grpc.RpcError as error:
            said = str(error.details())
            if error.code() is codes.UNAVAILABLE:
                raise ServerUnavailable(
                    f"the server at {self.address} does not answer over gRPC ({said}); start one "
                    "with `reprise serve`"
                ) from None
            if error.code() is codes.UNIMPLEMENTED:
                said = f"the server at {self.address} is no reprised of this version ({said})"
            raise RepriseError(said) from None


def _credentials(grpc: Any) -> Any:
    """Returns what is trusted of a server over TLS, and who this client is."""
    read: dict[str, bytes | None] = {}
    for name in ("REPRISE_CA", "REPRISE_CERT", "REPRISE_KEY"):
        path = os.environ.get(name)
        try:
            read[name] = None
            if path:
                with open(path, "rb") as file:
                    read[name] = file.read()
        except OSError as error:
            raise RepriseError(f"{name}: the file cannot be read ({error})") from None
    return grpc.ssl_channel_credentials(
        read["REPRISE_CA"], read["REPRISE_KEY"], read["REPRISE_CERT"]
    )
