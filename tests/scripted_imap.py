"""An IMAP server that misbehaves on demand, on a loopback port, with a thread per connection.

It serves one folder correctly; `script` overrides single commands, by their upper-case names:
`LOGIN`, `UID FETCH`, also `GREETING`. Every line of a client is in `received`. A script that
raises fails the test when the server is left.

    with ScriptedImap([Message(1, raw)], {"UID FETCH": HangMidLiteral(10)}) as server:
        ... connect to server.host, server.port
"""

import contextlib
import re
import socket
import socketserver
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from tests.scripted_mailbox import Message, fetch_reply, search_reply

__all__ = ["Close", "Drip", "Hang", "HangMidLiteral", "Message", "Reply", "ScriptedImap"]

_CLIENT_LITERAL = re.compile(rb"\{(\d+)(\+?)\}\r\n\Z")
_SERVER_LITERAL = re.compile(rb"\{(\d+)\}\r\n")


@dataclass(frozen=True)
class Close:
    """Say `before` (a BYE, or half a line), then close the connection."""

    before: bytes = b""


@dataclass(frozen=True)
class Hang:
    """Say `before`, then nothing more, until the client closes."""

    before: bytes = b""


@dataclass(frozen=True)
class HangMidLiteral:
    """Give the usual reply up to `sent_bytes` into its first literal, then hang."""

    sent_bytes: int


@dataclass(frozen=True)
class Drip:
    """Say `data` byte by byte."""

    data: bytes
    seconds_per_byte: float


Action = bytes | Close | Hang | HangMidLiteral | Drip
"""Bytes are sent as they are, with the command's tag for `{tag}`."""
Reply = Action | Callable[[str], Action | None]
"""A function gets the command's arguments; None means the usual reply."""


class ScriptedImap(socketserver.ThreadingTCPServer):
    """`messages`, `script`, `uidvalidity` and `capabilities` may be changed while it serves."""

    def __init__(
        self,
        messages: Sequence[Message] = (),
        script: Mapping[str, Reply] | None = None,
        *,
        uidvalidity: int = 1,
        capabilities: str = "IMAP4rev1",
    ) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.messages = list(messages)
        self.script = dict(script or {})
        self.uidvalidity = uidvalidity
        self.capabilities = capabilities
        self.host = "127.0.0.1"
        self.port: int = self.server_address[1]
        self.received: list[str] = []
        self.connections_total = 0
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._errors: list[Exception] = []
        self.stopping = threading.Event()

    @property
    def connections_open(self) -> int:
        return len(self._open)

    def default_reply(self, name: str, args: str) -> bytes:
        """What a well-behaved server says."""
        done = f"{{tag}} OK {name} done\r\n".encode()
        match name:
            case "GREETING":
                return b"* OK ready\r\n"
            case "CAPABILITY":
                return f"* CAPABILITY {self.capabilities}\r\n".encode() + done
            case "LOGIN" | "AUTHENTICATE" | "NOOP" | "CHECK" | "CLOSE" | "UNSELECT" | "ENABLE":
                return done
            case "ID":
                return b"* ID NIL\r\n" + done
            case "LIST":
                return b'* LIST () "/" INBOX\r\n' + done
            case "EXAMINE" | "SELECT":
                return self._folder_lines() + done
            case "STATUS":
                return self._status_line() + done
            case "UID SEARCH":
                return search_reply(self.messages, args)
            case "UID FETCH":
                return fetch_reply(self.messages, args)
            case "LOGOUT":
                return b"* BYE see you\r\n" + done
        return b"{tag} BAD unknown command\r\n"

    def _folder_lines(self) -> bytes:
        lines = [
            "FLAGS ()",
            f"{len(self.messages)} EXISTS",
            "0 RECENT",
            f"OK [UIDVALIDITY {self.uidvalidity}] UIDs valid",
            f"OK [UIDNEXT {self._uidnext()}] next UID",
        ]
        return "".join(f"* {line}\r\n" for line in lines).encode()

    def _status_line(self) -> bytes:
        values = f"MESSAGES {len(self.messages)} UIDVALIDITY {self.uidvalidity}"
        return f"* STATUS INBOX ({values} UIDNEXT {self._uidnext()})\r\n".encode()

    def _uidnext(self) -> int:
        return max((message.uid for message in self.messages), default=0) + 1

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self.connections_total += 1
            self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        with self._lock:
            self._open.discard(request)

    def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002
        error = sys.exception()
        # A client that goes away in the middle is part of the game.
        if isinstance(error, Exception) and not isinstance(error, ConnectionError):
            self._errors.append(error)

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self.shutdown()
        self._thread.join()
        with self._lock:
            for client in self._open:
                with contextlib.suppress(OSError):
                    client.shutdown(socket.SHUT_RDWR)
        self.server_close()
        if self._errors:
            raise ExceptionGroup("the script of a ScriptedImap failed", self._errors)


