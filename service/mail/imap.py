"""IMAP mailboxes, read only: EXAMINE and BODY.PEEK, never a flag changed (RFC 3501).

One `ImapSession` is one connection and at most one thread: each blocking step runs in a thread
under a deadline; a step that is cancelled or too slow has its socket shut down, then its thread is
waited for. Trouble comes out as one of the `MailError` classes.
"""

import base64
import imaplib
import os
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

import trio

from service import metrics
from service.errors import (
    ConnectionLost,
    CredentialsRefused,
    FetchRefused,
    MailboxThrottled,
    MailboxUnreachable,
    MailError,
)
from service.mail.imap_client import ImapClient, LoginError, Rows, cut, number, parse_to_datetime
from service.mail.replies import decide_fetch_error, decide_login_error, decide_lost
from service.mail.search import new_mail_criteria, uid_set
from service.mail.structure import parse_bodystructure
from service.model import FailedMessage, ImapConnection, Overview
from service.outbound import refuse_inside_transaction

T = TypeVar("T")

HEADER_MAX_BYTES = 128 * 1024
MAX_UIDVALIDITY = 2**63 - 1  # more than RFC 3501 allows, and what some servers make of it
CLOSE_TIMEOUT_SECONDS = 2
SLICE_SECONDS = 0.1
# A step may need several reads, each under the socket's own time-out.
STEP_TIMEOUT_FACTOR = 2


