"""Who may ask: the bearer token, its allowance, its scope and its mailboxes, in this order.

Everything is read from the database for each request, in one statement and before any other work:
a token that is revoked or used up counts at once on every replica.
"""

from collections.abc import Awaitable, Callable

from quart import Blueprint, Response, g, request

from service.db.admission import Admission, Allowance, admit
from service.db.pool import Database
from service.web.deadlines import database_deadline
from service.web.problem_types import FORBIDDEN, NOT_FOUND, RATE_LIMITED, UNAUTHORIZED
from service.web.problems import Problem, invalid_request

READING_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


class Gate:
    """Lets requests with a valid token through."""

    def __init__(self, db: Database, requests_per_minute: int) -> None:
        self._db = db
        self._requests_per_minute = requests_per_minute

    def guard_mailboxes(self, blueprint: Blueprint, scope: str) -> None:
        """All routes of the blueprint need the scope, and get the mailbox of their path in `g`."""

        async def check() -> None:
            address = (request.view_args or {})["mailbox"]
            admission = await self._admit(scope, address)
            _check_mailbox(admission, address)
            if admission.access is None:
                raise Problem(NOT_FOUND, f"There is no mailbox {address}.")
            g.access = admission.access

        _check_before(blueprint, check)

    def guard(self, blueprint: Blueprint, *, read_scope: str, write_scope: str) -> None:
        """All routes of the blueprint need one of the scopes, as their method reads or writes.

        `g.mailboxes` is what the token is limited to, in lower case; None: nothing.
        """

        async def check() -> None:
            scope = read_scope if request.method in READING_METHODS else write_scope
            admission = await self._admit(scope, "")
            g.mailboxes = admission.mailboxes

        _check_before(blueprint, check)

    async def _admit(self, scope: str, address: str) -> Admission:
        admission = await self._find(_bearer_token(), address)
        g.allowance = admission.allowance
        _check_allowance(admission.allowance)
        if scope not in admission.scopes:
            name = admission.token_name
            raise Problem(FORBIDDEN, f"The token {name} lacks the scope {scope}.")
        return admission

    async def _find(self, token: str, address: str) -> Admission:
        limit = self._requests_per_minute
        with database_deadline():
            admission = await admit(self._db, token, requests_per_minute=limit, address=address)
        if admission is None:
            detail = "The token is unknown, has expired or was revoked."
            raise _unauthorized(detail, 'Bearer error="invalid_token"')
        return admission


def _check_before(blueprint: Blueprint, check: Callable[[], Awaitable[None]]) -> None:
    blueprint.before_request(check)
    blueprint.after_request(add_rate_limit_headers)


async def add_rate_limit_headers(response: Response) -> Response:
    """What is left of the allowance, on every answer to a valid token."""
    allowance: Allowance | None = g.get("allowance")
    if allowance is not None:
        response.headers["RateLimit-Limit"] = str(allowance.limit)
        response.headers["RateLimit-Remaining"] = str(allowance.remaining)
        response.headers["RateLimit-Reset"] = str(allowance.reset_seconds)
    return response


def _bearer_token() -> str:
    scheme, _, credentials = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not credentials.strip():
        raise _unauthorized("The request has no bearer token.", "Bearer")
    return credentials.strip()


def _unauthorized(detail: str, challenge: str) -> Problem:
    return Problem(UNAUTHORIZED, detail, headers={"WWW-Authenticate": challenge})


def _check_allowance(allowance: Allowance) -> None:
    if not allowance.is_granted:
        raise Problem(
            RATE_LIMITED,
            f"The token's {allowance.limit} requests a minute are used up; "
            f"the next one is possible in {allowance.retry_after_seconds} s.",
            headers={"Retry-After": str(allowance.retry_after_seconds)},
        )


def _check_mailbox(admission: Admission, address: str) -> None:
    """A token that does not cover an address does not learn whether it exists either."""
    if set(address) & set("\r\n\0"):
        raise invalid_request("mailbox", "must not hold line breaks or NUL")
    if not admission.covers(address):
        name = admission.token_name
        raise Problem(FORBIDDEN, f"The token {name} does not cover the mailbox {address}.")
