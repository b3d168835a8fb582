"""What the client does, as generators without I/O: they yield a `Call` and take its `Answer`.

The clients only carry calls out, so that the blocking and the async one cannot differ. A flow
returns what was asked for, or raises ClientError, or ValueError for arguments that make no sense.
"""

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from time import monotonic
from typing import TypeAlias, TypeVar
from urllib.parse import quote

import httpx

from service.client.answers import Answer, read_messages
from service.client.errors import (
    AwaitTimeout,
    ClientError,
    Problem,
    ProblemError,
    ServiceUnreachable,
    UnexpectedAnswer,
)
from service.client.message import Message, MessageList

# The service clamps longer waits to this.
MAX_WAIT_SECONDS = 120.0
DEFAULT_RETRY_SECONDS = 1.0

_PASSING_PROBLEMS = frozenset({429, 503})
# Said by a proxy; 504 is the usual end of a wait that is longer than the proxy's own time-out.
_PASSING_ELSEWHERE = frozenset({408, 429, 502, 503, 504})

Query: TypeAlias = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Call:
    """A GET to be sent after a pause; the service may take `wait_seconds` before it answers."""

    path: str
    query: Query = field(default_factory=dict)
    wait_seconds: float = 0.0
    pause_seconds: float = 0.0


T = TypeVar("T")
Flow: TypeAlias = Generator[Call, Answer, T]


def create_query(
    *,
    subject: str | None,
    from_: str | None,
    to: str | None,
    since: datetime | str | None,
    after: str | None,
    limit: int | None = None,
) -> Query:
    """The parameters that were given, as the service names them."""
    query = {
        "filter[subject]": subject,
        "filter[from]": from_,
        "filter[to]": to,
        "since": _format_since(since) if isinstance(since, datetime) else since,
        "after": after,
        "limit": None if limit is None else str(limit),
    }
    return {name: value for name, value in query.items() if value is not None}


def list_messages(mailbox: str, query: Query) -> Flow[MessageList]:
    """One look, one answer."""
    return read_messages((yield Call(_messages_path(mailbox), query)))


def get_message(mailbox: str, email_id: str) -> Flow[Message]:
    """One message by its id."""
    return _first((yield Call(f"{_messages_path(mailbox)}/{quote(email_id, safe='')}")))


def await_message(mailbox: str, query: Query, timeout_seconds: float) -> Flow[Message]:
    """Call again and again, each time from where the last look ended, until the time is over."""
    if not timeout_seconds >= 0:  # not for NaN either
        raise ValueError(f"timeout is {timeout_seconds}: it has to be 0 or more seconds")
    deadline = monotonic() + timeout_seconds
    pause_seconds = 0.0
    problem: Problem = {}
    while True:
        left_seconds = max(0.0, deadline - monotonic() - pause_seconds)
        call = _await_call(mailbox, query, min(left_seconds, MAX_WAIT_SECONDS), pause_seconds)
        answer = yield call
        try:
            return _first(answer)
        except ClientError as error:
            retry_seconds = _decide_retry(error)
            if retry_seconds is None:
                raise
            problem = error.problem or problem
            query = _go_on_from(error.problem, query)
            # The service may end the last wait a moment early: that is no reason for one more.
            is_last = _is_timeout(error) and call.wait_seconds == left_seconds
            left_seconds = deadline - monotonic()
            if is_last or left_seconds <= 0:
                message = f"no matching message for {mailbox} within {timeout_seconds:g} s"
                raise AwaitTimeout(message, problem) from (None if error.problem else error)
            pause_seconds = min(retry_seconds, left_seconds)


def _decide_retry(error: ClientError) -> float | None:
    """Seconds until the next call; None when the same call would fail again."""
    match error:
        case ServiceUnreachable():
            return DEFAULT_RETRY_SECONDS
        case ProblemError() if _is_timeout(error):
            return 0.0
        case ProblemError(status=status) if status in _PASSING_PROBLEMS:
            told = error.retry_after_seconds
        case UnexpectedAnswer(status=status) if status in _PASSING_ELSEWHERE:
            told = error.retry_after_seconds
        case _:
            return None
    return DEFAULT_RETRY_SECONDS if told is None else told


def _is_timeout(error: ClientError) -> bool:
    return isinstance(error, ProblemError) and error.status == httpx.codes.REQUEST_TIMEOUT


def _go_on_from(problem: Problem, query: Query) -> Query:
    """A 408's cursor is null when the service never got to look: then the place stays the same."""
    cursor = problem.get("cursor")
    return {**query, "after": cursor} if isinstance(cursor, str) else query


def _await_call(mailbox: str, query: Query, wait_seconds: float, pause_seconds: float) -> Call:
    path = f"{_messages_path(mailbox)}:await"
    timeout = f"{round(wait_seconds, 3):g}"
    return Call(path, {**query, "timeout": timeout}, wait_seconds, pause_seconds)


def _first(answer: Answer) -> Message:
    found = read_messages(answer)
    if not found:
        raise UnexpectedAnswer(httpx.codes.OK, "the answer to a call for one message holds none")
    return replace(found[0], cursor=found.cursor)


def _messages_path(mailbox: str) -> str:
    return f"/api/v1/email/account/{quote(mailbox, safe='')}/messages"


def _format_since(since: datetime) -> str:
    """ISO 8601 in whole seconds, like the times of arrival.

    A mail that comes 0.2 s after 12:00:00.7 is stored as 12:00:00: the fraction would miss it.
    """
    if since.utcoffset() is None:
        raise ValueError(
            "since has no time zone, so it names no instant: take datetime.now(UTC) or add one"
        )
    return since.isoformat(timespec="seconds")
