"""The frozen values that travel between mail servers, the intake and the tables. No I/O."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Annotated, BinaryIO, Literal

from pydantic import Field, PlainSerializer, WithJsonSchema

Tls = Literal["implicit", "starttls", "none"]
Provider = Literal["imap", "gmail", "graph"]
Issuer = Literal["google", "microsoft"]
Grant = Literal["authorization_code", "client_credentials", "service_account"]
Stage = Literal["fetch", "parse", "store"]
Instant = Annotated[
    datetime,
    PlainSerializer(datetime.isoformat, when_used="json"),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
"""A time that has its offset in JSON too."""


class Verdict(StrEnum):
    """What the triage says of one unit: `EXTRACT` goes to the pipeline, the others are skipped."""

    EXTRACT = "extract"
    INLINE_IMAGE = "inline_image"
    UNSUPPORTED = "unsupported"
    TOO_LARGE = "too_large"
    ENCRYPTED = "encrypted"
    DAMAGED = "damaged"


@dataclass(frozen=True, slots=True)
class AddressVerdict:
    """What a check says of an e-mail address or its domain.

    `reason` is a code, `detail` the same as a sentence. Of an unknown one: `retry_after_seconds`,
    where the other side said when to come back, and whether it was asked at all.
    """

    verdict: Literal["valid", "invalid", "unknown"]
    reason: str
    detail: str
    evidence: Mapping[str, object] = field(default_factory=dict)
    retry_after_seconds: float | None = None
    was_asked: bool = True


@dataclass(frozen=True, slots=True)
class ImapConnection:
    """How to reach an IMAP mailbox, without its secret (`email_mailbox_config.connection`).

    With `issuer` the login is XOAUTH2 by an access token of that issuer, else by a password.
    """

    host: str
    port: int
    tls: Tls
    username: str
    folder: str = "INBOX"
    issuer: Issuer | None = None
    grant: Grant = "authorization_code"


@dataclass(frozen=True, slots=True)
class GmailConnection:
    """A mailbox of the Gmail API; `label` is the id or the name of the label that is its folder."""

    label: str = "INBOX"
    grant: Grant = "authorization_code"
    issuer: Issuer = "google"


@dataclass(frozen=True, slots=True)
class GraphConnection:
    """A mailbox of Microsoft Graph; `folder` is a well-known name, an id or a path of names.

    `shared`: the account that signs in has access to the mailbox, but does not own it.
    """

    folder: str = "inbox"
    shared: bool = False
    grant: Grant = "authorization_code"
    issuer: Issuer = "microsoft"


Connection = ImapConnection | GmailConnection | GraphConnection


@dataclass(frozen=True, slots=True)
class Limits:
    """The byte limits of the triage."""

    max_file_bytes: int
    inline_image_bytes: int


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """What the reading of one file in a child process may take."""

    memory_bytes: int
    wall_seconds: float
    output_bytes: int


Ref = str
"""A message's name on its server: its UID, or the provider's id. Upper and lower case differ."""


@dataclass(frozen=True, slots=True)
class ImapCursor:
    """How far a folder has been read: every UID up to `uid`, under this UIDVALIDITY."""

    uidvalidity: int
    uid: int


@dataclass(frozen=True, slots=True)
class GmailCursor:
    """How far a label has been read: every change up to `history_id`.

    `walked_to` (internalDate, ms): of what was there before, the intake's walk from the newest
    message to the oldest has come that far. `behind` (internalDate in ms, id): a page of a client
    ended there, and what stands behind it counts too.
    """

    history_id: int
    walked_to: int | None = None
    behind: tuple[int, Ref] | None = None


@dataclass(frozen=True, slots=True)
class GraphCursor:
    """How far a folder has been read: every change up to a token of delta.

    `token` is the `$deltatoken` of a whole round or the `$skiptoken` of one under way (`is_skip`).
    `behind` (receivedDateTime as ISO 8601, id): as with Gmail.
    """

    token: str
    is_skip: bool = False
    behind: tuple[str, Ref] | None = None


Cursor = ImapCursor | GmailCursor | GraphCursor


@dataclass(frozen=True, slots=True)
class Part:
    """One node of a message's MIME tree (BODYSTRUCTURE, RFC 3501 section 7.4.2).

    `size_bytes` counts encoded octets with CRLF line ends. `section` is the IMAP section number
    ("1", "2.1"), empty for a multipart root. The child of a message/rfc822 part is the root of
    the message inside it. `params` are the lower-cased Content-Type parameters, decoded.
    """

    section: str
    content_type: str
    encoding: str = "7bit"
    size_bytes: int = 0
    filename: str | None = None
    disposition: str | None = None
    content_id: str | None = None
    params: Mapping[str, str] = field(default_factory=dict)
    children: tuple["Part", ...] = ()


@dataclass(frozen=True, slots=True)
class Overview:
    """What pass 1 knows of one message. `received_at` is INTERNALDATE, `header` the raw block."""

    ref: Ref
    header: bytes
    structure: Part
    received_at: datetime
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Query:
    """What a client asks of a folder: all that is given must match.

    Texts are substrings, whatever the case. `since` is compared with INTERNALDATE; `after` leaves
    out what its cursor has seen.
    """

    subject: str | None = None
    sender: str | None = None
    recipient: str | None = None
    since: datetime | None = None
    after: Cursor | None = None

    @property
    def is_earliest_first(self) -> bool:
        """With a beginning the first match is the earliest one, without it the newest."""
        return self.since is not None or self.after is not None


@dataclass(frozen=True, slots=True)
class Address:
    """A mailbox of an address field; `name` is "" where there is none."""

    name: str
    address: str


@dataclass(frozen=True, slots=True)
class Addresses:
    """The address fields of a message."""

    from_: Annotated[tuple[Address, ...], Field(serialization_alias="from")]
    to: tuple[Address, ...]
    cc: tuple[Address, ...]
    bcc: tuple[Address, ...]
    reply_to: tuple[Address, ...]


@dataclass(frozen=True, slots=True)
class Link:
    """A URL of a message, with the text that it stands behind ("" for a bare one)."""

    url: str
    text: str


@dataclass(frozen=True, slots=True)
class Enclosure:
    """A file of a message, which is named but not read; its size is estimated from the encoded."""

    part_id: str
    filename: str | None
    content_type: str
    size_bytes: int
    inline: bool


@dataclass(frozen=True, slots=True)
class Message:
    """A message as clients get it, read live. `email_id` is its `Ref`, `datetime` INTERNALDATE.

    `message` is its text, from the HTML where there is only HTML; `links` and `codes` are what
    stands in them, never followed.
    """

    email_id: str
    message_id: str | None
    datetime: Instant
    sent_at: Instant | None
    subject: str | None
    addresses: Addresses
    message: str
    html: str | None
    links: tuple[Link, ...]
    codes: tuple[str, ...]
    attachments: tuple[Enclosure, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class NewAttachment:
    """One `attachment` row to be. `content` is bytes, or an open file for a large one."""

    kind: Literal["file", "body"]
    part_id: str | None
    filename: str | None
    content_type: str
    size_bytes: int
    verdict: Verdict
    verdict_reason: str | None = None
    sha256: str | None = None
    content: bytes | BinaryIO | None = None


@dataclass(frozen=True, slots=True)
class NewRequest:
    """One `request` row to be, with its attachments. Texts hold neither NUL nor surrogates."""

    ref: Ref
    source_ref: str
    message_id: str | None
    content_fingerprint: str
    subject: str | None
    sender: str | None
    recipients: tuple[Mapping[str, str], ...]
    sent_at: datetime | None
    raw_date: str | None
    received_at: datetime
    body_text: str
    attachments: tuple[NewAttachment, ...]
    message_id_reused: bool = False


@dataclass(frozen=True, slots=True)
class FailedMessage:
    """A message that could not become a request: what the quarantine gets to know of it."""

    ref: Ref
    stage: Stage
    error: str
    raw: bytes | None = None
