"""An HTTP server that answers what a script says, on a loopback port, with a thread per connection.

The answers are given in order, one per request, the last again and again. Every request is in
`requests`. Leave it after its clients are closed: it waits for their connections to end.

    with ScriptedHttp(Reply(503), Drop(), Reply(200, b"{}")) as server:
        ... connect to server.url
"""

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit

PROBLEM_JSON = "application/problem+json"


@dataclass(frozen=True)
class Reply:
    """One answer; `before` is called ahead of it and may block."""

    status: int
    body: bytes = b""
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)
    before: Callable[[], object] | None = None

    @classmethod
    def json(cls, document: Any, status: int = 200, **more: Any) -> "Reply":
        return cls(status, json.dumps(document).encode(), **more)

    @classmethod
    def problem(cls, status: int, slug: str, *, headers: Any = None, **members: Any) -> "Reply":
        """A problem document as the service makes it."""
        kind = f"https://mail.example.com/docs/errors/email/messages/{slug}"
        document = {"type": kind, "status": status, **members}
        return cls.json(document, status, content_type=PROBLEM_JSON, headers=headers or {})


@dataclass(frozen=True)
class Drop:
    """End the connection with a reset, after `before` (half an answer, say)."""

    before: bytes = b""


@dataclass(frozen=True)
class Hang:
    """After `before` say nothing more until the client ends the connection (`hung_up` counts)."""

    before: bytes = b""


@dataclass(frozen=True)
class Drip:
    """Say `again` every few milliseconds until the client ends the connection."""

    before: bytes
    again: bytes


@dataclass(frozen=True)
class Request:
    """What a client sent: `target` as on the wire, `query` decoded; when, by time.monotonic()."""

    target: str
    headers: Mapping[str, str]
    method: str = "GET"
    body: bytes = b""
    at: float = field(default_factory=time.monotonic)

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    @property
    def query(self) -> dict[str, str]:
        pairs = parse_qsl(urlsplit(self.target).query, keep_blank_values=True)
        assert len(dict(pairs)) == len(pairs), "a parameter was sent twice"
        return dict(pairs)


Answer = Reply | Drop | Hang | Drip


class ScriptedHttp(ThreadingHTTPServer):
    """See the module."""

    daemon_threads = False  # so that leaving it waits for them
    request_queue_size = 128

    def __init__(self, *script: Answer) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.requests: list[Request] = []
        self.hung_up = 0
        self._script = script
        self._lock = threading.Lock()

    def next_answer(self, request: Request) -> Answer:
        with self._lock:
            self.requests.append(request)
            return self._script[min(len(self.requests), len(self._script)) - 1]

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self.serve_forever, args=(0.002,))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()


class _Connection(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # it holds the body back until the headers are acknowledged
    server: ScriptedHttp

    def do_GET(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        body = self.rfile.read(int(headers.get("content-length", "0")))
        match self.server.next_answer(Request(self.path, headers, self.command, body)):
            case Drop(before):
                self._reset(before)
            case Hang(before):
                self._hang(before)
            case Drip(before, again):
                self._drip(before, again)
            case reply:
                self._send(reply)

    def do_POST(self) -> None:
        self.do_GET()

    def _send(self, reply: Reply) -> None:
        if reply.before:
            reply.before()
        self.send_response(reply.status)
        self.send_header("Content-Type", reply.content_type)
        self.send_header("Content-Length", str(len(reply.body)))
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.end_headers()
        with suppress(ConnectionError):  # a client may leave before it has read all
            self.wfile.write(reply.body)

    def _reset(self, before: bytes) -> None:
        self.wfile.write(before)
        # Linger of zero seconds: closing sends RST.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True

    def _hang(self, before: bytes) -> None:
        self.wfile.write(before)
        with suppress(ConnectionError):
            self.rfile.read()  # to the end of the connection
        self.server.hung_up += 1
        self.close_connection = True

    def _drip(self, before: bytes, again: bytes) -> None:
        with suppress(ConnectionError):
            self.wfile.write(before)
            while True:
                self.wfile.write(again)
                time.sleep(0.02)
        self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is inherited
        """Nothing on standard error."""
