"""IMAP mailboxes, read only: EXAMINE and BODY.PEEK, never a flag changed (RFC 3501).

One `ImapSession` is one connection and at most one thread: each blocking step runs in a thread
under a deadline; a step that is cancelled or too slow has its socket shut down, then its thread is
waited for. Trouble comes out as one of the `MailError` classes.
"""

import base64
import imaplib
import math
import os
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
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
from service.mail.imap_client import (
    ImapClient,
    LoginError,
    Rows,
    cut,
    number,
    parse_to_datetime,
    records_bytes,
)
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
# An answer up to this size takes less than a slice, and another thread would take longer.
SMALL_BYTES = 64 * 1024
# A step may need several reads, each under the socket's own time-out.
STEP_TIMEOUT_FACTOR = 2
# For those who wait for a cancelled thread to end: as many as there are such threads.
_ENDING = trio.CapacityLimiter(math.inf)


@dataclass(frozen=True, slots=True)
class Folder:
    """What EXAMINE said; `uidvalidity` and `uidnext` are 0 when the server gives none."""

    exists: int
    uidvalidity: int
    uidnext: int


@dataclass(frozen=True, slots=True)
class Finding:
    """What SEARCH said by these criteria: ascending UIDs."""

    folder: Folder
    criteria: str
    uids: list[int]

    @property
    def seen_uid(self) -> int:
        """What was there when the folder was opened goes up to this UID."""
        return self.folder.uidnext - 1 if self.folder.uidnext else max(self.uids, default=0)


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
        self._has_begun = False
        self._password: str | None = None
        self._secrets: Sequence[str] = ()
        # Gmail finds whole words, where RFC 3501 says substrings.
        self.searches_words = False

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
        return await self._step(self._secure)

    def login_with_next_step(self, password: str) -> None:
        """TLS and login are done with the first command: in its thread, and in its time."""
        self._password = password

    def _begin(self) -> None:
        password, self._password = self._password, None
        if password is not None:
            self._secure()
            self._login(password)
            self._client.allow_next_answer()

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
        self._usable = self._has_begun = True
        protocol = getattr(self._client.socket(), "version", lambda: None)()
        return str(protocol or "no TLS")

    async def login(self, password: str) -> None:
        """CredentialsRefused, or MailboxThrottled when it is not about the password."""
        await self._step(self._login, password)

    def _login(self, password: str) -> None:
        username = self._connection.username
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
        return Folder(
            answer.get("EXISTS") or 0, uidvalidity if known else 0, answer.get("UIDNEXT") or 0
        )

    def _folder_names(self) -> str:
        with suppress(imaplib.IMAP4.error, ValueError):
            return ", ".join(str(entry[2]) for entry in self._client.list_folders()[:30])
        return "the server does not say"

    async def search_new(self, *, after_uid: int | None, since: datetime | None) -> list[int]:
        """UIDs beyond `after_uid`, or without it those that may have arrived since `since`."""
        uids = await self.search(new_mail_criteria(after_uid, since))
        return [uid for uid in uids if uid > (after_uid or 0)]

    async def search(self, criteria: str) -> list[int]:
        """Ascending UIDs of what the server finds; `UID n:*` finds the last message always."""
        return await self._step(self._client.uid_search, criteria)

    async def look_up(self, choose: Callable[[Folder], str]) -> Finding:
        """EXAMINE, then SEARCH by the criteria that `choose` has for the folder."""
        return await self._step(self._look_up, choose)

    def _look_up(self, choose: Callable[[Folder], str]) -> Finding:
        folder = self._examine()
        criteria = choose(folder)
        return Finding(folder, criteria, self._client.uid_search(criteria))

    async def list_present(self, uids: Sequence[int]) -> list[int]:
        """Which of these messages the folder still has."""
        present = set(await self.search(f"UID {uid_set(uids)}"))
        return [uid for uid in uids if uid in present]

    async def fetch_overviews(
        self, uids: Sequence[int], read: Callable[[Overview | FailedMessage], T]
    ) -> list[T]:
        """Pass 1: what `read` makes of each of these messages, in UID order.

        Those without an answer are left out. FetchRefused when the answer as a whole cannot be
        used.
        """
        header = f"BODY.PEEK[HEADER]<0.{HEADER_MAX_BYTES}>"
        items = [header, "BODYSTRUCTURE", "INTERNALDATE", "RFC822.SIZE"]
        found = await self._fetch(uids, items, lambda uid, row: read(_overview(uid, row)))
        return list(found.values())

    async def fetch_sections(
        self, uids: Sequence[int], sections: Mapping[str, int]
    ) -> dict[int, dict[str, bytes]]:
        """The first `sections[s]` encoded bytes of each section of each message."""
        items = [f"BODY.PEEK[{section}]<0.{size}>" for section, size in sections.items()]
        return await self._fetch(
            uids, items, lambda _, row: {section: _literal(row, section, 0) for section in sections}
        )

    async def fetch_slice(self, uid: int, section: str, offset: int, size: int) -> bytes:
        """Up to `size` encoded bytes of one section from `offset`; section "" is all of it."""
        items = [f"BODY.PEEK[{section}]<{offset}.{size}>"]
        found = await self._fetch([uid], items, lambda _, row: _literal(row, section, offset))
        if uid not in found:
            raise FetchRefused("FETCH gives nothing of the message")
        data = found[uid]
        if len(data) > size:
            raise FetchRefused(f"FETCH gave {len(data)} bytes where {size} were asked for")
        return data

    async def _fetch(
        self,
        uids: Sequence[int],
        items: Sequence[str],
        read: Callable[[int, Mapping[bytes, Any]], T],
    ) -> dict[int, T]:
        """One FETCH off the wire under its deadline; what `read` makes of each message, by UID."""
        found: dict[int, T] = {}
        work = await self._step(self._begin_fetch, uids, items, read, found)
        await self._in_turns(work)
        return found

    def _begin_fetch(
        self,
        uids: Sequence[int],
        items: Sequence[str],
        read: Callable[[int, Mapping[bytes, Any]], T],
        found: dict[int, T],
    ) -> Iterator[None] | None:
        """The work that is left to make sense of the answer: none of one that is small."""
        records = self._fetch_records(uids, items)
        work = self._make_sense(records, uids, read, found)
        if records_bytes(records) > SMALL_BYTES:
            return work
        for _ in work:
            pass
        return None

    def _make_sense(
        self,
        records: Sequence[Any],
        uids: Sequence[int],
        read: Callable[[int, Mapping[bytes, Any]], T],
        found: dict[int, T],
    ) -> Iterator[None]:
        rows: Rows = {}
        yield from self._client.parse_fetch(records, rows, uids)
        for uid in sorted(rows):
            found[uid] = read(uid, rows[uid])
            yield

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

    async def _in_turns(self, work: Iterator[None] | None) -> None:
        """Run a long computation slice by slice, so that no mailbox keeps the others from theirs.

        Waiting for a turn is not the server's fault: nothing but the poll's deadline bounds it.
        """
        while work is not None:
            async with self._parsing:
                work = await self._run(_work_on, work)

    async def _step(self, function: Callable[..., T], *args: object) -> T:
        """Run one blocking step under its deadline, errors mapped to ours."""
        refuse_inside_transaction(f"an IMAP command to {self._connection.host}")
        limit_seconds = self._timeout_seconds * STEP_TIMEOUT_FACTOR

        def step() -> T:
            self._begin()
            return function(*args)

        with self._doubting_port():
            with trio.move_on_after(limit_seconds):
                return await self._run(step)
            raise ConnectionLost(f"no complete answer within {limit_seconds:g} s")

    async def _run(self, function: Callable[..., T], *args: object) -> T:
        ended = threading.Event()

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
                ended.set()

        try:
            return await trio.to_thread.run_sync(step, limiter=self._thread, abandon_on_cancel=True)
        except trio.Cancelled:
            self._usable = False
            self._shut_down()
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(ended.wait, CLOSE_TIMEOUT_SECONDS, limiter=_ENDING)
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
    """Connect; TLS and login come with the first command."""
    async with capacity.connections:
        session = ImapSession(connection, timeout_seconds=timeout_seconds, capacity=capacity)
        try:
            with metrics.IMAP_CONNECTIONS.track_inprogress():
                await session.connect()
                session.login_with_next_step(password)
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


def _work_on(work: Iterator[None]) -> Iterator[None] | None:
    """One slice of it; what is left."""
    end = time.monotonic() + SLICE_SECONDS
    return work if any(time.monotonic() > end for _ in work) else None


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
