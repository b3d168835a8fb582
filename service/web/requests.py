"""The requests that mails became: list, show, the bytes of an attachment, and its retry."""

from collections.abc import Awaitable, Iterator

from quart import Blueprint, Response, g
from quart_schema import document_response, validate_querystring

from service.db import attachments, request_views
from service.db.pool import Database
from service.db.request_views import MAX_ID, StoredAttachment, StoredContent, WholeRequest
from service.db.tokens import REQUESTS_INDEX, REQUESTS_WRITE
from service.web.auth import Gate
from service.web.deadlines import database_deadline
from service.web.downloads import PIECE_BYTES, download, safe_filename, streamed
from service.web.openapi import answers_octets, answers_problems
from service.web.problem_types import (
    DATABASE_UNAVAILABLE,
    FORBIDDEN,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    NOT_FOUND,
    NOT_RETRYABLE,
    RATE_LIMITED,
    UNAUTHORIZED,
)
from service.web.problems import Problem
from service.web.request_schemas import (
    AttachmentsAnswer,
    RequestAnswer,
    RequestsAnswer,
    RequestsQuery,
    attachment_json,
    page_json,
    request_json_pieces,
)
from service.web.schemas import NoQuery, parse_number

_COMMON = (
    UNAUTHORIZED,
    FORBIDDEN,
    INVALID_REQUEST,
    RATE_LIMITED,
    INTERNAL_ERROR,
    DATABASE_UNAVAILABLE,
)


def create_requests_blueprint(gate: Gate, db: Database) -> Blueprint:
    """The four routes, behind the gate."""
    blueprint = Blueprint("requests", __name__, url_prefix="/api/v1")
    gate.guard(blueprint, read_scope=REQUESTS_INDEX, write_scope=REQUESTS_WRITE)

    @blueprint.get("/requests")
    @answers_problems(*_COMMON)
    @document_response(RequestsAnswer)
    @validate_querystring(RequestsQuery)
    async def list_requests(query_args: RequestsQuery) -> Response:
        """List requests.

        The newest first. What arrives while somebody turns the pages is on none of them.
        """
        with database_deadline():
            page = await request_views.list_requests(
                db,
                mailboxes=query_args.mailboxes(g.mailboxes),
                status=query_args.status,
                since=query_args.instant,
                before_id=None if query_args.cursor is None else int(query_args.cursor),
                limit=query_args.limit,
            )
        return Response(page_json(page), content_type="application/json")

    @blueprint.get("/requests/<request_id>")
    @answers_problems(*_COMMON, NOT_FOUND)
    @document_response(RequestAnswer)
    @validate_querystring(NoQuery)
    async def show_request(request_id: str, query_args: NoQuery) -> Response:  # noqa: ARG001
        """Show one request, with the results of its attachments."""
        number = _number("request", request_id)
        with database_deadline():
            found = await request_views.find_request(db, number, mailboxes=g.mailboxes)
        if found is None:
            raise _missing("request", request_id)
        return streamed(_with_results(db, found), "application/json", {})

    @blueprint.get("/attachments/<attachment_id>/content")
    @answers_problems(*_COMMON, NOT_FOUND)
    @answers_octets("The bytes of the file, or the text of the mail in UTF-8.")
    @validate_querystring(NoQuery)
    async def download_attachment(attachment_id: str, query_args: NoQuery) -> Response:  # noqa: ARG001
        """Download the bytes of an attachment."""
        number = _number("attachment", attachment_id)
        with database_deadline():
            found = await request_views.find_content(db, number, mailboxes=g.mailboxes)
        if found is None:
            raise _missing("attachment", attachment_id)
        if found.size_bytes is None:
            reason = f"{found.verdict}: {found.verdict_reason}"
            raise Problem(NOT_FOUND, f"The bytes of attachment {number} were not kept ({reason}).")
        pieces = _content(db, number, found.size_bytes)
        return download(pieces, _filename(number, found), found.size_bytes)

    @blueprint.post("/attachments/<attachment_id>/retry")
    @answers_problems(*_COMMON, NOT_FOUND, NOT_RETRYABLE)
    @document_response(AttachmentsAnswer, 202)
    @validate_querystring(NoQuery)
    async def retry_attachment(attachment_id: str, query_args: NoQuery) -> Response:  # noqa: ARG001
        """Read an attachment again.

        One that is `done` or `failed` becomes `pending`, its attempts counted anew.
        """
        number = _number("attachment", attachment_id)
        with database_deadline():
            async with db.transaction() as conn:
                status = await attachments.retry_attachment(conn, number, mailboxes=g.mailboxes)
                found = await request_views.find_attachment(conn, number, mailboxes=g.mailboxes)
        if status is None or found is None:
            raise _missing("attachment", attachment_id)
        if reason := attachments.NOT_RETRYABLE.get(status):
            raise Problem(NOT_RETRYABLE, f"Attachment {number} {reason}.")
        return Response(attachment_json(found), 202, content_type="application/json")

    return blueprint


def _with_results(db: Database, request: WholeRequest) -> Iterator[Awaitable[bytes]]:
    """The answer with one result at a time in memory, and no connection held while it is sent."""
    first, *others = request_json_pieces(request)
    yield _as_it_is(first)
    for attachment, rest in zip(request.attachments, others, strict=True):
        yield _with_result(db, attachment, rest)


async def _as_it_is(piece: bytes) -> bytes:
    return piece


async def _with_result(db: Database, attachment: StoredAttachment, rest: bytes) -> bytes:
    result = None
    if attachment.status != "skipped":
        with database_deadline():
            result = await request_views.load_result(db, attachment.id)
    return b'"result":' + (result or b"null") + rest


def _content(db: Database, attachment_id: int, size_bytes: int) -> Iterator[Awaitable[bytes]]:
    for offset in range(0, size_bytes, PIECE_BYTES):
        yield _content_piece(db, attachment_id, offset)


async def _content_piece(db: Database, attachment_id: int, offset: int) -> bytes:
    with database_deadline():
        return await request_views.load_content_piece(
            db, attachment_id, offset=offset, length=PIECE_BYTES
        )


def _filename(attachment_id: int, content: StoredContent) -> str:
    if content.kind == "body":
        return f"request-{content.request_id}.txt"
    return safe_filename(content.filename, f"attachment-{attachment_id}")


def _number(what: str, text: str) -> int:
    number = parse_number(text, MAX_ID)
    if number is None:
        raise _missing(what, text)
    return number


def _missing(what: str, text: str) -> Problem:
    return Problem(NOT_FOUND, f"There is no {what} {text}.")
