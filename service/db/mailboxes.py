"""Table `email_mailbox_config`: the configured mailboxes and the claim on them.

A claim stamps `last_polled_at`; every later write of that poll matches the stamp and raises
`ClaimLost` when another claim has come in between.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from service.db.driver_errors import UniqueViolationError
from service.db.mailbox_json import (
    dump_connection,
    dump_cursor,
    parse_connection,
    parse_cursor,
    provider_of,
)
from service.db.pool import Connection, storable_text
from service.errors import ClaimLost, MailroomError
from service.model import Connection as MailboxConnection
from service.model import Cursor

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Mailbox:
    """A row as it is shown; `cursor` and `connection` as stored, without the secret."""

    id: int
    address: str
    provider: str
    connection: dict[str, Any]
    poll_interval_seconds: float
    enabled: bool
    state: str
    consecutive_failures: int
    last_error: str | None
    last_polled_at: datetime | None
    last_success_at: datetime | None
    not_before: datetime | None
    ingest_since: datetime | None
    cursor: dict[str, Any] | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Claim:
    """A mailbox that this replica may poll until it is due again; `stamp` is the fencing token."""

    mailbox_id: int
    address: str
    connection: MailboxConnection
    secret: bytes
    poll_interval_seconds: float
    stamp: datetime
    ingest_since: datetime | None
    cursor: Cursor | None
    state: str
    consecutive_failures: int
    has_quarantine: bool


@dataclass(frozen=True, slots=True)
class Access:
    """What it takes to read a mailbox, polled or not; the secret is encrypted."""

    mailbox_id: int
    address: str
    connection: MailboxConnection
    secret: bytes


_SHOWN = """
    id, address, provider, connection, extract(epoch FROM poll_interval)::float8
    AS poll_interval_seconds, enabled, state, consecutive_failures, last_error, last_polled_at,
    last_success_at, not_before, ingest_since, cursor, created_at
"""
_CLAIMED = """
    id, address, provider, connection, secret, extract(epoch FROM poll_interval)::float8
    AS poll_interval_seconds, last_polled_at, ingest_since, cursor, state, consecutive_failures,
    EXISTS (SELECT FROM quarantine WHERE mailbox_id = email_mailbox_config.id
            AND resolved_at IS NULL) AS has_quarantine
"""

# Invariant: a due row goes to exactly one replica; the others skip it while it is locked and find
# it stamped afterwards. Materialized: in a join the planner may run the SELECT once per row of
# the table, and then LIMIT bounds nothing.
_CLAIM_DUE = f"""
    WITH due AS MATERIALIZED (
        SELECT id AS due_id FROM email_mailbox_config
        WHERE enabled
          AND (last_polled_at IS NULL OR last_polled_at <= now() - poll_interval)
          AND (not_before IS NULL OR not_before <= now())
        ORDER BY last_polled_at NULLS FIRST
        LIMIT $1
        FOR UPDATE SKIP LOCKED)
    UPDATE email_mailbox_config SET last_polled_at = now() FROM due WHERE id = due_id
    RETURNING {_CLAIMED}
"""

_CLAIM_ONE = f"""
    UPDATE email_mailbox_config SET last_polled_at = now() WHERE lower(address) = lower($1)
    RETURNING {_CLAIMED}
"""

# Seconds until the earliest mailbox is due; null when none is enabled.
_SECONDS_UNTIL_DUE = """
    SELECT extract(epoch FROM min(greatest(coalesce(last_polled_at + poll_interval, now()),
                                           coalesce(not_before, now()))) - now())::float8
    FROM email_mailbox_config WHERE enabled
"""

# Invariant: a poll that lost its claim changes nothing (the stamp no longer matches).
_MOVE_CURSOR = """
    UPDATE email_mailbox_config SET cursor = $3::jsonb WHERE id = $1 AND last_polled_at = $2
