"""IMAP mailboxes, read only: EXAMINE and BODY.PEEK, never a flag changed (RFC 3501).

An `ImapSession` is the commands over one line (`imap_line.py`): open the folder, SEARCH, FETCH in
two passes. What a hostile answer costs is bounded, and making sense of it is shared out among the
sessions. Trouble comes out as one of the `MailError` classes.
"""

import imaplib
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, ParamSpec, TypeVar

import trio

from service import metrics
from service.errors import FetchRefused, MailboxThrottled, MailboxUnreachable
from service.mail.capacity import Capacity
from service.mail.imap_client import (
    ImapClient,
    Rows,
    cut,
    number,
    parse_to_datetime,
    records_bytes,
)
from service.mail.imap_finding import Folder, ImapFinding, ImapNews
from service.mail.imap_line import ImapLine
from service.mail.replies import decide_fetch_error, decide_lost
from service.mail.search import look_criteria, new_mail_criteria, uid_set
from service.mail.source import ServerRef, Step
from service.mail.structure import parse_bodystructure
from service.model import (
    Cursor,
    FailedMessage,
    ImapConnection,
    ImapCursor,
    Overview,
    Query,
    Ref,
)

P = ParamSpec("P")
T = TypeVar("T")
Row = Mapping[bytes, Any]

HEADER_MAX_BYTES = 128 * 1024
MAX_UIDVALIDITY = 2**63 - 1  # more than RFC 3501 allows, and what some servers make of it
NO_UIDVALIDITY = "There is no UIDVALIDITY: each poll reads from the beginning"
SLICE_SECONDS = 0.1
# An answer up to this size takes less than a slice, and another thread would take longer.
SMALL_BYTES = 64 * 1024


@asynccontextmanager
async def open_imap(
    connection: ImapConnection,
    secret: str,
    *,
    timeout_seconds: float,
    capacity: Capacity,
) -> AsyncIterator["ImapSession"]:
    """A session that connects with its first command; `secret`: the password or access token."""
    async with capacity.connections:
        line = ImapLine(connection, timeout_seconds=timeout_seconds)
        try:
            with metrics.IMAP_CONNECTIONS.track_inprogress():
                yield ImapSession(line, secret, capacity.parsing)
        finally:
            await line.aclose()


