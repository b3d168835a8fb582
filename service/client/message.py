"""A message as the client hands it on, and how it is read from the service's JSON.

Pure. What a newer service adds is passed over, what an answer leaves out is empty; only without
its id or its time of arrival a message is none (KeyError, TypeError, ValueError, AttributeError).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Address:
    """One address; `name` is "" when there is none."""

    name: str
    address: str


@dataclass(frozen=True, slots=True)
class Addresses:
    """The address headers of a message."""

    from_: tuple[Address, ...]
    to: tuple[Address, ...]
    cc: tuple[Address, ...]
    bcc: tuple[Address, ...]
    reply_to: tuple[Address, ...]


@dataclass(frozen=True, slots=True)
class Link:
    """A URL of the text or the HTML, with the text that it stands behind ("" for a bare one)."""

    url: str
    text: str


@dataclass(frozen=True, slots=True)
class Attachment:
    """What is known of a file without downloading it."""

    part_id: str
    filename: str | None
    content_type: str
    size_bytes: int
    inline: bool


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a mailbox, as it was when the service read it."""

    email_id: str
    """What `get_message` takes."""
    message_id: str | None
    """The Message-ID as sent."""
    received_at: datetime
    """When it arrived in the mailbox (`datetime` in the JSON); always with an offset."""
    sent_at: datetime | None
    """The Date header with an offset; None when it is missing or unusable."""
    subject: str
    addresses: Addresses
    text: str
    """The text (`message` in the JSON), made from the HTML when there is only HTML."""
    html: str | None
    links: tuple[Link, ...]
    codes: tuple[str, ...]
    """One-time codes found in subject and text."""
    attachments: tuple[Attachment, ...]
    size_bytes: int
    cursor: str | None = None
    """As `after` it asks for what arrived later; None in a `MessageList`, which has its own."""


class MessageList(list[Message]):
    """The messages of one answer. `cursor` as `after` asks for what arrived later than them."""

    def __init__(self, messages: Iterable[Message], cursor: str | None) -> None:
        super().__init__(messages)
        self.cursor = cursor


def parse_messages(document: Json) -> MessageList:
    """The `data.collection` and `meta.cursor` of an answer."""
    cursor = (document.get("meta") or {}).get("cursor")
    return MessageList(map(_parse_message, document["data"]["collection"]), cursor)


def _parse_message(data: Json) -> Message:
    return Message(
        email_id=str(data["email_id"]),
        message_id=data.get("message_id"),
        received_at=_parse_time(data["datetime"]),
        sent_at=_parse_time(data["sent_at"]) if data.get("sent_at") else None,
        subject=data.get("subject") or "",
        addresses=_parse_addresses(data.get("addresses") or {}),
        text=data.get("message") or "",
        html=data.get("html"),
        links=tuple(Link(one["url"], one.get("text") or "") for one in data.get("links") or ()),
        codes=tuple(data.get("codes") or ()),
        attachments=tuple(map(_parse_attachment, data.get("attachments") or ())),
        size_bytes=data.get("size_bytes") or 0,
    )


def _parse_time(text: str) -> datetime:
    time = datetime.fromisoformat(text)
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def _parse_addresses(data: Json) -> Addresses:
    def field(name: str) -> tuple[Address, ...]:
        found = data.get(name) or ()
        return tuple(Address(one.get("name") or "", one["address"]) for one in found)

    return Addresses(field("from"), field("to"), field("cc"), field("bcc"), field("reply_to"))


def _parse_attachment(data: Json) -> Attachment:
    return Attachment(
        part_id=str(data["part_id"]),
        filename=data.get("filename"),
        content_type=data.get("content_type") or "application/octet-stream",
        size_bytes=data.get("size_bytes") or 0,
        inline=bool(data.get("inline")),
    )