"""
_COMPLETE = """
    UPDATE email_mailbox_config
    SET consecutive_failures = 0, last_error = NULL, not_before = NULL, state = 'active',
        last_success_at = now()
    WHERE id = $1 AND last_polled_at = $2
"""
_FAIL = """
    UPDATE email_mailbox_config
    SET consecutive_failures = $3, last_error = $4, state = $5,
        not_before = now() + make_interval(secs => $6)
    WHERE id = $1 AND last_polled_at = $2
"""

_INSERT = """
    INSERT INTO email_mailbox_config
        (address, provider, connection, secret, poll_interval, ingest_since)
    VALUES ($1, $2, $3::jsonb, $4, make_interval(secs => $5),
            CASE WHEN $6 THEN NULL ELSE coalesce($7, now()) END)
    RETURNING id
"""

# Invariant: no cursor outlives the folder that it counts in, and none of the old folder comes
# later: without the stamp, a poll under way has lost its claim.
_UPDATE = """
    UPDATE email_mailbox_config
    SET cursor = CASE WHEN connection - '{tls,port}'::text[] = $2::jsonb - '{tls,port}'::text[]
                      THEN cursor END,
        connection = $2::jsonb, secret = $3, poll_interval = make_interval(secs => $4),
        state = 'active', not_before = NULL, last_polled_at = NULL
    WHERE lower(address) = lower($1)
