"""What the requests API takes and gives, as models, like `schemas.py` for the messages.

A result can be large and hold whatever JSON can: it is never parsed here, but put as it is stored
between the pieces of an answer.
"""

from collections.abc import Collection
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, WithJsonSchema

from service.db.request_views import (
    Page,
    RequestStatus,
    StoredAttachment,
    StoredRequest,
    WholeRequest,
)
from service.web.schemas import DEFAULT_LIMIT, MAX_LIMIT, Since, parse_instant

# No id comes near it, and it fits into a bigint.
CURSOR_PATTERN = r"^[1-9][0-9]{0,17}$"

Result = Annotated[
    None,
    WithJsonSchema(
        {
            "type": ["object", "null"],
            "description": "What is in it: `text` and `pages`, or `tables` of `name` and `rows`; "
            "`warnings`; and `llm` where an LLM has answered. null where nothing was read, or not "
            "yet.",
        }
    ),
]


class RequestsQuery(BaseModel):
    """The parameters of the list: all filters that are given must match."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    mailbox: Annotated[str, Field(pattern=r"^[^\r\n\x00]+$")] | None = Field(
        None,
        alias="filter[mailbox]",
        description="The address of the mailbox, whatever the case.",
    )
    status: RequestStatus | None = Field(
        None,
        alias="filter[status]",
        description="`processing`: an attachment has not come to its end; else `failed`: one of "
        "them has; else `done`.",
    )
    since: Since | None = Field(
        None,
        description="Only what the mail server received in this second or later: ISO 8601, "
        "without an offset UTC.",
    )
    limit: int = Field(DEFAULT_LIMIT, ge=1, le=MAX_LIMIT, description="How many at most.")
    cursor: Annotated[str, Field(pattern=CURSOR_PATTERN)] | None = Field(
        None, description="`meta.cursor` of the page before, with the same filters."
    )

    @property
    def instant(self) -> datetime | None:
        """`since` as a time."""
        return None if self.since is None else parse_instant(self.since)

    def mailboxes(self, covered: Collection[str] | None) -> Collection[str] | None:
        """The addresses to look for, in lower case, of those that are covered. None: all."""
        if self.mailbox is None:
            return covered
        address = self.mailbox.lower()
        return [address] if covered is None or address in covered else []


@dataclass(frozen=True, slots=True)
class RequestsMeta:
    """How many requests they are, and the cursor for the next page: null after the last one."""

    requests_count: int
    cursor: str | None


@dataclass(frozen=True, slots=True)
class RequestCollection:
    """The requests found."""

    collection: tuple[StoredRequest, ...]


@dataclass(frozen=True, slots=True)
class RequestsAnswer:
    """A page of requests, the newest first."""

    data: RequestCollection
    meta: RequestsMeta


@dataclass(frozen=True, slots=True)
class ReadAttachment(StoredAttachment):
    """An attachment with what was read in it."""

    result: Result = None


@dataclass(frozen=True, slots=True)
class ReadRequest(WholeRequest):
    """A request with the text of its mail and the results of its attachments."""

    attachments: tuple[ReadAttachment, ...]


@dataclass(frozen=True, slots=True)
class ReadRequestCollection:
    """The one request."""

    collection: tuple[ReadRequest]


@dataclass(frozen=True, slots=True)
class RequestAnswer:
    """A request with all that was read in it."""

    data: ReadRequestCollection
    meta: RequestsMeta


@dataclass(frozen=True, slots=True)
class AttachmentsMeta:
    """How many attachments they are."""

    attachments_count: int


@dataclass(frozen=True, slots=True)
class AttachmentCollection:
    """The attachments that were asked for."""

    collection: tuple[StoredAttachment, ...]


@dataclass(frozen=True, slots=True)
class AttachmentsAnswer:
    """The attachment as it is now."""

    data: AttachmentCollection
    meta: AttachmentsMeta


_PAGE = TypeAdapter(RequestsAnswer)
_REQUEST = TypeAdapter(RequestAnswer)
_ATTACHMENT = TypeAdapter(AttachmentsAnswer)
_NO_RESULT = b'"result":null'


def page_json(page: Page) -> bytes:
    """The JSON of a page."""
    cursor = None if page.next_before_id is None else str(page.next_before_id)
    meta = RequestsMeta(len(page.requests), cursor)
    return _PAGE.dump_json(RequestsAnswer(RequestCollection(page.requests), meta))


def request_json_pieces(request: WholeRequest) -> list[bytes]:
    """The JSON of a request, cut where the `result` member of each attachment belongs.

    A string of JSON holds no bare quote, so that nothing but such a member looks like one.
    """
    document: Any = {
        "data": {"collection": [asdict(request)]},
        "meta": RequestsMeta(requests_count=1, cursor=None),
    }
    return _REQUEST.dump_json(_REQUEST.validate_python(document)).split(_NO_RESULT)


def attachment_json(attachment: StoredAttachment) -> bytes:
    """The JSON of one attachment."""
    collection = AttachmentCollection((attachment,))
    return _ATTACHMENT.dump_json(AttachmentsAnswer(collection, AttachmentsMeta(1)))
