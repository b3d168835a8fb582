"""What the HTTP API takes and gives, as models: they validate, and the OpenAPI document is made of
them."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, WithJsonSchema

from service.db.mailboxes import Access
from service.model import Message, Query
from service.web.cursors import CURSOR_PATTERN, parse_cursor

MAX_FILTER_CHARS = 998  # the longest line of a header (RFC 5322 section 2.1.1)
DEFAULT_LIMIT = 50
MAX_LIMIT = 200
DEFAULT_TIMEOUT_SECONDS = 30

# In a query string "+" means a space, and the offset of a time is easily sent so.
_LOST_PLUS = re.compile(r" (\d\d:?\d\d)\Z")


def parse_number(text: str, maximum: int) -> int | None:
    """A number from 1 to `maximum` as a path has it: ASCII digits alone, None for all else."""
    is_number = text.isascii() and text.isdecimal() and len(text) <= len(str(maximum))
    return int(text) if is_number and 0 < int(text) <= maximum else None


def _check_text(value: str) -> str:
    if not value.strip():
        raise ValueError("must not be blank: it would match everything")
    if set(value) & set("\r\n\0"):
        raise ValueError("must not hold line breaks or NUL")
    return value


def _check_instant(value: str) -> str:
    parse_instant(value)
    return value


def parse_instant(text: str) -> datetime:
    """ISO 8601, without an offset UTC, in whole seconds as INTERNALDATE is. ValueError."""
    for spelling in (text, _LOST_PLUS.sub(r"+\1", text)):
        try:
            instant = datetime.fromisoformat(spelling)
            aware = instant if instant.tzinfo is not None else instant.replace(tzinfo=UTC)
            return aware.astimezone(UTC).replace(microsecond=0)
        except (ValueError, OverflowError):
            continue
    raise ValueError("is no ISO 8601 time such as 2026-03-02T04:48:00Z")


FilterText = Annotated[
    str,
    Field(
        min_length=1,
        max_length=MAX_FILTER_CHARS,
        json_schema_extra={"pattern": r"^[^\r\n\x00]*[^\s\x00][^\r\n\x00]*$"},
    ),
    AfterValidator(_check_text),
]
Since = Annotated[
    str,
    AfterValidator(_check_instant),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
After = Annotated[str, Field(pattern=CURSOR_PATTERN)]


class MessageFilters(BaseModel):
    """The filters of index and await: all that are given must match."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    subject: FilterText | None = Field(
        None,
        alias="filter[subject]",
        description="A part of the subject, whatever the case, in any script.",
    )
    sender: FilterText | None = Field(
        None, alias="filter[from]", description="A part of the sender's name or address."
    )
    recipient: FilterText | None = Field(
        None, alias="filter[to]", description="A part of a recipient's name or address (To)."
    )
    since: Since | None = Field(
        None,
        description="Only what arrived in this second or later (INTERNALDATE): ISO 8601, without "
        "an offset UTC. With it the earliest match comes first.",
    )
    after: After | None = Field(
        None,
        description="A cursor of an earlier answer, the 408 included: only what arrived later, "
        "whatever the clocks say. With it the earliest match comes first.",
    )

    def to_query(self, access: Access) -> Query:
        """The query on this mailbox. A cursor of another one is a 422 problem."""
        return Query(
            subject=self.subject,
            sender=self.sender,
            recipient=self.recipient,
            since=None if self.since is None else parse_instant(self.since),
            after=None if self.after is None else parse_cursor(self.after, access),
        )


class IndexQuery(MessageFilters):
    """The parameters of the list."""

    limit: int = Field(DEFAULT_LIMIT, ge=1, le=MAX_LIMIT, description="How many messages at most.")


class AwaitQuery(MessageFilters):
    """The parameters of a wait."""

    timeout: float = Field(
        DEFAULT_TIMEOUT_SECONDS,
        ge=0,
        allow_inf_nan=False,
        description="How many seconds to wait; more than 120 count as 120, 0 looks once.",
    )


class NoQuery(BaseModel):
    """A resource that takes no parameters."""

    model_config = ConfigDict(extra="forbid")


@dataclass(frozen=True, slots=True)
class Collection:
    """The messages found."""

    collection: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Meta:
    """How many they are, the SEARCH that found them (of a provider's API: its own query), and the
    cursor for what comes next."""

    emails_count: int
    imap_search: str
    cursor: str


@dataclass(frozen=True, slots=True)
class MessagesAnswer:
    """The messages that were asked for."""

    data: Collection
    meta: Meta


_ANSWER = TypeAdapter(MessagesAnswer)


def messages_json(messages: tuple[Message, ...], imap_search: str, cursor: str) -> bytes:
    """The JSON of an answer."""
    meta = Meta(len(messages), imap_search, cursor)
    return _ANSWER.dump_json(MessagesAnswer(Collection(messages), meta), by_alias=True)
