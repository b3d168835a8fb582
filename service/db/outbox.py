"""Table `webhook_outbox`: events for the webhook, from the transaction that makes them to delivery.

A claim stamps `claimed_at`; every later write of that delivery matches the stamp and raises
`ClaimLost` when another claim has come in between. A claim whose replica died is due again after
CLAIM_EXPIRES_AFTER_SECONDS: an event is delivered at least once, always under the same id.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from service.db.pool import Connection, storable_text
from service.errors import ClaimLost, MailroomError

CLAIM_EXPIRES_AFTER_SECONDS = 300
MAX_ATTACHMENTS = 50
MAX_ERROR_CHARS = 500


@dataclass(frozen=True, slots=True)
class EventClaim:
    """An event that this replica may deliver; `stamp` is the fencing token."""

    id: int
    event_id: str
    request_id: int
    payload: str
    attempts: int
    stamp: datetime


@dataclass(frozen=True, slots=True)
class Event:
    """A row as it is shown, without its payload."""

    id: int
    event_id: str
    request_id: int
    attempts: int
    created_at: datetime
    next_attempt_at: datetime
    claimed_at: datetime | None
    delivered_at: datetime | None
    given_up_at: datetime | None
    last_error: str | None

    @property
    def state(self) -> str:
        """delivered, given up (waits for a retry), sending, retrying, or waiting: not yet tried."""
        if self.delivered_at is not None:
            return "delivered"
        if self.given_up_at is not None:
            return "given up"
        if self.claimed_at is not None:
            return "sending"
        return "retrying" if self.attempts else "waiting"


# Invariant: of the transactions that end attachments of one request, the last one to commit makes
# the event. They are in line at the lock on `request`, and the snapshot of this statement, taken
# behind it, shows what the others have committed. What mails may make long is cut.
_ANNOUNCE = """
    INSERT INTO webhook_outbox (request_id, payload)
    SELECT r.id, json_build_object(
        'type', 'request.completed',
        'timestamp', to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
        'data', json_build_object(
            'request_id', r.id,
            'mailbox', m.address,
            'message_id', left(r.message_id, 1000),
            'subject', left(r.subject, 500),
            'sender', left(r.sender, 500),
            'received_at', to_char(r.received_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'),
            'status', a.status,
            'attachments_count', a.count,
            'attachments', a.shown))::text
    FROM request r
    LEFT JOIN email_mailbox_config m ON m.id = r.mailbox_id
    CROSS JOIN LATERAL (
        SELECT count(*),
               CASE WHEN bool_or(one.status = 'failed') THEN 'failed' ELSE 'done' END AS status,
               bool_or(one.status IN ('pending', 'processing')) AS is_open,
               json_agg(json_build_object(
                   'id', one.id,
                   'kind', one.kind,
                   'filename', left(one.filename, 255),
                   'content_type', left(one.content_type, 255),
                   'verdict', one.verdict,
                   'status', one.status,
                   'error', left(one.error, 500)) ORDER BY one.id)
               FILTER (WHERE one.number <= $2) AS shown
        FROM (SELECT *, row_number() OVER (ORDER BY id) AS number
              FROM attachment WHERE request_id = r.id) one) a
    WHERE r.id = ANY($1::bigint[]) AND NOT a.is_open
    ORDER BY r.id
"""

# Invariant: a due event goes to exactly one replica; the others skip it while it is locked and
# find it stamped afterwards.
_CLAIM_DUE = """
    WITH due AS MATERIALIZED (
        SELECT id AS due_id FROM webhook_outbox
        WHERE delivered_at IS NULL AND given_up_at IS NULL AND next_attempt_at <= now()
          AND (claimed_at IS NULL OR claimed_at <= now() - make_interval(secs => $2))
        ORDER BY next_attempt_at
        LIMIT $1
        FOR UPDATE SKIP LOCKED)
    UPDATE webhook_outbox SET claimed_at = now() FROM due WHERE id = due_id
    RETURNING id, event_id, request_id, payload, attempts, claimed_at AS stamp
"""

# Invariant: a delivery that lost its claim changes nothing (the stamp no longer matches).
_COMPLETE = """
    UPDATE webhook_outbox
    SET attempts = attempts + 1, claimed_at = NULL, delivered_at = now(), last_error = NULL
    WHERE id = $1 AND claimed_at = $2
"""
_FAIL = """
    UPDATE webhook_outbox
    SET attempts = attempts + 1, claimed_at = NULL, last_error = $3,
        next_attempt_at = now() + make_interval(secs => coalesce($4::float8, 0)),
        given_up_at = CASE WHEN $4::float8 IS NULL THEN now() END
    WHERE id = $1 AND claimed_at = $2
"""
_RELEASE = "UPDATE webhook_outbox SET claimed_at = NULL WHERE id = $1 AND claimed_at = $2"

_SHOWN = """
    id, event_id, request_id, attempts, created_at, next_attempt_at, claimed_at, delivered_at,
    given_up_at, last_error
"""

# The attempts begin anew, and with them the schedule.
_RETRY = """
    UPDATE webhook_outbox SET given_up_at = NULL, attempts = 0, next_attempt_at = now()
    WHERE delivered_at IS NULL
"""


async def announce_completed(conn: Connection, request_ids: Sequence[int]) -> None:
    """One `request.completed` event for each of these requests of which every attachment has ended.

    Belongs into the transaction that ended one of them, after the caller has locked the rows of
    `request` (SELECT … FOR NO KEY UPDATE) in an earlier statement of it. Does nothing for
    requests with open attachments.
    """
    await conn.execute(_ANNOUNCE, list(request_ids), MAX_ATTACHMENTS)


async def claim_due(conn: Connection, limit: int) -> list[EventClaim]:
    """Claim up to `limit` due events, those that have waited longest."""
    rows = await conn.fetch(_CLAIM_DUE, limit, CLAIM_EXPIRES_AFTER_SECONDS)
    return [EventClaim(**row) for row in rows]


async def complete_delivery(conn: Connection, claim: EventClaim) -> None:
    """The receiver has taken it. ClaimLost if the claim is no longer ours."""
    await _fenced(conn, _COMPLETE, claim)


async def fail_delivery(
    conn: Connection, claim: EventClaim, error: str, *, delay_seconds: float | None
) -> None:
    """Due again after the delay, or given up without one. ClaimLost as above."""
    await _fenced(conn, _FAIL, claim, storable_text(error)[:MAX_ERROR_CHARS], delay_seconds)


async def release_delivery(conn: Connection, claim: EventClaim) -> None:
    """Due again at once, as if it had not been claimed. ClaimLost as above."""
    await _fenced(conn, _RELEASE, claim)


async def list_events(conn: Connection, *, include_delivered: bool) -> list[Event]:
    """Rows, newest last."""
    where = "" if include_delivered else "WHERE delivered_at IS NULL"
    rows = await conn.fetch(f"SELECT {_SHOWN} FROM webhook_outbox {where} ORDER BY id")
    return [Event(**row) for row in rows]


async def retry_event(conn: Connection, row_id: int) -> None:
    """Make an event due now, given up or waiting. MailroomError if it is delivered or unknown."""
    if await conn.execute(f"{_RETRY} AND id = $1", row_id) == "UPDATE 0":
        raise MailroomError(f"there is no undelivered event {row_id}", hint="see: webhook list")


async def retry_given_up(conn: Connection) -> int:
    """Make all due that were given up; how many."""
    done = await conn.execute(f"{_RETRY} AND given_up_at IS NOT NULL")
    return int(done.removeprefix("UPDATE "))


async def _fenced(conn: Connection, sql: str, claim: EventClaim, *args: object) -> None:
    if await conn.execute(sql, claim.id, claim.stamp, *args) == "UPDATE 0":
        raise ClaimLost(f"webhook {claim.event_id} was claimed again or removed in the meantime")
