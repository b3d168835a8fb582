"""Tables `request` and `attachment` as the API reads them: a page, one request, results and bytes.

`mailboxes` limits each of it to what came to these addresses, given in lower case; None: all, also
what came to a mailbox that was removed since. Nothing here changes a row. Each function is one look
at one moment, through a connection or the database itself.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from typing import Any, Literal, TypeVar

from service.db.pool import Connection, Database
from service.model import Instant, Verdict

RequestStatus = Literal["processing", "done", "failed"]
AttachmentStatus = Literal["pending", "processing", "done", "failed", "skipped"]
MAX_ID = 2**63 - 1  # of a bigint


@dataclass(frozen=True, slots=True)
class StoredAttachment:
    """A file of a mail (`file`), or its text where no file is to be extracted (`body`).

    `verdict` is what the triage said of it; `error` is why it failed, or its last attempt.
    """

    id: int
    kind: Literal["file", "body"]
    part_id: str | None
    filename: str | None
    content_type: str
    size_bytes: int
    sha256: str | None
    verdict: Verdict
    verdict_reason: str | None
    status: AttachmentStatus
    attempts: int
    error: str | None
    created_at: Instant
    finished_at: Instant | None


@dataclass(frozen=True, slots=True)
class StoredRequest:
    """A mail that was taken in; `mailbox` is null when it was removed since.

    `status` is `processing` until all attachments have come to their end, then `failed` when one
    of them has, else `done`. `received_at` is INTERNALDATE.
    """

    id: int
    mailbox: str | None
    message_id: str | None
    message_id_reused: bool
    subject: str | None
    sender: str | None
    recipients: tuple[Mapping[str, str], ...]
    sent_at: Instant | None
    received_at: Instant
    created_at: Instant
    status: RequestStatus
    attachments: tuple[StoredAttachment, ...]


@dataclass(frozen=True, slots=True)
class WholeRequest(StoredRequest):
    """A request with the text of its mail."""

    body_text: str


@dataclass(frozen=True, slots=True)
class Page:
    """Some requests, the newest first; the next page is before the id, None: this is the last."""

    requests: tuple[StoredRequest, ...]
    next_before_id: int | None


@dataclass(frozen=True, slots=True)
class StoredContent:
    """What can be had of an attachment; `size_bytes` is None when its bytes were not kept."""

    request_id: int
    kind: Literal["file", "body"]
    filename: str | None
    verdict: Verdict
    verdict_reason: str | None
    size_bytes: int | None


Request = TypeVar("Request", bound=StoredRequest)

_IS_OPEN = "status IN ('pending', 'processing')"
_HAS_FAILED = "status = 'failed'"
# An aggregate, so that it can be had for one request at a time only, whatever the statistics say.
_STATUS = f"""
    CROSS JOIN LATERAL (
        SELECT CASE WHEN bool_or({_IS_OPEN}) THEN 'processing'
                    WHEN bool_or({_HAS_FAILED}) THEN 'failed' ELSE 'done' END AS status
        FROM attachment WHERE request_id = r.id) s
"""
_OF_MAILBOXES = "($2::text[] IS NULL OR lower(m.address) = ANY($2))"

_ATTACHMENT_COLUMNS = [field.name for field in fields(StoredAttachment)]
_ATTACHMENT = ", ".join(f"a.{name} AS attachment_{name}" for name in _ATTACHMENT_COLUMNS)
# A row for each attachment; only the first one has what a mail may make long.
_ONCE = "CASE WHEN row_number() OVER (PARTITION BY r.id ORDER BY a.id) = 1 THEN r.{0} END AS {0}"
_LONG = ", ".join(map(_ONCE.format, ("message_id", "subject", "sender", "recipients")))
_REQUEST = f"""
    r.id, m.address AS mailbox, r.message_id_reused, r.sent_at, r.received_at, r.created_at,
    s.status, {_LONG}, {_ATTACHMENT}
"""
_TABLES = """
    request r
    LEFT JOIN email_mailbox_config m ON m.id = r.mailbox_id
    LEFT JOIN attachment a ON a.request_id = r.id
"""

# Known before the page is planned: how many requests a mailbox has decides which index is read.
_MAILBOX_IDS = "SELECT id FROM email_mailbox_config WHERE lower(address) = ANY($1::text[])"


def _page(candidates: str, request_id: str = "r.id", condition: str = "true") -> str:
    """Invariant: ids only grow, so that a page before an id never shows what an earlier page has
    shown, and leaves out nothing that was there when the first one was read.

    One statement, so that all is of one moment.
    """
    return f"""
    SELECT {_REQUEST} FROM {_TABLES} {_STATUS}
    JOIN (SELECT {request_id} AS id FROM {candidates}
          WHERE {request_id} < $1
            AND ($2::bigint[] IS NULL OR r.mailbox_id = ANY($2))
            AND ($3::timestamptz IS NULL OR r.received_at >= $3)
            AND {condition}
          ORDER BY {request_id} DESC LIMIT $4) page ON page.id = r.id
    ORDER BY r.id DESC, a.id
