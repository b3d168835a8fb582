"""What came back from one call: messages, or the error that says what came instead.

Pure. Nothing but a `ClientError` leaves here, whatever stands between client and service.
"""

import json
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from service.client.errors import (
    MailboxAuthFailed,
    ProblemError,
    ServiceUnreachable,
    UnexpectedAnswer,
    problem_slug,
)
from service.client.message import MessageList, parse_messages

Answer = httpx.Response | httpx.RequestError
"""What a call came to: an answer, or the trouble that kept it from coming."""


def read_messages(answer: Answer) -> MessageList:
    """The messages of a 200; everything else is raised."""
    if isinstance(answer, httpx.RequestError):
        raise _unreachable(answer) from answer
    document = _json_object(answer)
    if answer.status_code != httpx.codes.OK or document is None:
        raise _refusal(answer, document)
    try:
        return parse_messages(document)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        message = f"{_asked(answer)} was answered with JSON of an unknown shape: {error!r}"
        raise UnexpectedAnswer(answer.status_code, message) from error


def parse_retry_after(value: str | None) -> float | None:
    """Seconds from now (RFC 9110, 10.2.3: seconds or a date); None when it says nothing usable."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        seconds = _seconds_until(value)
    return seconds if seconds >= 0 else None  # not for NaN either


def _seconds_until(http_date: str) -> float:
    try:
        when = parsedate_to_datetime(http_date)
        return max(0.0, when.timestamp() - datetime.now(UTC).timestamp())
    except (ValueError, OverflowError):
        return float("nan")


def _json_object(answer: httpx.Response) -> dict[str, Any] | None:
    try:
        document = json.loads(answer.content)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _unreachable(error: httpx.RequestError) -> ServiceUnreachable:
    url = error.request.url
    return ServiceUnreachable(
        f"no answer from {url.scheme}://{url.netloc.decode()}: {type(error).__name__}: {error}"
    )


def _refusal(
    answer: httpx.Response, document: dict[str, Any] | None
) -> ProblemError | UnexpectedAnswer:
    retry_after_seconds = parse_retry_after(answer.headers.get("Retry-After"))
    if document is None or _media_type(answer) != "application/problem+json":
        return UnexpectedAnswer(answer.status_code, _describe(answer), retry_after_seconds)
    is_about_mailbox = problem_slug(document) == "mailbox-auth-failed"
    kind = MailboxAuthFailed if is_about_mailbox else ProblemError
    return kind(answer.status_code, document, retry_after_seconds)


def _describe(answer: httpx.Response) -> str:
    what = _media_type(answer) or "no content type"
    if answer.has_redirect_location:
        what = f"a redirect to {answer.headers['Location']}"
    return (
        f"{_asked(answer)} was answered {answer.status_code} {answer.reason_phrase} with {what}: "
        "this is not the service's; look at the base URL and at what stands in between"
    )


def _asked(answer: httpx.Response) -> str:
    return f"GET {answer.url.copy_with(query=None)}"


def _media_type(answer: httpx.Response) -> str:
    content_type: str = answer.headers.get("Content-Type", "")
    return content_type.partition(";")[0].strip().lower()
