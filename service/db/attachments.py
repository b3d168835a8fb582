"""Table `attachment` as the pipeline's queue: claim, write what became of it, give back, retry.

`processing_started_at` is the claim's stamp and the fencing token: a write under another stamp
changes nothing. `new_attachments.py` makes the rows.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from service.db.notifications import ATTACHMENT_CHANNEL
from service.db.pool import Connection, Database, storable_text
from service.errors import ClaimLost

# Invariant: a row is claimed by one; the claim is committed by the statement's own end. The text
# of the mail goes along where it is the document, or its context. `gives_context_rows` is true for
# the first file of a mail that can still be read.
_CLAIM = """
    WITH due AS MATERIALIZED (
        SELECT id FROM attachment
        WHERE status = 'pending' AND (not_before IS NULL OR not_before <= now())
        ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED)
    UPDATE attachment a SET status = 'processing', processing_started_at = now()
    FROM due, request r
    WHERE a.id = due.id AND r.id = a.request_id
    RETURNING a.id, a.request_id, a.kind, a.filename, a.attempts, a.processing_started_at AS stamp,
        CASE WHEN a.size_bytes <= $2 THEN a.content END AS content,
        CASE WHEN a.kind = 'body' OR $3 THEN r.body_text END AS body_text,
        NOT EXISTS (
            SELECT FROM attachment earlier
            WHERE earlier.request_id = a.request_id AND earlier.id < a.id
              AND earlier.verdict = 'extract' AND earlier.status <> 'failed') AS gives_context_rows
"""

# Invariant: only under the stamp of the claim.
_WRITE = """
    UPDATE attachment a SET
        status = o.status, result = o.result::jsonb, error = o.error,
        attempts = a.attempts + o.counted, processing_started_at = NULL,
        not_before = CASE WHEN o.status = 'pending'
                          THEN now() + make_interval(secs => o.delay_seconds) END,
        finished_at = CASE WHEN o.status <> 'pending' THEN now() END
    FROM unnest($1::bigint[], $2::timestamptz[], $3::text[], $4::text[], $5::text[], $6::int[],
                $7::float8[]) AS o(id, stamp, status, result, error, counted, delay_seconds)
    WHERE a.id = o.id AND a.processing_started_at = o.stamp
    RETURNING a.id
"""

# Why an attachment in such a state is not retried, in words that follow its name.
NOT_RETRYABLE = {
    "pending": "waits for its turn already",
    "processing": "is being read at the moment",
    "skipped": "was skipped, so there is nothing to try again; its `verdict_reason` says why",
}

# In one order everywhere, and before the rows of `attachment`: no two transactions deadlock, and
# of two that end the last attachments of one request the second sees what the first has written.
_LOCK_REQUESTS = "SELECT id FROM request WHERE id = ANY($1::bigint[]) ORDER BY id FOR NO KEY UPDATE"

_LOCK_REQUESTS_OF_STUCK = """
    SELECT id FROM request
    WHERE id IN (
        SELECT request_id FROM attachment
        WHERE status = 'processing' AND processing_started_at < now() - make_interval(secs => $1))
    ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
"""

# Invariant: only rows whose stamp is too old are touched; the cleared stamp is what refuses the
# late write of the worker that held the claim.
_RECOVER_STUCK = """
    UPDATE attachment SET
        status = CASE WHEN attempts + 1 >= $2 THEN 'failed' ELSE 'pending' END,
        attempts = attempts + 1,
        processing_started_at = NULL,
        finished_at = CASE WHEN attempts + 1 >= $2 THEN now() END,
        error = format('stuck: in processing since %s, attempt %s of %s',
                       processing_started_at, attempts + 1, $2)
    WHERE id IN (
        SELECT id FROM attachment
        WHERE status = 'processing' AND processing_started_at < now() - make_interval(secs => $1)
          AND request_id = ANY($3::bigint[])
        FOR UPDATE SKIP LOCKED)
    RETURNING id, request_id, status, error
"""

_IS_WAITING = "(a.status = 'pending' AND a.not_before > now())"  # for its next attempt
_RENEWED = """
    status = 'pending', attempts = 0, not_before = NULL, result = NULL, error = NULL,
    finished_at = NULL
