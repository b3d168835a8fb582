"""IMAP mailboxes, read only: EXAMINE and BODY.PEEK, never a flag changed (RFC 3501).

An `ImapSession` is the commands over one line (`imap_line.py`): open the folder, SEARCH, FETCH in
two passes. What a hostile answer costs is bounded, and making sense of it is shared out among the
sessions. Trouble comes out as one of the `MailError` classes.
"""

import imaplib
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

import trio

from service import metrics
from service.errors import FetchRefused, MailboxThrottled, MailboxUnreachable
from service.mail.imap_client import (
    ImapClient,
    Rows,
    cut,
    number,
    parse_to_datetime,
    records_bytes,
)
from service.mail.imap_line import ImapLine
from service.mail.replies import decide_fetch_error, decide_lost
from service.mail.search import new_mail_criteria, uid_set
from service.mail.structure import parse_bodystructure
from service.model import FailedMessage, ImapConnection, Overview

T = TypeVar("T")
Row = Mapping[bytes, Any]

HEADER_MAX_BYTES = 128 * 1024
MAX_UIDVALIDITY = 2**63 - 1  # more than RFC 3501 allows, and what some servers make of it
SLICE_SECONDS = 0.1
# An answer up to this size takes less than a slice, and another thread would take longer.
SMALL_BYTES = 64 * 1024


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


@asynccontextmanager
async def open_imap(
    connection: ImapConnection,
    password: str,
    *,
    timeout_seconds: float,
    capacity: Capacity,
) -> AsyncIterator["ImapSession"]:
    """Connect; TLS and login come with the first command."""
    async with capacity.connections:
        line = ImapLine(connection, timeout_seconds=timeout_seconds)
        try:
            with metrics.IMAP_CONNECTIONS.track_inprogress():
                await line.connect()
                line.log_in_with_first_exchange(password)
                yield ImapSession(line, capacity.parsing)
        finally:
            await line.aclose()


class ImapSession:
    """The commands over one line. The folder is opened first: `examine` or `look_up`."""

    def __init__(self, line: ImapLine, parsing: trio.CapacityLimiter) -> None:
        self._line = line
        self._parsing = parsing

    @property
    def searches_words(self) -> bool:
        """Whether SEARCH finds whole words only, as Gmail's; known after the first command."""
        return self._line.searches_words

    async def examine(self) -> Folder:
        """Open the configured folder read-only. MailboxUnreachable, naming the folders there."""
        return await self._line.exchange(self._examine)

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

    async def search_new(self, *, after_uid: int | None, since: datetime | None) -> list[int]:
        """UIDs beyond `after_uid`, or without it those that may have arrived since `since`."""
        uids = await self.search(new_mail_criteria(after_uid, since))
        return [uid for uid in uids if uid > (after_uid or 0)]

    async def search(self, criteria: str) -> list[int]:
        """Ascending UIDs of what the server finds; `UID n:*` finds the last message always."""
        return await self._line.exchange(ImapClient.uid_search, criteria)

    async def look_up(self, choose: Callable[[Folder], str]) -> Finding:
        """EXAMINE, then SEARCH by the criteria that `choose` has for the folder."""
        return await self._line.exchange(self._look_up, choose)

    def _look_up(self, client: ImapClient, choose: Callable[[Folder], str]) -> Finding:
        folder = self._examine(client)
        criteria = choose(folder)
        return Finding(folder, criteria, client.uid_search(criteria))

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
        self, uids: Sequence[int], items: Sequence[str], read: Callable[[int, Row], T]
    ) -> dict[int, T]:
        """One FETCH off the wire under its deadline; what `read` makes of each message, by UID."""
        found: dict[int, T] = {}
        work = await self._line.exchange(self._begin_fetch, uids, items, read, found)
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

    async def compute(self, function: Callable[..., T], *args: object) -> T:
        """Run a long computation in a thread, in turn with the other sessions."""
        return await trio.to_thread.run_sync(function, *args, limiter=self._parsing)


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


def _overview(uid: int, row: Row) -> Overview | FailedMessage:
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
