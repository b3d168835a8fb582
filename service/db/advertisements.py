"""Table `job_advertisement`: rows whose e-mail address is to be checked.

`email_check_claimed_at` is the claim's stamp and the fencing token: a verdict is written only under
it, and only on the address that was checked. A claim whose replica died is due again after a while.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from service.db.pool import Database
from service.model import AddressVerdict

# A longer address is none, however it goes on.
MAX_EMAIL_CHARS = 1000

_VERIFIED = {"valid": True, "invalid": False, "unknown": None}

# Invariant: a due row goes to exactly one batch; the others skip it while it is locked and find it
# stamped afterwards. Rows of one domain go together: in any other order each batch would wait for
# nearly all domains, and the rows would come after the answers instead of beside them.
_CLAIM = """
    WITH due AS MATERIALIZED (
        SELECT id FROM job_advertisement
        WHERE email_verified IS NULL AND email_check_not_before <= now()
          AND (email_check_claimed_at IS NULL
               OR email_check_claimed_at <= now() - make_interval(secs => $2))
        ORDER BY email_check_not_before, left(lower(split_part(email, '@', -1)), 255), id
        LIMIT $1
        FOR UPDATE SKIP LOCKED)
    UPDATE job_advertisement j SET email_check_claimed_at = now()
    FROM due WHERE j.id = due.id
    RETURNING j.id, left(j.email, $3) AS email, j.email_check_claimed_at AS stamp
"""

# Invariant: a row is decided under the stamp of its claim, on the address that was checked, and
# not over a verdict that somebody else gave it meanwhile.
_WRITE = """
    UPDATE job_advertisement j SET
        email_verified = v.verified,
        email_check = v.outcome::jsonb || jsonb_build_object(
            'checked_at', now(), 'retry_at', now() + make_interval(secs => v.delay_seconds)),
        email_check_not_before =
            coalesce(now() + make_interval(secs => v.delay_seconds), '-infinity'),
        email_check_claimed_at = NULL
    FROM unnest($2::bigint[], $3::text[], $4::boolean[], $5::text[], $6::float8[])
        AS v(id, email, verified, outcome, delay_seconds)
    WHERE j.id = v.id AND j.email_check_claimed_at = $1
      AND left(j.email, $7) IS NOT DISTINCT FROM v.email AND j.email_verified IS NULL
    RETURNING j.id
"""

_RELEASE = """
    UPDATE job_advertisement SET email_check_claimed_at = NULL
    WHERE id = ANY($2::bigint[]) AND email_check_claimed_at = $1
"""


@dataclass(frozen=True, slots=True)
class Batch:
    """Claimed rows, id and address each; `stamp` is the fencing token of all of them.

    Of a longer address only MAX_EMAIL_CHARS.
    """

    stamp: datetime
    emails: dict[int, str | None]


@dataclass(frozen=True, slots=True)
class Decision:
    """What is written to one row; an unknown one is due again when its verdict says."""

    row_id: int
    verdict: AddressVerdict


async def claim_batch(db: Database, limit: int, *, expires_after_seconds: float) -> Batch | None:
    """Claim up to `limit` due rows; None when nothing is due.

    Those that have waited longest come first, of these the ones of one domain together.
    """
    rows = await db.fetch(_CLAIM, limit, expires_after_seconds, MAX_EMAIL_CHARS)
    return Batch(rows[0]["stamp"], {row["id"]: row["email"] for row in rows}) if rows else None


async def write_decisions(
    db: Database, batch: Batch, decisions: Sequence[Decision]
) -> Sequence[Decision]:
    """Write them in one statement; those that were written.

    Not those whose claim was lost, nor those that were changed meanwhile, which are given back.
    """
    columns = zip(*(_columns(batch, one) for one in decisions), strict=True)
    rows = await db.fetch(_WRITE, batch.stamp, *map(list, columns), MAX_EMAIL_CHARS)
    written = {row["id"] for row in rows}
    await release_rows(db, batch, {one.row_id for one in decisions} - written)
    return [one for one in decisions if one.row_id in written]


async def release_rows(db: Database, batch: Batch, row_ids: Iterable[int]) -> None:
    """Due again at once, those of them that are still claimed under this stamp."""
    ids = list(row_ids)
    if ids:
        await db.fetch(_RELEASE, batch.stamp, ids)


def _columns(batch: Batch, decision: Decision) -> tuple[object, ...]:
    verdict = decision.verdict
    outcome = {
        "verdict": verdict.verdict,
        "reason": verdict.reason,
        "detail": verdict.detail,
        "evidence": dict(verdict.evidence),
    }
    return (
        decision.row_id,
        batch.emails[decision.row_id],
        _VERIFIED[verdict.verdict],
        json.dumps(outcome, ensure_ascii=False),
        verdict.retry_after_seconds or 0 if verdict.verdict == "unknown" else None,
    )