class _Connection(socketserver.StreamRequestHandler):
    """One client, from the greeting to the end; `handle` is its thread."""

    server: ScriptedImap

    def handle(self) -> None:
        goes_on = self._answer(b"*", "GREETING", "")
        while goes_on and (line := self._read_command()) is not None:
            tag, name, args = _parse_command(line)
            if name == "AUTHENTICATE" and " " not in args:
                self.wfile.write(b"+ \r\n")
                args = f"{args} {self._read_command() or ''}"
            goes_on = self._answer(tag.encode(), name, args) and name != "LOGOUT"

    def _read_command(self) -> str | None:
        """A line with the literals in it (RFC 3501 section 4.3); None at the end."""
        line = self.rfile.readline()
        while literal := _CLIENT_LITERAL.search(line):
            if not literal[2]:
                self.wfile.write(b"+ go on\r\n")
            line += self.rfile.read(int(literal[1])) + self.rfile.readline()
        if not line:
            return None
        text = line.decode("utf-8", "surrogateescape").removesuffix("\r\n")
        self.server.received.append(text)
        return text

    def _answer(self, tag: bytes, name: str, args: str) -> bool:
        """Play the script for one command; returns whether the connection goes on."""
        usual = self.server.default_reply
        scripted = self.server.script.get(name)
        reply = scripted(args) if callable(scripted) else scripted
        match usual(name, args) if reply is None else reply:
            case bytes(data):
                self._say(data, tag)
                return True
            case Drip(data, seconds_per_byte):
                self._drip(data.replace(b"{tag}", tag), seconds_per_byte)
                return True
            case Close(before):
                self._say(before, tag)
            case Hang(before):
                self._hang(before, tag)
            case HangMidLiteral(sent_bytes):
                self._hang(_cut_in_literal(usual(name, args), sent_bytes), tag)
        return False

    def _say(self, data: bytes, tag: bytes) -> None:
        self.wfile.write(data.replace(b"{tag}", tag))

    def _hang(self, before: bytes, tag: bytes) -> None:
        self._say(before, tag)
        while self._read_command() is not None:
            pass

    def _drip(self, data: bytes, seconds_per_byte: float) -> None:
        for byte in data:
            self.wfile.write(bytes([byte]))
            if self.server.stopping.wait(seconds_per_byte):
                return


def _parse_command(line: str) -> tuple[str, str, str]:
    """Tag, name and arguments; `UID FETCH` and its like are one name."""
    tag, _, rest = line.partition(" ")
    name, _, args = rest.partition(" ")
    if name.upper() == "UID":
        second, _, args = args.partition(" ")
        name = f"{name} {second}"
    return tag, name.upper(), args


def _cut_in_literal(reply: bytes, sent_bytes: int) -> bytes:
    literal = _SERVER_LITERAL.search(reply)
    if literal is None:
        raise ValueError("the usual reply has no literal to hang in")
    return reply[: literal.end() + sent_bytes]