"""

# Invariant: what is under way or was never wanted is left alone. The row is locked while it is
# looked at, so that the status returned is the one it had.
_RETRY = f"""
    WITH found AS MATERIALIZED (
        SELECT a.id, CASE WHEN {_IS_WAITING} THEN 'waiting' ELSE a.status END AS status
        FROM attachment a
        JOIN request r ON r.id = a.request_id
        LEFT JOIN email_mailbox_config m ON m.id = r.mailbox_id
        WHERE a.id = $1 AND ($2::text[] IS NULL OR lower(m.address) = ANY($2))
        FOR UPDATE OF a
    ), renewed AS (
        UPDATE attachment a SET {_RENEWED}
        FROM found WHERE a.id = found.id AND found.status IN ('done', 'failed', 'waiting')
        RETURNING pg_notify('{ATTACHMENT_CHANNEL}', '')
    )
    SELECT status FROM found
"""

_RETRY_FAILED = f"""
    WITH renewed AS (
        UPDATE attachment a SET {_RENEWED} WHERE status = 'failed' OR {_IS_WAITING} RETURNING id)
    SELECT count(*), pg_notify('{ATTACHMENT_CHANNEL}', '') FROM renewed
"""


@dataclass(frozen=True, slots=True)
class Claim:
    """An attachment that is ours under `stamp`. `content` is None for a body or a large file."""

    id: int
    request_id: int
    kind: Literal["file", "body"]
    filename: str | None
    attempts: int
    stamp: datetime
    content: bytes | None
    body_text: str | None
    gives_context_rows: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """What becomes of a claim: `done` or `failed` for good, `pending` again after a delay.

    `result` is a JSON object as text; `counted` is 1 for an attempt that did not work.
    """

    claim: Claim
    status: Literal["done", "failed", "pending"]
    result: str | None = None
    error: str | None = None
    counted: int = 0
    delay_seconds: float = 0


async def claim_attachments(
    db: Database, *, limit: int, inline_bytes: int, with_texts: bool
) -> list[Claim]:
    """Claim up to `limit` due rows; files up to `inline_bytes` come with their content."""
    rows = await db.fetch(_CLAIM, limit, inline_bytes, with_texts)
    return [Claim(**row) for row in rows]


async def load_content(db: Database, claim: Claim) -> bytes:
    """The bytes of a claimed file. ClaimLost."""
    rows = await db.fetch(
        "SELECT content FROM attachment WHERE id = $1 AND processing_started_at = $2",
        claim.id,
        claim.stamp,
    )
    if not rows:
        raise ClaimLost(f"attachment {claim.id} was given back in the meantime")
    content: bytes = rows[0]["content"]
    return content


async def write_outcomes(
    source: Connection | Database, outcomes: Sequence[Outcome]
) -> Collection[int]:
    """Write what became of these claims; the ids of those that were still ours."""
    rows = [
        (
            one.claim.id,
            one.claim.stamp,
            one.status,
            one.result,
            None if one.error is None else storable_text(one.error),
            one.counted,
            one.delay_seconds,
        )
        for one in outcomes
    ]
    written = await source.fetch(_WRITE, *map(list, zip(*rows, strict=True)))
    return {row["id"] for row in written}


async def lock_requests(conn: Connection, request_ids: Collection[int]) -> None:
    """Inside a transaction, before its writes: whoever ends an attachment of these waits."""
    await conn.fetch(_LOCK_REQUESTS, list(request_ids))


async def recover_stuck_attachments(
    conn: Connection, *, stuck_after_seconds: float, max_attempts: int
) -> Sequence[Any]:
    """Give back what has been `processing` for too long, or fail it after its last attempt.

    Inside a transaction; returns id, request_id, status and error of each.
    """
    locked = await conn.fetch(_LOCK_REQUESTS_OF_STUCK, stuck_after_seconds)
    if not locked:
        return []
    request_ids = [row["id"] for row in locked]
    return await conn.fetch(_RECOVER_STUCK, stuck_after_seconds, max_attempts, request_ids)


async def retry_attachment(
    conn: Connection, attachment_id: int, *, mailboxes: Collection[str] | None
) -> str | None:
    """Make an attachment that is `done` or `failed` pending again, its attempts counted anew.

    So is one that waits for its next attempt, whose status is said to be `waiting`. Returns the
    status that it had; nothing was changed if that was another one. None when there is none, or
    none in these mailboxes (in lower case; None: all).
    """
    row = await conn.fetchrow(_RETRY, attachment_id, None if mailboxes is None else list(mailboxes))
    return None if row is None else str(row["status"])


async def retry_failed(conn: Connection) -> int:
    """Make all that failed, or wait for their next attempt, due now; how many."""
    return int(await conn.fetchval(_RETRY_FAILED))