"""


def _having(condition: str) -> str:
    """The requests through the partial index on these attachments, and in its order.

    There are few, wherever they are, and soon others: what PostgreSQL knows of their number would
    make it read all requests. LIMIT keeps it from joining in another way.
    """
    return f"""(SELECT DISTINCT request_id FROM attachment
           WHERE {condition} ORDER BY request_id DESC) one
          CROSS JOIN LATERAL (SELECT * FROM request WHERE id = one.request_id LIMIT 1) r"""


PAGES: Mapping[RequestStatus | None, str] = {
    None: _page("request r"),
    "processing": _page(_having(_IS_OPEN), "one.request_id"),
    "failed": _page(_having(_HAS_FAILED) + _STATUS, "one.request_id", "s.status = 'failed'"),
    "done": _page("request r" + _STATUS, condition="s.status = 'done'"),
}
_FIND_REQUEST = f"""
    SELECT {_ONCE.format("body_text")}, {_REQUEST} FROM {_TABLES} {_STATUS}
    WHERE r.id = $1 AND {_OF_MAILBOXES} ORDER BY a.id
"""
_LIST_ATTACHMENTS = f"""
    SELECT {_ATTACHMENT} FROM attachment a
    WHERE $1::text IS NULL OR a.status = $1 ORDER BY a.id DESC LIMIT $2
"""
_FIND_ATTACHMENT = f"SELECT {_ATTACHMENT} FROM {_TABLES} WHERE a.id = $1 AND {_OF_MAILBOXES}"

# A file is stored as it is, so neither its length nor a piece of it needs to read all of it.
_OCTETS = "CASE a.kind WHEN 'body' THEN convert_to(r.body_text, 'UTF8') ELSE a.content END"
_FIND_CONTENT = f"""
    SELECT r.id AS request_id, a.kind, a.filename, a.verdict, a.verdict_reason,
           octet_length({_OCTETS})::bigint AS size_bytes
    FROM {_TABLES} WHERE a.id = $1 AND {_OF_MAILBOXES}
"""
_CONTENT_PIECE = f"""
    SELECT substring({_OCTETS} FROM $2::integer + 1 FOR $3::integer) AS octets
    FROM {_TABLES} WHERE a.id = $1
"""


async def list_requests(
    source: Connection | Database,
    *,
    mailboxes: Collection[str] | None = None,
    status: RequestStatus | None = None,
    since: datetime | None = None,
    before_id: int | None = None,
    limit: int,
) -> Page:
    """Up to `limit` requests, the newest first: received at `since` or later, of this status."""
    mailbox_ids = None
    if mailboxes is not None:
        mailbox_ids = [row["id"] for row in await source.fetch(_MAILBOX_IDS, list(mailboxes))]
    first_id = MAX_ID if before_id is None else before_id
    rows = await source.fetch(PAGES[status], first_id, mailbox_ids, since, limit + 1)
    found = [_request(StoredRequest, group) for group in _by_request(rows)]
    shown = tuple(found[:limit])
    return Page(shown, shown[-1].id if len(found) > limit else None)


async def find_request(
    source: Connection | Database, request_id: int, *, mailboxes: Collection[str] | None
) -> WholeRequest | None:
    """One request, None when there is none in these mailboxes."""
    rows = await source.fetch(_FIND_REQUEST, request_id, _array(mailboxes))
    return _request(WholeRequest, rows) if rows else None


async def list_attachments(
    source: Connection | Database, *, status: str | None, limit: int
) -> list[StoredAttachment]:
    """The newest attachments in this state (None: all), newest last."""
    rows = await source.fetch(_LIST_ATTACHMENTS, status, limit)
    return [_attachment(row) for row in reversed(rows)]


async def find_attachment(
    source: Connection | Database, attachment_id: int, *, mailboxes: Collection[str] | None
) -> StoredAttachment | None:
    """One attachment, None when there is none in these mailboxes."""
    rows = await source.fetch(_FIND_ATTACHMENT, attachment_id, _array(mailboxes))
    return _attachment(rows[0]) if rows else None


async def load_result(source: Connection | Database, attachment_id: int) -> bytes | None:
    """The JSON of a result as it is stored, None while there is none."""
    rows = await source.fetch(
        "SELECT result::text FROM attachment WHERE id = $1 AND result IS NOT NULL", attachment_id
    )
    return rows[0]["result"].encode() if rows else None


async def find_content(
    source: Connection | Database, attachment_id: int, *, mailboxes: Collection[str] | None
) -> StoredContent | None:
    """What `load_content_piece` can give of an attachment, None when there is none."""
    rows = await source.fetch(_FIND_CONTENT, attachment_id, _array(mailboxes))
    return StoredContent(**_with_verdict(rows[0])) if rows else None


async def load_content_piece(
    source: Connection | Database, attachment_id: int, *, offset: int, length: int
) -> bytes:
    """Octets of a file, or of a mail's text in UTF-8; empty at the end."""
    rows = await source.fetch(_CONTENT_PIECE, attachment_id, offset, length)
    return bytes(rows[0]["octets"]) if rows else b""


def _by_request(rows: Sequence[Any]) -> Iterable[list[Any]]:
    return (list(group) for _, group in groupby(rows, itemgetter("id")))


def _request(kind: type[Request], rows: Sequence[Any]) -> Request:
    values = {field.name: rows[0].get(field.name) for field in fields(kind)}
    values["recipients"] = tuple(json.loads(values["recipients"]))
    values["attachments"] = tuple(
        _attachment(row) for row in rows if row["attachment_id"] is not None
    )
    return kind(**values)


def _attachment(row: Mapping[str, Any]) -> StoredAttachment:
    values = {name: row[f"attachment_{name}"] for name in _ATTACHMENT_COLUMNS}
    return StoredAttachment(**_with_verdict(values))


def _with_verdict(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**row, "verdict": Verdict(row["verdict"])}


def _array(mailboxes: Collection[str] | None) -> list[str] | None:
    return None if mailboxes is None else list(mailboxes)
