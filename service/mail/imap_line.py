"""A line to an IMAP server: resolve, connect, TLS, login, one exchange after the other, close.

One `ImapLine` is one connection and at most one thread. An exchange runs in that thread under a
deadline; one that is cancelled or too slow has the socket shut down, then its thread is waited
for. Trouble comes out as one of the `MailError` classes. What is said over it is `imap.py`'s.
"""

import base64
import imaplib
import math
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import trio

from service.errors import ConnectionLost, CredentialsRefused, MailboxUnreachable, MailError
from service.mail.imap_client import ImapClient, LoginError, cut
from service.mail.replies import decide_login_error, decide_lost
from service.model import ImapConnection
from service.outbound import refuse_inside_transaction

T = TypeVar("T")

CLOSE_TIMEOUT_SECONDS = 2
# An exchange may need several reads, each under the socket's own time-out.
EXCHANGE_TIMEOUT_FACTOR = 2
# For those who wait for a cancelled thread to end: as many as there are such threads.
_ENDING = trio.CapacityLimiter(math.inf)


class ImapLine:
    """First `connect`, then either `secure` and `login`, or `log_in_with_first_exchange`."""

    def __init__(self, connection: ImapConnection, *, timeout_seconds: float) -> None:
        self.connection = connection
        # Gmail finds whole words, where RFC 3501 says substrings; known after the login.
        self.searches_words = False
        self._timeout_seconds = timeout_seconds
        self._thread = trio.CapacityLimiter(1)
        self._socket: socket.socket | None = None  # until there is a client on it
        self._wire: socket.socket | None = None
        self._client: Any = None
        self._usable = False
        self._has_begun = False
        self._password: str | None = None
        self._secrets: Sequence[str] = ()

    async def resolve(self) -> list[str]:
        """The addresses of the host's name. MailboxUnreachable."""
        host, port = self.connection.host, self.connection.port
        refuse_inside_transaction(f"resolving {host}")
        try:
            with trio.fail_after(self._timeout_seconds):
                found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (trio.TooSlowError, OSError) as error:
            raise MailboxUnreachable(
                f"the name {host} cannot be resolved: {error or 'no answer in time'}",
                hint="check the spelling of the host and this machine's DNS",
            ) from error
        return [str(address[0]) for *_, address in found]

    async def connect(self) -> str:
        """Resolve the name and connect; returns the peer's address. MailboxUnreachable."""
        host, port = self.connection.host, self.connection.port
        refuse_inside_transaction(f"an IMAP connection to {host}")
        try:
            with trio.fail_after(self._timeout_seconds):
                stream = await trio.open_tcp_stream(host, port)
        except trio.TooSlowError:
            raise MailboxUnreachable(
                f"no connection to {host}:{port} within {self._timeout_seconds:g} s",
                hint="check host and port, and whether a firewall drops the packets",
            ) from None
        except OSError as error:
            raise MailboxUnreachable(
                f"cannot connect to {host}:{port}: {_cause(error)}",
                hint="check host and port: 993 for --tls implicit, 143 for starttls and none",
            ) from error
        async with stream:
            peer: str = stream.socket.getpeername()[0]
            self._socket = socket.socket(fileno=os.dup(stream.socket.fileno()))
        self._socket.settimeout(self._timeout_seconds)
        self._wire = self._socket.dup()  # wrapping in TLS detaches the other one
        return peer

    async def secure(self) -> str:
        """TLS as configured, verified, never downgraded; returns the protocol's name."""
        return await self._in_time(self._secure)

    async def login(self, password: str) -> None:
        """CredentialsRefused, or MailboxThrottled when it is not about the password."""
        await self._in_time(self._login, password)

    def log_in_with_first_exchange(self, password: str) -> None:
        """TLS and login are done with the first exchange: in its thread, and in its time."""
        self._password = password

    async def exchange(self, function: Callable[..., T], *args: object) -> T:
        """What `function(client, *args)` has of the server, under the deadline. MailError."""
        return await self._in_time(self._exchange, function, *args)

    def _exchange(self, function: Callable[..., T], *args: object) -> T:
        password, self._password = self._password, None
        if password is not None:
            self._secure()
            self._login(password)
            self._client.allow_next_answer()
        return function(self._client, *args)

    def _secure(self) -> str:
        host = self.connection.host
        sock, self._socket = self._socket, None
        assert sock is not None  # noqa: S101
        try:
            if self.connection.tls == "implicit":
                sock = ssl.create_default_context().wrap_socket(sock, server_hostname=host)
            self._client = ImapClient(sock, host)
            if self.connection.tls == "starttls":
                self._start_tls()
        except ssl.SSLCertVerificationError as error:
            raise MailboxUnreachable(
                f"the certificate of {host} is not valid: {error.verify_message}",
                hint="use the name in the certificate; for a CA of your own set SSL_CERT_FILE",
            ) from error
        except ssl.SSLError as error:
            raise MailboxUnreachable(
                f"no TLS with {host}:{self.connection.port}: {error.reason or error}",
                hint="--tls implicit is for port 993; on port 143 use --tls starttls",
            ) from error
        finally:
            if self._client is None:
                sock.close()
        self._usable = self._has_begun = True
        protocol = getattr(self._client.socket(), "version", lambda: None)()
        return str(protocol or "no TLS")

    def _start_tls(self) -> None:
        try:
            self._client.starttls(ssl.create_default_context())
        except imaplib.IMAP4.error as error:
            raise MailboxUnreachable(
                f"{self.connection.host} did not start TLS: {error}",
                hint="use --tls implicit if the server offers it; mail is never read without "
                "the TLS that was asked for",
            ) from error

    def _login(self, password: str) -> None:
        username = self.connection.username
        self._secrets = _spellings(username, password)
        self.searches_words = self._client.has_capability("X-GM-EXT-1")
        try:
            if self._client.has_capability("AUTH=PLAIN"):  # takes any character
                self._client.plain_login(username, password)
            elif self._client.has_capability("LOGINDISABLED"):
                raise CredentialsRefused(
                    "the server allows no plain login on this connection",
                    hint="use --tls implicit or --tls starttls",
                )
            else:
                _refuse_unquotable(username + password)
                quoted = username.replace("\\", "\\\\").replace('"', '\\"')
                self._client.login(f'"{quoted}"', password)
        except LoginError as error:
            if isinstance(error.__context__, imaplib.IMAP4.abort):
                raise error.__context__ from None
            raise decide_login_error(self.words(error)) from None

    async def _in_time(self, function: Callable[..., T], *args: object) -> T:
        refuse_inside_transaction(f"an IMAP command to {self.connection.host}")
        limit_seconds = self._timeout_seconds * EXCHANGE_TIMEOUT_FACTOR
        with self._doubting_port():
            with trio.move_on_after(limit_seconds):
                return await self.run_in_thread(function, *args)
            raise ConnectionLost(f"no complete answer within {limit_seconds:g} s")

    @contextmanager
    def _doubting_port(self) -> Iterator[None]:
        """A connection that does not even begin as IMAP is probably another port."""
        try:
            yield
        except ConnectionLost as error:
            if not self._has_begun:
                error.hint = (
                    "is this an IMAP port, and the right --tls for it? "
                    "implicit is usual on port 993, starttls on port 143"
                )
            raise

    async def run_in_thread(self, function: Callable[..., T], *args: object) -> T:
        """Run a blocking function in the line's thread, for as long as it takes. MailError.

        When it is cancelled the line is shut down, so that the thread comes to its end.
        """
        ended = threading.Event()

        def step() -> T:
            try:
                with self._explaining_errors():
                    if self._client is not None:
                        self._client.allow_next_answer()
                    return function(*args)
            finally:
                ended.set()

        try:
            return await trio.to_thread.run_sync(step, limiter=self._thread, abandon_on_cancel=True)
        except trio.Cancelled:
            self._usable = False
            self._shut_down()
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(ended.wait, CLOSE_TIMEOUT_SECONDS, limiter=_ENDING)
            raise

    @contextmanager
    def _explaining_errors(self) -> Iterator[None]:
        """Whatever goes wrong is a MailError; after most of it the line is not usable any more."""
        try:
            yield
        except imaplib.IMAP4.abort as error:
            self._usable = False
            raise decide_lost(self.words(error)) from error
        except imaplib.IMAP4.error as error:
            raise decide_lost(f"unexpected answer: {self.words(error)}") from error
        except TimeoutError:
            self._usable = False
            raise ConnectionLost(f"no answer for {self._timeout_seconds:g} s") from None
        except OSError as error:
            self._usable = False
            raise ConnectionLost(f"connection lost: {self.words(error)}") from error
        except MailError:
            raise
        except Exception as error:  # the libraries find no words for much that a server may say
            self._usable = False
            words = self.words(error)
            raise ConnectionLost(f"the server's answer makes no sense: {words}") from error

    def words(self, error: BaseException) -> str:
        """The server's words, without the b'…' that imaplib leaves around them, and no secret."""
        text = str(error) or type(error).__name__
        text = text[2:-1] if text[:2] in ("b'", 'b"') else text
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return cut(text)

    def _shut_down(self) -> None:
        if self._client is not None:
            self._client.abandon()
        if self._wire is not None:
            with suppress(OSError):
                self._wire.shutdown(socket.SHUT_RDWR)

    async def aclose(self) -> None:
        """LOGOUT if the connection is good, then close; never raises, takes at most 2 s."""
        with trio.move_on_after(CLOSE_TIMEOUT_SECONDS, shield=True):
            if self._usable:
                with suppress(MailError):
                    await self.run_in_thread(self._client.logout)
        self._shut_down()
        if self._client is not None:
            with suppress(OSError, ValueError):
                self._client.shutdown()
        for sock in (self._socket, self._wire):
            if sock is not None:
                sock.close()


def _refuse_unquotable(text: str) -> None:
    """RFC 3501 section 9: a line break in a quoted string would begin a second command."""
    if not text.isascii() or set(text) & set("\r\n\0"):
        raise CredentialsRefused(
            "the server's LOGIN takes only ASCII without line breaks as user name and password"
        )


def _spellings(username: str, password: str) -> list[str]:
    """The forms in which a server may give a password back when it complains of a command."""
    quoted = password.replace("\\", "\\\\").replace('"', '\\"')
    plain = base64.b64encode(f"\0{username}\0{password}".encode(errors="replace")).decode()
    shown = (repr(spelling.encode(errors="replace"))[2:-1] for spelling in (password, quoted))
    return sorted({password, quoted, plain, *shown}, key=len, reverse=True)


def _cause(error: OSError) -> str:
    """Why a connection failed: Trio puts its attempts, one an address, behind one error."""
    cause = error.__cause__
    while isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    return getattr(cause, "strerror", None) or error.strerror or str(error)