"""


async def insert_mailbox(
    conn: Connection,
    *,
    address: str,
    connection: MailboxConnection,
    secret: bytes,
    poll_interval_seconds: float,
    ingest_all: bool,
    ingest_since: datetime | None,
) -> int:
    """Add a mailbox; `ingest_since` None means from now on. MailroomError if it exists."""
    try:
        mailbox_id: int = await conn.fetchval(
            _INSERT,
            address,
            provider_of(connection),
            dump_connection(connection),
            secret,
            poll_interval_seconds,
            ingest_all,
            ingest_since,
        )
    except UniqueViolationError:
        raise MailroomError(
            f"mailbox {address} exists already",
            hint="change it with: mailbox update; or remove it first: mailbox remove",
        ) from None
    return mailbox_id


async def update_mailbox(
    conn: Connection,
    address: str,
    *,
    connection: MailboxConnection,
    secret: bytes,
    poll_interval_seconds: float,
) -> None:
    """Store a changed connection or secret, and let the mailbox be tried again at once."""
    await conn.execute(
        _UPDATE,
        address,
        dump_connection(connection),
        secret,
        poll_interval_seconds,
    )


async def list_mailboxes(conn: Connection) -> list[Mailbox]:
    """All mailboxes by address."""
    rows = await conn.fetch(f"SELECT {_SHOWN} FROM email_mailbox_config ORDER BY lower(address)")
    return [_mailbox(row) for row in rows]


async def get_mailbox(conn: Connection, address: str) -> Mailbox:
    """One mailbox, its address in any case. MailroomError if there is none."""
    row = await conn.fetchrow(
        f"SELECT {_SHOWN} FROM email_mailbox_config WHERE lower(address) = lower($1)", address
    )
    if row is None:
        raise _unknown(address)
    return _mailbox(row)


async def get_access(conn: Connection, address: str) -> Access:
    """What it takes to read a mailbox that exists."""
    row = await conn.fetchrow(
        "SELECT id, address, provider, connection, secret FROM email_mailbox_config"
        " WHERE lower(address) = lower($1)",
        address,
    )
    connection = parse_connection(row["provider"], json.loads(row["connection"]))
    return Access(row["id"], row["address"], connection, row["secret"])


async def get_secret(conn: Connection, address: str) -> bytes:
    """The encrypted secret of a mailbox that exists."""
    secret: bytes = await conn.fetchval(
        "SELECT secret FROM email_mailbox_config WHERE lower(address) = lower($1)", address
    )
    return secret


async def is_known(conn: Connection, address: str) -> bool:
    """Whether there is a mailbox of this address, in any case."""
    found = await conn.fetchval(
        "SELECT 1 FROM email_mailbox_config WHERE lower(address) = lower($1)", address
    )
    return found is not None


async def enable_mailbox(conn: Connection, address: str, *, enabled: bool) -> None:
    """Switch polling on or off; switching on also forgets back-off and refused credentials."""
    done = await conn.execute(
        "UPDATE email_mailbox_config SET enabled = $2, not_before = NULL,"
        " state = CASE WHEN $2 THEN 'active' ELSE state END WHERE lower(address) = lower($1)",
        address,
        enabled,
    )
    if done == "UPDATE 0":
        raise _unknown(address)


async def delete_mailbox(conn: Connection, address: str) -> None:
    """Forget a mailbox; its requests and its quarantine stay."""
    done = await conn.execute(
        "DELETE FROM email_mailbox_config WHERE lower(address) = lower($1)", address
    )
    if done == "DELETE 0":
        raise _unknown(address)


async def claim_due(conn: Connection, limit: int) -> list[Claim]:
    """Claim up to `limit` due mailboxes, the longest unpolled ones.

    A row that makes no sense is logged and left stamped: it must not hold up its neighbours.
    """
    claims = []
    for row in await conn.fetch(_CLAIM_DUE, limit):
        try:
            claims.append(_claim(row))
        except (TypeError, ValueError) as error:
            log.error("%s: its row in the database makes no sense: %s", row["address"], error)
    return claims


async def claim_mailbox(conn: Connection, address: str) -> Claim:
    """Claim one mailbox, due or not. MailroomError if there is none."""
    row = await conn.fetchrow(_CLAIM_ONE, address)
    if row is None:
        raise _unknown(address)
    return _claim(row)


async def seconds_until_due(conn: Connection) -> float | None:
    """Seconds until the earliest mailbox is due, 0 or less when it is, None without any."""
    seconds: float | None = await conn.fetchval(_SECONDS_UNTIL_DUE)
    return seconds


async def move_cursor(conn: Connection, claim: Claim, cursor: Cursor | None) -> None:
    """Record how far the folder has been read. ClaimLost if the claim is no longer ours."""
    await _fenced(conn, _MOVE_CURSOR, claim, dump_cursor(cursor))


async def complete_poll(conn: Connection, claim: Claim) -> None:
    """The poll came to its end: failures and back-off are forgotten."""
    await _fenced(conn, _COMPLETE, claim)


async def fail_poll(
    conn: Connection, claim: Claim, *, failures: int, error: str, state: str, delay_seconds: float
) -> None:
    """The poll failed for the `failures`-th time in a row: not due again before the delay ends."""
    await _fenced(conn, _FAIL, claim, failures, storable_text(error), state, delay_seconds)


async def _fenced(conn: Connection, sql: str, claim: Claim, *args: object) -> None:
    if await conn.execute(sql, claim.mailbox_id, claim.stamp, *args) == "UPDATE 0":
        raise ClaimLost(f"{claim.address} was claimed again, changed or removed in the meantime")


def _unknown(address: str) -> MailroomError:
    return MailroomError(f"there is no mailbox {address}", hint="see: mailbox list")


def _mailbox(row: Mapping[str, Any]) -> Mailbox:
    values = dict(row)
    values["connection"] = json.loads(values["connection"])
    values["cursor"] = json.loads(values["cursor"]) if values["cursor"] else None
    return Mailbox(**values)


def _claim(row: Mapping[str, Any]) -> Claim:
    return Claim(
        mailbox_id=row["id"],
        address=row["address"],
        connection=parse_connection(row["provider"], json.loads(row["connection"])),
        secret=row["secret"],
        poll_interval_seconds=row["poll_interval_seconds"],
        stamp=row["last_polled_at"],
        ingest_since=row["ingest_since"],
        cursor=parse_cursor(row["provider"], row["cursor"]),
        state=row["state"],
        consecutive_failures=row["consecutive_failures"],
        has_quarantine=row["has_quarantine"],
    )