@dataclass(frozen=True, slots=True)
class Folder:
    """What EXAMINE said; `uidvalidity` is None when the server does not give one."""

    exists: int
    uidvalidity: int | None


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the sessions of a process share.

    `connections` caps the connections. `parsing` lets one thread at a time make sense of answers:
    several would win nothing under the interpreter's lock, but keep the event loop, and with it
    every open transaction, waiting for its turn.
    """

    connections: trio.CapacityLimiter
    parsing: trio.CapacityLimiter


def create_capacity(max_connections: int) -> Capacity:
    """The capacity of one process."""
    return Capacity(trio.CapacityLimiter(max_connections), trio.CapacityLimiter(1))


class ImapSession:
    """One connection. Use `open_imap`; `mailbox test` takes the steps one by one."""

    def __init__(
        self, connection: ImapConnection, *, timeout_seconds: float, capacity: Capacity
    ) -> None:
        self._connection = connection
        self._timeout_seconds = timeout_seconds
        self._thread = trio.CapacityLimiter(1)
        self._parsing = capacity.parsing
        self._socket: socket.socket | None = None
        self._line: socket.socket | None = None
        self._client: Any = None
        self._usable = False
        self._secrets: Sequence[str] = ()

    async def resolve(self) -> list[str]:
        """The addresses of the host's name. MailboxUnreachable."""
        host, port = self._connection.host, self._connection.port
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
        host, port = self._connection.host, self._connection.port
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
        self._line = self._socket.dup()  # wrapping in TLS detaches the other one
        return peer

    async def secure(self) -> str:
        """TLS as configured, verified, never downgraded; returns the protocol's name."""
        try:
            return await self._step(self._secure)
        except ConnectionLost as error:
            error.hint = (
                "is this an IMAP port, and the right --tls for it? "
                "implicit is usual on port 993, starttls on port 143"
            )
            raise

    def _secure(self) -> str:
        tls, host = self._connection.tls, self._connection.host
        sock, self._socket = self._socket, None
        assert sock is not None  # noqa: S101
        try:
            if tls == "implicit":
                sock = ssl.create_default_context().wrap_socket(sock, server_hostname=host)
            self._client = ImapClient(sock, host)
            if tls == "starttls":
                self._client.starttls(ssl.create_default_context())
        except ssl.SSLCertVerificationError as error:
            raise MailboxUnreachable(
                f"the certificate of {host} is not valid: {error.verify_message}",
                hint="use the name in the certificate; for a CA of your own set SSL_CERT_FILE",
            ) from error
        except ssl.SSLError as error:
            raise MailboxUnreachable(
                f"no TLS with {host}:{self._connection.port}: {error.reason or error}",
                hint="--tls implicit is for port 993; on port 143 use --tls starttls",
            ) from error
        except imaplib.IMAP4.error as error:
            if tls != "starttls" or self._client is None:
                raise
            raise MailboxUnreachable(
                f"{host} did not start TLS: {error}",
                hint="use --tls implicit if the server offers it; mail is never read without "
                "the TLS that was asked for",
            ) from error
        finally:
            if self._client is None:
                sock.close()
        self._usable = True
        protocol = getattr(self._client.socket(), "version", lambda: None)()
        return str(protocol or "no TLS")

    async def login(self, password: str) -> None:
        """CredentialsRefused, or MailboxThrottled when it is not about the password."""
        await self._step(self._login, password)

    def _login(self, password: str) -> None:
        username = self._connection.username
        self._secrets = _spellings(username, password)
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
            raise decide_login_error(self._words(error)) from None

    async def examine(self) -> Folder:
        """Open the configured folder read-only. MailboxUnreachable, naming the folders there."""
        return await self._step(self._examine)

    def _examine(self) -> Folder:
        name = self._connection.folder
        try:
            answer = self._client.select_folder(name, readonly=True)
        except imaplib.IMAP4.abort:
            raise
        except imaplib.IMAP4.error as error:
            words = self._words(error)
            if isinstance(later := decide_lost(words), MailboxThrottled):
                raise later from error
            raise MailboxUnreachable(
                f"folder {name!r} cannot be opened: {words}",
                hint=f"folders there: {self._folder_names() or 'none'}",
            ) from error
        uidvalidity = answer.get("UIDVALIDITY") or 0
        known = 0 < uidvalidity <= MAX_UIDVALIDITY
        return Folder(answer.get("EXISTS") or 0, uidvalidity if known else None)

    def _folder_names(self) -> str:
        with suppress(imaplib.IMAP4.error, ValueError):
            return ", ".join(str(entry[2]) for entry in self._client.list_folders()[:30])
        return "the server does not say"

    async def search_new(self, *, after_uid: int | None, since: datetime | None) -> list[int]:
        """UIDs beyond `after_uid`, or without it those that may have arrived since `since`."""
        uids = await self._step(self._client.uid_search, new_mail_criteria(after_uid, since))
        return [uid for uid in uids if uid > (after_uid or 0)]

    async def list_present(self, uids: Sequence[int]) -> list[int]:
        """Which of these messages the folder still has."""
        present = set(await self._step(self._client.uid_search, ["UID", uid_set(uids)]))
        return [uid for uid in uids if uid in present]

    async def fetch_overviews(self, uids: Sequence[int]) -> list[Overview | FailedMessage]:
        """Pass 1 for these messages, in UID order; those without an answer are left out.

        FetchRefused when the answer as a whole cannot be used.
        """
        header = f"BODY.PEEK[HEADER]<0.{HEADER_MAX_BYTES}>"
        rows = await self._fetch(uids, [header, "BODYSTRUCTURE", "INTERNALDATE", "RFC822.SIZE"])
        found: list[Overview | FailedMessage] = []
        await self._in_turns(_read_overviews(rows, found))
        return found

    async def fetch_sections(
        self, uids: Sequence[int], sections: Mapping[str, int]
    ) -> dict[int, dict[str, bytes]]:
        """The first `sections[s]` encoded bytes of each section of each message."""
        items = [f"BODY.PEEK[{section}]<0.{size}>" for section, size in sections.items()]
        rows = await self._fetch(uids, items)
        return {
            uid: {section: _literal(row, section, 0) for section in sections}
            for uid, row in rows.items()
        }

    async def fetch_slice(self, uid: int, section: str, offset: int, size: int) -> bytes:
        """Up to `size` encoded bytes of one section from `offset`; section "" is all of it."""
        rows = await self._fetch([uid], [f"BODY.PEEK[{section}]<{offset}.{size}>"])
        if uid not in rows:
            raise FetchRefused("FETCH gives nothing of the message")
        data = _literal(rows[uid], section, offset)
        if len(data) > size:
            raise FetchRefused(f"FETCH gave {len(data)} bytes where {size} were asked for")
        return data

    async def _fetch(self, uids: Sequence[int], items: Sequence[str]) -> Rows:
        """One FETCH: off the wire under its deadline, then made sense of in turns."""
        records = await self._step(self._fetch_records, uids, items)
        rows: Rows = {}
        await self._in_turns(self._client.parse_fetch(records, rows, uids))
        return rows

    def _fetch_records(self, uids: Sequence[int], items: Sequence[str]) -> list[Any]:
        try:
            records: list[Any] = self._client.uid_fetch(uids, items)
        except imaplib.IMAP4.abort:
            raise
        except imaplib.IMAP4.error as error:  # NO or BAD
            raise decide_fetch_error(self._words(error).removeprefix("FETCH failed: ")) from error
        return records

    async def compute(self, function: Callable[..., T], *args: object) -> T:
        """Run a long computation in a thread, in turn with the other sessions."""
        return await trio.to_thread.run_sync(function, *args, limiter=self._parsing)

    async def _in_turns(self, work: Iterator[None]) -> None:
        """Run a long computation slice by slice, so that no mailbox keeps the others from theirs.

        Waiting for a turn is not the server's fault: nothing but the poll's deadline bounds it.
        """
        has_more = True
        while has_more:
            async with self._parsing:
                has_more = await self._run(_work_on, work)

    async def _step(self, function: Callable[..., T], *args: object) -> T:
        """Run one blocking step under its deadline, errors mapped to ours."""
        refuse_inside_transaction(f"an IMAP command to {self._connection.host}")
        limit_seconds = self._timeout_seconds * STEP_TIMEOUT_FACTOR
        with trio.move_on_after(limit_seconds):
            return await self._run(function, *args)
        raise ConnectionLost(f"no complete answer within {limit_seconds:g} s")

    async def _run(self, function: Callable[..., T], *args: object) -> T:
        ended = trio.Event()
        token = trio.lowlevel.current_trio_token()

        def step() -> T:
            try:
                if self._client is not None:
                    self._client.allow_next_answer()
                return function(*args)
            except imaplib.IMAP4.abort as error:
                self._usable = False
                raise decide_lost(self._words(error)) from error
            except imaplib.IMAP4.error as error:
                raise decide_lost(f"unexpected answer: {self._words(error)}") from error
            except TimeoutError:
                self._usable = False
                raise ConnectionLost(f"no answer for {self._timeout_seconds:g} s") from None
            except OSError as error:
                self._usable = False
                raise ConnectionLost(f"connection lost: {self._words(error)}") from error
            except MailError:
                raise
            except Exception as error:  # the libraries find no words for much that a server may say
                self._usable = False
                words = self._words(error)
                raise ConnectionLost(f"the server's answer makes no sense: {words}") from error
            finally:
                token.run_sync_soon(ended.set)

        try:
            return await trio.to_thread.run_sync(step, limiter=self._thread, abandon_on_cancel=True)
        except trio.Cancelled:
            self._usable = False
            self._shut_down()
            with trio.move_on_after(CLOSE_TIMEOUT_SECONDS, shield=True):
                await ended.wait()
            raise

    def _words(self, error: BaseException) -> str:
        """The server's words, without the b'…' that imaplib leaves around them, and no secret."""
        text = str(error) or type(error).__name__
        text = text[2:-1] if text[:2] in ("b'", 'b"') else text
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return cut(text)

    def _shut_down(self) -> None:
        if self._client is not None:
            self._client.abandon()
        if self._line is not None:
            with suppress(OSError):
                self._line.shutdown(socket.SHUT_RDWR)

    async def aclose(self) -> None:
        """LOGOUT if the connection is good, then close; never raises, takes at most 2 s."""
        with trio.move_on_after(CLOSE_TIMEOUT_SECONDS, shield=True):
            if self._usable:
                with suppress(MailError):
                    await self._run(self._client.logout)
        self._shut_down()
        if self._client is not None:
            with suppress(OSError, ValueError):
                self._client.shutdown()
        for sock in (self._socket, self._line):
            if sock is not None:
                sock.close()