class ImapSession:
    """The commands over one line. A `MailSource`: the folder is opened first."""

    def __init__(self, line: ImapLine, secret: str, parsing: trio.CapacityLimiter) -> None:
        self._line = line
        self._secret = secret
        self._is_connected = False
        self._parsing = parsing
        self._folder = Folder(0, 0, 0)

    @property
    def scope(self) -> ServerRef:
        """Under another UIDVALIDITY the UIDs mean other messages."""
        return {"uidvalidity": self._folder.uidvalidity}

    def server_ref(self, ref: Ref) -> ServerRef:
        """UIDVALIDITY and UID."""
        return {**self.scope, "uid": int(ref)}

    def find_ref(self, server_ref: ServerRef) -> Ref | None:
        """None under another UIDVALIDITY."""
        is_here = server_ref.get("uidvalidity") == self._folder.uidvalidity
        return str(server_ref["uid"]) if is_here and "uid" in server_ref else None

    def steps(self, since: datetime | None) -> Sequence[Step]:
        """Resolve, connect, TLS, login, folder, search."""
        return (
            ("resolve", self._resolve),
            ("connect", self._connect),
            ("TLS", self._line.secure),
            ("login", self._log_in),
            ("folder", self._open_folder),
            ("search", partial(self._search_since, since)),
        )

    async def _resolve(self) -> str:
        return f"{self._line.connection.host} is {', '.join(await self._line.resolve())}"

    async def _connect(self) -> str:
        self._is_connected = True
        return f"port {self._line.connection.port} of {await self._line.connect()}"

    async def _log_in(self) -> str:
        await self._line.login(self._secret)
        return f"as {self._line.connection.username}"

    async def _open_folder(self) -> str:
        await self.open()
        found = f"{self._line.connection.folder}: {self._folder.exists} messages"
        return found if self._folder.uidvalidity else f"{found}. {NO_UIDVALIDITY}"

    async def _search_since(self, since: datetime | None) -> str:
        uids = await self._search(new_mail_criteria(None, since))
        return f"{len(uids)} messages since {since.date() if since else 'the beginning'}"

    async def open(self) -> None:
        """Open the configured folder read-only. MailboxUnreachable, naming the folders there."""
        self._folder = await self._exchange(self._examine)

    async def open_news(self, cursor: Cursor | None, since: datetime | None) -> ImapNews:
        """EXAMINE and SEARCH; a cursor counts only under the UIDVALIDITY it was made with."""
        await self.open()
        uidvalidity = self._folder.uidvalidity
        known = isinstance(cursor, ImapCursor) and cursor.uidvalidity == uidvalidity != 0
        if isinstance(cursor, ImapCursor) and known:
            # `UID n:*` finds the last message always.
            found = await self._search(new_mail_criteria(cursor.uid, None))
            uids = [uid for uid in found if uid > cursor.uid]
            return ImapNews(uidvalidity, cursor.uid, uids, None)
        restart = None
        if isinstance(cursor, ImapCursor) and cursor.uidvalidity != uidvalidity:
            now = uidvalidity or "not given"
            restart = f"UIDVALIDITY was {cursor.uidvalidity}, is now {now}"
        uids = await self._search(new_mail_criteria(None, since))
        return ImapNews(uidvalidity, None, uids, restart)

    async def look_up(
        self, queries: Sequence[Query], *, newest_will_do: bool = False
    ) -> ImapFinding:
        """EXAMINE, then one SEARCH for all queries."""
        finding = await self._exchange(self._look_up, queries, newest_will_do)
        self._folder = finding.folder
        return finding

    def _look_up(
        self, client: ImapClient, queries: Sequence[Query], newest_will_do: bool
    ) -> ImapFinding:
        folder = self._examine(client)
        with_uids = [(query, _after_uid(query, folder)) for query in queries]
        criteria = look_criteria(
            with_uids,
            with_texts=not self._line.searches_words,
            newest_will_do=newest_will_do,
        )
        return ImapFinding(folder, criteria, client.uid_search(criteria))

    async def _search(self, criteria: str) -> list[int]:
        """Ascending UIDs of what the server finds."""
        return await self._exchange(ImapClient.uid_search, criteria)

    async def _exchange(self, function: Callable[..., T], *args: object) -> T:
        if not self._is_connected:
            await self._line.connect()
            self._line.log_in_with_first_exchange(self._secret)
            self._is_connected = True
        return await self._line.exchange(function, *args)

    def _examine(self, client: ImapClient) -> Folder:
        name = self._line.connection.folder
        try:
            answer = client.select_folder(name, readonly=True)
        except imaplib.IMAP4.abort:
            raise
        except imaplib.IMAP4.error as error:
            words = self._line.words(error)
            if isinstance(later := decide_lost(words), MailboxThrottled):
                raise later from error
            raise MailboxUnreachable(
                f"folder {name!r} cannot be opened: {words}",
                hint=f"folders there: {_folder_names(client) or 'none'}",
            ) from error
        uidvalidity = answer.get("UIDVALIDITY") or 0
        known = 0 < uidvalidity <= MAX_UIDVALIDITY
        return Folder(
            answer.get("EXISTS") or 0, uidvalidity if known else 0, answer.get("UIDNEXT") or 0
        )

    async def list_present(self, refs: Sequence[Ref]) -> list[Ref]:
        """Which of these messages the folder still has."""
        present = set(await self._search(f"UID {uid_set(map(int, refs))}"))
        return [ref for ref in refs if int(ref) in present]

    async def fetch_overviews(
        self, refs: Sequence[Ref], read: Callable[[Overview | FailedMessage], T]
    ) -> list[T]:
        """Pass 1: what `read` makes of each of these messages, in their order.

        Those without an answer are left out. FetchRefused when the answer as a whole cannot be
        used.
        """
        header = f"BODY.PEEK[HEADER]<0.{HEADER_MAX_BYTES}>"
        items = [header, "BODYSTRUCTURE", "INTERNALDATE", "RFC822.SIZE"]
        found = await self._fetch(refs, items, lambda uid, row: read(_overview(str(uid), row)))
        return [found[uid] for uid in map(int, refs) if uid in found]

    async def fetch_sections(
        self, refs: Sequence[Ref], sections: Mapping[str, int]
    ) -> dict[Ref, dict[str, bytes]]:
        """The first `sections[s]` encoded bytes of each section of each message."""
        items = [f"BODY.PEEK[{section}]<0.{size}>" for section, size in sections.items()]
        found = await self._fetch(
            refs, items, lambda _, row: {section: _literal(row, section, 0) for section in sections}
        )
        return {str(uid): literals for uid, literals in found.items()}

    async def fetch_slice(self, ref: Ref, section: str, offset: int, size: int) -> bytes:
        """Up to `size` encoded bytes of one section from `offset`; section "" is all of it."""
        items = [f"BODY.PEEK[{section}]<{offset}.{size}>"]
        found = await self._fetch([ref], items, lambda _, row: _literal(row, section, offset))
        if int(ref) not in found:
            raise FetchRefused("FETCH gives nothing of the message")
        data = found[int(ref)]
        if len(data) > size:
            raise FetchRefused(f"FETCH gave {len(data)} bytes where {size} were asked for")
        return data

    async def _fetch(
        self, refs: Sequence[Ref], items: Sequence[str], read: Callable[[int, Row], T]
    ) -> dict[int, T]:
        """One FETCH off the wire under its deadline; what `read` makes of each message, by UID."""
        found: dict[int, T] = {}
        uids = list(map(int, refs))
        work = await self._exchange(self._begin_fetch, uids, items, read, found)
        await self._in_turns(work)
        return found

    def _begin_fetch(
        self,
        client: ImapClient,
        uids: Sequence[int],
        items: Sequence[str],
        read: Callable[[int, Row], T],
        found: dict[int, T],
    ) -> Iterator[None] | None:
        """The work that is left to make sense of the answer: none of one that is small."""
        records = self._fetch_records(client, uids, items)
        work = _make_sense(client, records, uids, read, found)
        if records_bytes(records) > SMALL_BYTES:
            return work
        for _ in work:
            pass
        return None

    def _fetch_records(
        self, client: ImapClient, uids: Sequence[int], items: Sequence[str]
    ) -> list[Any]:
        try:
            return client.uid_fetch(uids, items)
        except imaplib.IMAP4.abort:
            raise
        except imaplib.IMAP4.error as error:  # NO or BAD
            words = self._line.words(error).removeprefix("FETCH failed: ")
            raise decide_fetch_error(words) from error

    async def _in_turns(self, work: Iterator[None] | None) -> None:
        """Run a long computation slice by slice, so that no mailbox keeps the others from theirs.

        Waiting for a turn is not the server's fault: nothing but the poll's deadline bounds it.
        """
        while work is not None:
            async with self._parsing:
                work = await self._line.run_in_thread(_work_on, work)

    async def compute(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a long computation in a thread, in turn with the other sessions."""
        return await trio.to_thread.run_sync(
            partial(function, *args, **kwargs), limiter=self._parsing
        )


def _after_uid(query: Query, folder: Folder) -> int | None:
    """The UID beyond which messages count; a cursor of another UIDVALIDITY says nothing."""
    after = query.after
    known = isinstance(after, ImapCursor) and after.uidvalidity == folder.uidvalidity
    return after.uid if isinstance(after, ImapCursor) and known else None


def _folder_names(client: ImapClient) -> str:
    with suppress(imaplib.IMAP4.error, ValueError):
        return ", ".join(str(entry[2]) for entry in client.list_folders()[:30])
    return "the server does not say"


def _make_sense(
    client: ImapClient,
    records: Sequence[Any],
    uids: Sequence[int],
    read: Callable[[int, Row], T],
    found: dict[int, T],
) -> Iterator[None]:
    rows: Rows = {}
    yield from client.parse_fetch(records, rows, uids)
    for uid in sorted(rows):
        found[uid] = read(uid, rows[uid])
        yield


def _work_on(work: Iterator[None]) -> Iterator[None] | None:
    """One slice of it; what is left."""
    end = time.monotonic() + SLICE_SECONDS
    return work if any(time.monotonic() > end for _ in work) else None


def _overview(ref: Ref, row: Row) -> Overview | FailedMessage:
    received_at = _received_at(row.get(b"INTERNALDATE"))
    if received_at is None:
        return FailedMessage(ref, "fetch", "the server gave no usable INTERNALDATE")
    try:
        if b"BODYSTRUCTURE" not in row:
            raise FetchRefused("the server left BODYSTRUCTURE out")
        structure = parse_bodystructure(row[b"BODYSTRUCTURE"])
        header = _literal(row, "HEADER", 0)
    except Exception as error:  # whatever a hostile structure finds: it costs this mail only
        return FailedMessage(ref, "parse", cut(str(error) or type(error).__name__))
    return Overview(ref, header, structure, received_at, number(row.get(b"RFC822.SIZE")) or 0)


def _received_at(value: object) -> datetime | None:
    if not isinstance(value, bytes):
        return None
    try:
        instant = parse_to_datetime(value, normalise=False)
        return None if instant.tzinfo is None else instant.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _literal(row: Row, section: str, offset: int) -> bytes:
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
