"""The messages of a mailbox: index, show and await, read live, with one response model."""

from quart import Blueprint, Response, g
from quart_schema import document_response, validate_querystring

from service.db.mailboxes import Access
from service.db.tokens import MESSAGES_INDEX
from service.listing import Listing, Listings
from service.mail.search import first_criteria
from service.model import ImapConnection, ImapCursor, Query
from service.waiters import Found, Waiter
from service.waits import MAX_TIMEOUT_SECONDS, Waits
from service.web.auth import Gate
from service.web.cursors import format_cursor
from service.web.openapi import answers_problems
from service.web.problem_types import (
    AWAIT_OVERLOADED,
    AWAIT_TIMEOUT,
    DATABASE_UNAVAILABLE,
    FORBIDDEN,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    MAILBOX_AUTH_FAILED,
    MAILBOX_UNAVAILABLE,
    NOT_FOUND,
    RATE_LIMITED,
    SHUTTING_DOWN,
    UNAUTHORIZED,
)
from service.web.problems import Problem
from service.web.schemas import (
    AwaitQuery,
    IndexQuery,
    MessagesAnswer,
    NoQuery,
    messages_json,
    parse_number,
)

ACCOUNT_PATH = "/api/v1/email/account/<mailbox>"
AWAIT_PATH = "/messages:await"
MAX_UID = 2**32 - 1
MAX_ID_CHARS = 512

_COMMON = (
    UNAUTHORIZED,
    FORBIDDEN,
    NOT_FOUND,
    INVALID_REQUEST,
    RATE_LIMITED,
    INTERNAL_ERROR,
    MAILBOX_AUTH_FAILED,
    DATABASE_UNAVAILABLE,
)


def create_messages_blueprint(gate: Gate, listings: Listings, waits: Waits) -> Blueprint:
    """The three routes, behind the gate."""
    blueprint = Blueprint("messages", __name__, url_prefix=ACCOUNT_PATH)
    gate.guard_mailboxes(blueprint, MESSAGES_INDEX)

    @blueprint.get("/messages")
    @answers_problems(*_COMMON, MAILBOX_UNAVAILABLE)
    @document_response(MessagesAnswer)
    @validate_querystring(IndexQuery)
    async def list_messages(mailbox: str, query_args: IndexQuery) -> Response:  # noqa: ARG001
        """List messages.

        The newest first; with `since` or `after` the earliest first, so that the cursor of one
        page asks for the next. A page of very long mails may hold fewer than `limit`.
        """
        listing = await listings.index(g.access, query_args.to_query(g.access), query_args.limit)
        return _listed(listing)

    @blueprint.get("/messages/<email_id>")
    @answers_problems(*_COMMON, MAILBOX_UNAVAILABLE)
    @document_response(MessagesAnswer)
    @validate_querystring(NoQuery)
    async def show_message(mailbox: str, email_id: str, query_args: NoQuery) -> Response:  # noqa: ARG001
        """Show one message."""
        if _can_be_id(email_id, g.access):
            listing = await listings.show(g.access, email_id)
            if listing.messages:
                return _listed(listing)
        raise Problem(NOT_FOUND, f"There is no message {email_id} in {g.access.address}.")

    @blueprint.get(AWAIT_PATH)
    @answers_problems(*_COMMON, AWAIT_TIMEOUT, AWAIT_OVERLOADED, SHUTTING_DOWN)
    @document_response(MessagesAnswer)
    @validate_querystring(AwaitQuery)
    async def await_message(mailbox: str, query_args: AwaitQuery) -> Response:  # noqa: ARG001
        """Wait for a message.

        Holds the request until a matching message is there, at most `timeout` seconds. With
        `since` or `after` the earliest match is returned, with neither the newest, which may have
        been there before.
        """
        query = query_args.to_query(g.access)
        timeout_seconds = min(query_args.timeout, MAX_TIMEOUT_SECONDS)
        waiter = await waits.wait(g.access, query, timeout_seconds)
        if isinstance(waiter.outcome, Found):
            cursor = format_cursor(g.access, waiter.outcome.cursor)
            return _json(
                messages_json((waiter.outcome.message,), _searched(g.access, waiter), cursor)
            )
        raise _await_timeout(g.access, waiter, timeout_seconds)

    return blueprint


def _await_timeout(access: Access, waiter: Waiter, timeout_seconds: float) -> Problem:
    """Why there was no match, as far as it can be known."""
    names = _filter_names(waiter.query)
    members = {
        "timeout_seconds": timeout_seconds,
        "rounds": waiter.rounds,
        "messages_seen": waiter.messages_seen,
        "rejected_by": {name: waiter.rejected_by[name] for name in names},
        "last_error": waiter.last_error,
        "imap_search": _searched(access, waiter),
        "cursor": waiter.seen and format_cursor(access, waiter.seen),
    }
    detail = f"No matching messages found within {timeout_seconds:g} seconds."
    return Problem(AWAIT_TIMEOUT, " ".join([detail, *_explain(waiter)]), members)


def _explain(waiter: Waiter) -> list[str]:
    sentences = []
    if waiter.rejected_by:
        turned_away = ", ".join(f"{name} {n}" for name, n in waiter.rejected_by.items())
        sentences.append(f"{waiter.messages_seen} seen, turned away by: {turned_away}.")
    if not waiter.rounds:
        sentences.append("The mailbox could not be looked into.")
    if waiter.last_error:
        sentences.append(f"Last trouble with the mail server: {waiter.last_error}.")
    return sentences


def _filter_names(query: Query) -> list[str]:
    given = {"subject": query.subject, "from": query.sender, "to": query.recipient}
    return [name for name, value in {**given, "since": query.since}.items() if value is not None]


def _searched(access: Access, waiter: Waiter) -> str:
    """The search of the first look: with IMAP as a mailbox with one client waiting gets it."""
    query = waiter.query
    if not isinstance(access.connection, ImapConnection):
        return waiter.searched or ""
    after_uid = query.after.uid if isinstance(query.after, ImapCursor) else None
    return first_criteria(query, after_uid, with_texts=True)


def _can_be_id(email_id: str, access: Access) -> bool:
    if isinstance(access.connection, ImapConnection):
        return parse_number(email_id, MAX_UID) is not None
    return len(email_id) <= MAX_ID_CHARS and email_id.isascii() and email_id.isprintable()


def _listed(listing: Listing) -> Response:
    cursor = format_cursor(g.access, listing.cursor)
    return _json(messages_json(tuple(listing.messages), listing.searched, cursor))


def _json(content: bytes) -> Response:
    return Response(content, content_type="application/json")
