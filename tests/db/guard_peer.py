"""Whom the guarded calls reach for: one peer that counts every contact, all of it on this machine.

It speaks just enough of HTTP, SMTP, IMAP, POP3 and FTP for a client to be content, takes datagrams
and connections on Unix sockets, and sees programs that were started by the files that they leave.
"""

import itertools
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import TracebackType
from typing import Any, Self

from tests.servers.process import make_folder, wait_until

HOST = "127.0.0.1"
HTTP_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"

# The greeting, and the answer to a line.
TALK: dict[str, tuple[bytes, Callable[[bytes], bytes]]] = {
    "http": (b"", lambda line: HTTP_ANSWER if line == b"\r\n" else b""),
    "smtp": (b"220 peer\r\n", lambda _: b"250 peer\r\n"),
    "pop3": (b"+OK\r\n", lambda _: b"+OK\r\n"),
    "ftp": (b"220 peer\r\n", lambda _: b"230 done\r\n"),
    "imap": (
        b"* OK peer\r\n",
        lambda line: b"* CAPABILITY IMAP4rev1\r\n" + line.split()[0] + b" OK done\r\n",
    ),
}


class Peer:
    """Everything listens once entered."""

    def __init__(self) -> None:
        self.folder = make_folder("peer")
        self.stream_path = str(self.folder / "stream")
        self.datagram_path = str(self.folder / "datagram")
        self._lock = threading.Lock()
        self._contacts = 0
        self._open = 0
        self._numbers = itertools.count()
        self._stack = ExitStack()
        self._ports: dict[str, int] = {}

    def __enter__(self) -> Self:
        for protocol in TALK:
            talk = partial(_Conversation, self, protocol)
            self._ports[protocol] = self._serve(socketserver.ThreadingTCPServer((HOST, 0), talk))
        listen, talk = partial(_Datagram, self), partial(_Conversation, self, "http")
        self._ports["udp"] = self._serve(socketserver.UDPServer((HOST, 0), listen))
        self._serve(socketserver.ThreadingUnixStreamServer(self.stream_path, talk))
        self._serve(socketserver.UnixDatagramServer(self.datagram_path, listen))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    def port(self, protocol: str = "http") -> int:
        return self._ports[protocol]

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port()}/"

    @property
    def contacts(self) -> int:
        return self._contacts + len(list(self.folder.glob("witness-*")))

    def witness(self) -> str:
        """A path for a program to touch."""
        return str(self.folder / f"witness-{next(self._numbers)}")

    def wait_for_contact(self, since: int) -> None:
        """Wait for contacts after `since`, and until the connections have ended."""
        wait_until(lambda: self.contacts > since and self._open == 0)

    def count(self) -> None:
        with self._lock:
            self._contacts += 1

    @contextmanager
    def connection(self) -> Iterator[None]:
        with self._lock:
            self._open += 1
        try:
            yield
        finally:
            with self._lock:
                self._open -= 1

    def _serve(self, server: socketserver.BaseServer) -> int:
        thread = threading.Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        self._stack.callback(thread.join)
        self._stack.callback(server.server_close)
        self._stack.callback(server.shutdown)
        address: Any = server.server_address
        return address[1] if isinstance(address, tuple) else 0


class _Conversation(socketserver.StreamRequestHandler):
    def __init__(self, peer: Peer, protocol: str, *args: Any) -> None:
        self._peer = peer
        self._greeting, self._answer = TALK[protocol]
        super().__init__(*args)

    def handle(self) -> None:
        with self._peer.connection():
            self._peer.count()
            self.wfile.write(self._greeting)
            try:
                for line in self.rfile:
                    self._peer.count()
                    self.wfile.write(self._answer(line))
            except ConnectionError:
                pass


class _Datagram(socketserver.BaseRequestHandler):
    def __init__(self, peer: Peer, *args: Any) -> None:
        self._peer = peer
        super().__init__(*args)

    def handle(self) -> None:
        self._peer.count()
        data, sock = self.request
        if isinstance(self.client_address, tuple):
            sock.sendto(data, self.client_address)