@asynccontextmanager
async def open_imap(
    connection: ImapConnection,
    password: str,
    *,
    timeout_seconds: float,
    capacity: Capacity,
) -> AsyncIterator[ImapSession]:
    """Connect, TLS, login."""
    async with capacity.connections:
        session = ImapSession(connection, timeout_seconds=timeout_seconds, capacity=capacity)
        try:
            with metrics.IMAP_CONNECTIONS.track_inprogress():
                await session.connect()
                await session.secure()
                await session.login(password)
                yield session
        finally:
            await session.aclose()


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


def _work_on(work: Iterator[None]) -> bool:
    """One slice of it; whether there is more."""
    end = time.monotonic() + SLICE_SECONDS
    return any(time.monotonic() > end for _ in work)


def _read_overviews(rows: Rows, found: list[Overview | FailedMessage]) -> Iterator[None]:
    """Put the messages of `rows` into `found` in UID order, one at a time."""
    for uid in sorted(rows):
        found.append(_overview(uid, rows[uid]))
        yield


def _overview(uid: int, row: Mapping[bytes, Any]) -> Overview | FailedMessage:
    received_at = _received_at(row.get(b"INTERNALDATE"))
    if received_at is None:
        return FailedMessage(uid, "fetch", "the server gave no usable INTERNALDATE")
    try:
        if b"BODYSTRUCTURE" not in row:
            raise FetchRefused("the server left BODYSTRUCTURE out")
        structure = parse_bodystructure(row[b"BODYSTRUCTURE"])
        header = _literal(row, "HEADER", 0)
    except Exception as error:  # whatever a hostile structure finds: it costs this mail only
        return FailedMessage(uid, "parse", cut(str(error) or type(error).__name__))
    return Overview(uid, header, structure, received_at, number(row.get(b"RFC822.SIZE")) or 0)


def _received_at(value: object) -> datetime | None:
    if not isinstance(value, bytes):
        return None
    try:
        instant = parse_to_datetime(value, normalise=False)
        return None if instant.tzinfo is None else instant.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _literal(row: Mapping[bytes, Any], section: str, offset: int) -> bytes:
    """The value of a BODY[section] item; a server may leave out the origin octet."""
    name = f"BODY[{section}]".encode("ascii")
    value = row.get(name + f"<{offset}>".encode("ascii"), row.get(name, ...))
    if value is None and section not in ("", "HEADER"):
        return b""
    if isinstance(value, int):  # digits without quotes
        return str(value).encode("ascii")
    if not isinstance(value, bytes):
        what = f"section {section}" if section else "the whole message"
        raise FetchRefused(f"the server gave nothing usable for {what}")
    return value


def _cause(error: OSError) -> str:
    """Why a connection failed: Trio puts its attempts, one an address, behind one error."""
    cause = error.__cause__
    while isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    return getattr(cause, "strerror", None) or error.strerror or str(error)
