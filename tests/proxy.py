"""A loopback HTTP proxy, as a real object: tests put it between the client and Elasticsearch."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self
from urllib.parse import urlsplit

#: Headers that belong to one connection, or that the proxy writes itself.
_HOP = {"connection", "content-length", "host", "keep-alive", "transfer-encoding"}


@dataclass(frozen=True)
class Asked:
    """A request as it came."""

    method: str
    path: str
    headers: Mapping[str, str]  # names in lower case
    body: bytes


@dataclass(frozen=True)
class Reply:
    """An answer as it goes back."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(
        default_factory=lambda: {
            "content-type": "application/json",
            "x-elastic-product": "Elasticsearch",
        }
    )


def free_port() -> int:
    """A port on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Proxy:
    """Forwards to ``target`` between ``start`` and ``stop``; before and after, its port is closed
    and so is every connection.

    Args:
        target: URL of the server behind.
        port: where to listen; None: a free one.
        answer: may answer in place of the server (None: ask the server).
        amend: may change what the server has answered.
    """

    def __init__(
        self,
        target: str,
        *,
        port: int | None = None,
        answer: Callable[[Asked], Reply | None] = lambda _asked: None,
        amend: Callable[[Asked, Reply], Reply] = lambda _asked, reply: reply,
    ) -> None:
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.seen: list[Asked] = []
        self._target = urlsplit(target).netloc
        self._answer = answer
        self._amend = amend
        self._server: _Server | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Open the port."""
        self._server = _Server(("127.0.0.1", self.port), self.reply)
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        """Close the port and cut every connection."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server.cut()
            self._server = None

    def reply(self, asked: Asked) -> Reply:
        """The answer to one request."""
        self.seen.append(asked)
        own = self._answer(asked)
        return own if own is not None else self._amend(asked, self._forward(asked))

    def _forward(self, asked: Asked) -> Reply:
        connection = http.client.HTTPConnection(self._target, timeout=60)
        try:
            headers = {name: value for name, value in asked.headers.items() if name not in _HOP}
            headers.pop("accept-encoding", None)  # so that `amend` can read the body
            connection.request(asked.method, asked.path, asked.body or None, headers)
            answer = connection.getresponse()
            body = answer.read()
            kept = {n.lower(): v for n, v in answer.getheaders() if n.lower() not in _HOP}
            return Reply(answer.status, body, kept)
        finally:
            connection.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], reply: Callable[[Asked], Reply]) -> None:
        self.reply = reply
        self._connections: set[socket.socket] = set()
        super().__init__(address, _Handler)

    def get_request(self) -> tuple[socket.socket, tuple[str, int]]:
        connection, address = super().get_request()
        self._connections.add(connection)
        return connection, address

    def shutdown_request(self, request: object) -> None:
        if isinstance(request, socket.socket):
            self._connections.discard(request)
            super().shutdown_request(request)

    def cut(self) -> None:
        for connection in list(self._connections):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # the other side was faster

    def handle_error(self, request: object, client_address: object) -> None:
        """A connection that was cut is no news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def _serve(self) -> None:
        length = int(self.headers.get("content-length") or 0)
        asked = Asked(
            self.command,
            self.path,
            {name.lower(): value for name, value in self.headers.items()},
            self.rfile.read(length) if length else b"",
        )
        reply = self.server.reply(asked)
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(reply.body)))
        self.end_headers()
        if asked.method != "HEAD":
            self.wfile.write(reply.body)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _serve  # noqa: N815 -- http.server's names

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- its signature
        """Say nothing."""
