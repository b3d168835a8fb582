"""Every error as RFC 9457 `application/problem+json`, each type with a page that explains it.

A handler raises `Problem`; whatever else goes wrong leaves the app as one of these as well.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from pydantic import ValidationError
from quart import Response, current_app, request
from quart_schema import RequestSchemaValidationError
from quart_trio import QuartTrio
from werkzeug.exceptions import HTTPException

from service.errors import (
    CredentialsRefused,
    DatabaseUnreachable,
    MailError,
    MailroomError,
    ServiceStopping,
    TooManyWaits,
)
from service.web.problem_types import (
    AWAIT_OVERLOADED,
    DATABASE_UNAVAILABLE,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    MAILBOX_AUTH_FAILED,
    MAILBOX_UNAVAILABLE,
    METHOD_NOT_ALLOWED,
    NOT_FOUND,
    PAGES_PATH,
    SHUTTING_DOWN,
    ProblemType,
)

log = logging.getLogger(__name__)

CONTENT_TYPE = "application/problem+json"
RETRY_AFTER_SECONDS = 1


_BY_STATUS = {404: NOT_FOUND, 405: METHOD_NOT_ALLOWED}
KNOWN_ERRORS: dict[type[MailroomError], ProblemType] = {
    CredentialsRefused: MAILBOX_AUTH_FAILED,
    MailError: MAILBOX_UNAVAILABLE,
    TooManyWaits: AWAIT_OVERLOADED,
    ServiceStopping: SHUTTING_DOWN,
}


@dataclass
class Problem(Exception):
    """An answer that is an error. `members` are the document's members beyond those of RFC 9457."""

    type: ProblemType
    detail: str
    members: Mapping[str, object] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)


def public_url(path: str) -> str:
    """A URL of this service as its clients see it: PUBLIC_BASE_URL, else the request's origin.

    A request without a usable Host gets a relative one.
    """
    base = current_app.config["PUBLIC_BASE_URL"] or (request.host_url if request.host else "")
    return join_url(base, path)


def join_url(base_url: str, path: str) -> str:
    """The URL of a path of this service."""
    return base_url.rstrip("/") + quote(path, safe="/:@")


def problem_document(problem: Problem, base_url: str, path: str) -> bytes:
    """The JSON of the answer to a request for `path`."""
    document = {
        "type": join_url(base_url, f"{PAGES_PATH}/{problem.type.slug}"),
        "title": problem.type.title,
        "status": problem.type.status,
        "detail": problem.detail,
        "instance": join_url(base_url, path),
        **problem.members,
    }
    return json.dumps(document, ensure_ascii=False).encode()


def problem_response(problem: Problem) -> Response:
    """The answer to the current request."""
    content = problem_document(problem, public_url(""), request.path)
    return _response(content, problem.type.status, problem.headers)


def problem_of(error: MailroomError) -> Problem:
    """The problem that one of the errors in `KNOWN_ERRORS` is."""
    kind = next(kind for known, kind in KNOWN_ERRORS.items() if isinstance(error, known))
    sentence = f"{error}."
    headers = {"Retry-After": str(RETRY_AFTER_SECONDS)} if kind.status == 503 else {}
    return Problem(kind, sentence[:1].upper() + sentence[1:], headers=headers)


def invalid_request(parameter: str, reason: str) -> Problem:
    """A parameter with a value that makes no sense."""
    return _invalid([{"parameter": parameter, "reason": reason}])


def _invalid(errors: Sequence[Mapping[str, str]]) -> Problem:
    detail = "; ".join(f"{error['parameter']}: {error['reason']}" for error in errors)
    return Problem(INVALID_REQUEST, f"{detail}.", {"errors": errors})


def register_problems(app: QuartTrio) -> None:
    """Let no error leave the app as HTML."""

    async def known(problem: Problem) -> Response:
        return problem_response(problem)

    async def trouble(error: MailroomError) -> Response:
        return problem_response(problem_of(error))

    async def database_away(error: DatabaseUnreachable) -> Response:
        """PostgreSQL's own words name hosts and roles: they are for the log."""
        log.warning("%s %s: %s", request.method, request.path, error)
        headers = {"Retry-After": str(RETRY_AFTER_SECONDS)}
        problem = Problem(DATABASE_UNAVAILABLE, DATABASE_UNAVAILABLE.meaning, headers=headers)
        return problem_response(problem)

    async def wrong_parameters(error: RequestSchemaValidationError) -> Response:
        return problem_response(_invalid(_parameter_errors(error.validation_error)))

    async def http_error(error: HTTPException) -> Response:
        status = error.code or 500
        headers = dict(error.get_headers())
        kept = {name: value for name, value in headers.items() if name in ("Allow", "Location")}
        if kind := _BY_STATUS.get(status):
            return problem_response(Problem(kind, error.description or "", headers=kept))
        return _untyped(status, error.description or "", kept)

    async def crash(_error: Exception) -> Response:
        log.exception("a request failed")
        return problem_response(Problem(INTERNAL_ERROR, INTERNAL_ERROR.meaning))

    app.register_error_handler(Problem, known)
    for known_error in KNOWN_ERRORS:
        app.register_error_handler(known_error, trouble)
    app.register_error_handler(DatabaseUnreachable, database_away)
    app.register_error_handler(RequestSchemaValidationError, wrong_parameters)
    app.register_error_handler(HTTPException, http_error)
    app.register_error_handler(Exception, crash)


def _parameter_errors(error: Exception) -> list[dict[str, str]]:
    """pydantic's findings in words for people."""
    if not isinstance(error, ValidationError):
        return [{"parameter": "query", "reason": str(error)}]
    return [
        {"parameter": str(one["loc"][0]), "reason": _reason(one)}
        for one in error.errors(include_url=False)
    ]


def _reason(error: Any) -> str:
    if error["type"] == "extra_forbidden":
        return "is unknown here"
    if isinstance(error["input"], list):
        return "is given more than once"
    return str(error["msg"]).removeprefix("Value error, ")


def _untyped(status: int, detail: str, headers: Mapping[str, str]) -> Response:
    """What only HTTP itself has a name for (RFC 9457 section 4.2.1)."""
    title = HTTPStatus(status).phrase
    document = {"type": "about:blank", "title": title, "status": status, "detail": detail}
    return _response(json.dumps(document).encode(), status, headers)


def _response(content: bytes, status: int, headers: Mapping[str, str]) -> Response:
    return Response(content, status, dict(headers), content_type=CONTENT_TYPE)
