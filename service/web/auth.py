"""Who may ask: the bearer token, its allowance, its scope and its mailboxes, in this order.

Everything is read from the database for each request, over one connection that is given back
before any other work: a token that is revoked or used up counts at once on every replica.
"""

from collections.abc import Awaitable, Callable

import trio
from quart import Blueprint, Response, g, request

from service.db.mailboxes import Access, find_access
from service.db.pool import Connection, Database
from service.db.rate_limits import Allowance, take_request
from service.db.tokens import Token, find_token
from service.errors import DatabaseUnreachable
from service.web.problems import (
    FORBIDDEN,
    NOT_FOUND,
    RATE_LIMITED,
    UNAUTHORIZED,
    Problem,
    invalid_request,
)

DATABASE_TIMEOUT_SECONDS = 5


class Gate:
    """Lets requests with a valid token through."""

    def __init__(self, db: Database, requests_per_minute: int) -> None:
        self._db = db
        self._requests_per_minute = requests_per_minute

    def guard_mailboxes(self, blueprint: Blueprint, scope: str) -> None:
        """All routes of the blueprint need the scope, and get the mailbox of their path in `g`."""

        async def admit() -> None:
            address = (request.view_args or {})["mailbox"]
            g.access = await self._in_time(lambda conn: self._admit(conn, scope, address))

        blueprint.before_request(admit)
        blueprint.after_request(add_rate_limit_headers)

    async def _in_time(self, work: Callable[[Connection], Awaitable[Access]]) -> Access:
        with trio.move_on_after(DATABASE_TIMEOUT_SECONDS):
            async with self._db.connection() as conn:
                return await work(conn)
        raise DatabaseUnreachable(f"PostgreSQL did not answer within {DATABASE_TIMEOUT_SECONDS} s")

    async def _admit(self, conn: Connection, scope: str, address: str) -> Access:
        token = await _authenticate(conn)
        g.allowance = await take_request(conn, f"token {token.id}", self._requests_per_minute)
        _check_allowance(g.allowance)
        _check_rights(token, scope, address)
        access = await find_access(conn, address)
        if access is None:
            raise Problem(NOT_FOUND, f"There is no mailbox {address}.")
        return access


async def add_rate_limit_headers(response: Response) -> Response:
    """What is left of the allowance, on every answer to a valid token."""
    allowance: Allowance | None = g.get("allowance")
    if allowance is not None:
        response.headers["RateLimit-Limit"] = str(allowance.limit)
        response.headers["RateLimit-Remaining"] = str(allowance.remaining)
        response.headers["RateLimit-Reset"] = str(allowance.reset_seconds)
    return response


async def _authenticate(conn: Connection) -> Token:
    scheme, _, credentials = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not credentials.strip():
        raise _unauthorized("The request has no bearer token.", "Bearer")
    token = await find_token(conn, credentials.strip())
    if token is None:
        detail = "The token is unknown, has expired or was revoked."
        raise _unauthorized(detail, 'Bearer error="invalid_token"')
    return token


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


def _check_rights(token: Token, scope: str, address: str) -> None:
    """A token that does not cover an address does not learn whether it exists either."""
    if scope not in token.scopes:
        raise Problem(FORBIDDEN, f"The token {token.name} lacks the scope {scope}.")
    if set(address) & set("\r\n\0"):
        raise invalid_request("mailbox", "must not hold line breaks or NUL")
    if not token.covers(address):
        raise Problem(FORBIDDEN, f"The token {token.name} does not cover the mailbox {address}.")
