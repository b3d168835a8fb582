"""Whether a request may pass: its token, the token's allowance and the mailbox, in one statement.

The allowance follows the generic cell rate algorithm: the token's theoretical arrival time (TAT)
moves on by one interval a request, and a request that would move it further ahead of the clock than
a minute is refused. One statement decides, so that no two replicas both give the last one away.
"""

import hmac
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from service.db.mailbox_json import parse_connection
from service.db.mailboxes import Access
from service.db.pool import Database, storable_text
from service.db.tokens import hash_token

PERIOD_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Allowance:
    """What one request found: whether it may pass, and what is left.

    `reset_seconds` is the time until all `limit` requests are there again, `retry_after_seconds`
    that until the next one is; both whole seconds, rounded up.
    """

    is_granted: bool
    limit: int
    remaining: int
    reset_seconds: int
    retry_after_seconds: int


@dataclass(frozen=True, slots=True)
class Admission:
    """What is known of a request with a valid token; `access` is None for an unknown mailbox."""

    token_name: str
    scopes: frozenset[str]
    mailboxes: frozenset[str] | None
    allowance: Allowance
    access: Access | None

    def covers(self, address: str) -> bool:
        """Whether the token may be used for this address, whatever its case."""
        return self.mailboxes is None or address.lower() in self.mailboxes


# Invariants: what is revoked or has expired by the database's clock is not found; TAT never gets
# further ahead of now() than the period; a refused request moves nothing. The stamp is for people,
# and not written at each request.
_ADMIT = """
    WITH token AS MATERIALIZED (
        SELECT id, name, scopes, mailboxes, last_used_at, token_sha256 FROM api_token
        WHERE token_sha256 = $1 AND revoked_at IS NULL
          AND (expires_at IS NULL OR expires_at > now())
    ), stamped AS (
        UPDATE api_token SET last_used_at = now() FROM token
        WHERE api_token.id = token.id
          AND coalesce(token.last_used_at < now() - interval '1 minute', true)
    ), taken AS (
        INSERT INTO rate_limit AS old (key, tat)
        SELECT 'token ' || id, now() + make_interval(secs => $2) FROM token
        ON CONFLICT (key) DO UPDATE
        SET tat = greatest(old.tat, now()) + make_interval(secs => $2)
        WHERE greatest(old.tat, now()) + make_interval(secs => $2)
              <= now() + make_interval(secs => $3)
        RETURNING tat
    )
    SELECT token.name, token.scopes, token.mailboxes, token.token_sha256,
           taken.tat IS NOT NULL AS is_granted,
           extract(epoch FROM coalesce(taken.tat, refused.tat) - now())::float8 AS ahead_seconds,
           mailbox.id AS mailbox_id, mailbox.address, mailbox.provider,
           mailbox.connection, mailbox.secret
    FROM token
    LEFT JOIN taken ON true
    LEFT JOIN rate_limit AS refused ON refused.key = 'token ' || token.id
    LEFT JOIN email_mailbox_config AS mailbox
           ON lower(mailbox.address) = lower($4) AND mailbox.provider = 'imap'
"""


async def admit(
    db: Database, token: str, *, requests_per_minute: int, address: str
) -> Admission | None:
    """Count one request on this mailbox; None when the token is not valid."""
    interval_seconds = PERIOD_SECONDS / requests_per_minute
    digest = hash_token(token)
    rows = await db.fetch(
        _ADMIT,
        digest,
        interval_seconds,
        float(PERIOD_SECONDS),
        storable_text(address),
    )
    if not rows or not hmac.compare_digest(rows[0]["token_sha256"], digest):
        return None
    row = rows[0]
    ahead_seconds = row["ahead_seconds"] or 0.0
    if not row["is_granted"] and ahead_seconds <= PERIOD_SECONDS - interval_seconds:
        ahead_seconds = PERIOD_SECONDS  # what refused it is younger than what the statement sees
    mailboxes = row["mailboxes"]
    return Admission(
        token_name=row["name"],
        scopes=frozenset(row["scopes"]),
        mailboxes=None if mailboxes is None else frozenset(map(str.lower, mailboxes)),
        allowance=decide_allowance(row["is_granted"], ahead_seconds, requests_per_minute),
        access=None if row["mailbox_id"] is None else _access(row),
    )


def decide_allowance(is_granted: bool, ahead_seconds: float, limit: int) -> Allowance:
    """What a TAT so far ahead of the clock means."""
    interval_seconds = PERIOD_SECONDS / limit
    wait_seconds = ahead_seconds + interval_seconds - PERIOD_SECONDS
    return Allowance(
        is_granted=is_granted,
        limit=limit,
        # PostgreSQL counts in microseconds.
        remaining=max(0, math.floor((PERIOD_SECONDS - ahead_seconds) / interval_seconds + 1e-3)),
        reset_seconds=math.ceil(ahead_seconds),
        retry_after_seconds=max(1, math.ceil(wait_seconds)),
    )


def _access(row: Mapping[str, Any]) -> Access:
    connection = parse_connection(row["provider"], json.loads(row["connection"]))
    return Access(row["mailbox_id"], row["address"], connection, row["secret"])
