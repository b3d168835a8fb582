"""What problem documents look like: their schemas, and an example of each type.

`problems.py` makes the documents; this is what the OpenAPI document and the pages say of them.
"""

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, Field

from service.web.problem_types import (
    AWAIT_TIMEOUT,
    INVALID_REQUEST,
    NOT_RETRYABLE,
    PAGES_PATH,
    ProblemType,
)

EXAMPLE_BASE_URL = "https://mailroom.example.com"
_EXAMPLE_PATH = "/api/v1/email/account/mybox@example.com/messages:await"
_EXAMPLE_PATHS = {NOT_RETRYABLE: "/api/v1/attachments/4711/retry"}


class ProblemDocument(BaseModel):
    """An error, as RFC 9457 has it."""

    model_config = ConfigDict(title="Problem")

    type: str = Field(
        description="What kind of problem: the address of a page that explains it.",
        json_schema_extra={"format": "uri"},
    )
    title: str = Field(description="The status in words.")
    status: int = Field(description="The status of the answer.")
    detail: str = Field(description="What happened this time.")
    instance: str = Field(
        description="The resource that was asked for.", json_schema_extra={"format": "uri"}
    )


class AwaitTimeoutDocument(ProblemDocument):
    """The end of a wait for nothing, with what it saw meanwhile."""

    model_config = ConfigDict(title="AwaitTimeout")

    timeout_seconds: float = Field(description="How long was waited, after the clamp.")
    rounds: int = Field(description="How often the mailbox was looked at.")
    messages_seen: int = Field(description="How many messages were compared with the filters.")
    rejected_by: dict[str, int] = Field(description="How many of them each filter turned away.")
    last_error: str | None = Field(description="The last trouble with the mail server.")
    imap_search: str = Field(description="The IMAP SEARCH of the first look.")
    cursor: str | None = Field(description="Give it as `after` to go on without a gap.")


class InvalidParameter(BaseModel):
    """A parameter that was refused."""

    parameter: str = Field(description="Its name.")
    reason: str = Field(description="What is wrong with it.")


class InvalidRequestDocument(ProblemDocument):
    """A request with parameters that make no sense, and which ones."""

    model_config = ConfigDict(title="InvalidRequest")

    errors: list[InvalidParameter]


_DOCUMENTS: Mapping[ProblemType, type[ProblemDocument]] = {
    AWAIT_TIMEOUT: AwaitTimeoutDocument,
    INVALID_REQUEST: InvalidRequestDocument,
}
_EXAMPLE_MEMBERS: Mapping[ProblemType, Mapping[str, object]] = {
    AWAIT_TIMEOUT: {
        "detail": "No matching messages found within 30 seconds. 2 seen, turned away by: from 2.",
        "timeout_seconds": 30.0,
        "rounds": 15,
        "messages_seen": 2,
        "rejected_by": {"from": 2},
        "last_error": None,
        "imap_search": 'FROM "noreply@example.com"',
        "cursor": "1.1767225600.4711",
    },
    NOT_RETRYABLE: {"detail": "Attachment 4711 is being read at the moment."},
    INVALID_REQUEST: {
        "detail": "timeout: must be a number.",
        "errors": [{"parameter": "timeout", "reason": "must be a number"}],
    },
}


def document_model(kind: ProblemType) -> type[ProblemDocument]:
    """The schema of the documents of this type."""
    return _DOCUMENTS.get(kind, ProblemDocument)


def example_document(kind: ProblemType, base_url: str) -> dict[str, object]:
    """A document of this type as a client may get it."""
    document = {
        "type": f"{base_url}{PAGES_PATH}/{kind.slug}",
        "title": kind.title,
        "status": kind.status,
        "detail": kind.meaning.replace("`", ""),
        "instance": base_url + _EXAMPLE_PATHS.get(kind, _EXAMPLE_PATH),
    }
    return document | dict(_EXAMPLE_MEMBERS.get(kind, {}))
