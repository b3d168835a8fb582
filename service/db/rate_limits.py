"""Table `rate_limit`: one limiter for all replicas, by the generic cell rate algorithm.

The key's theoretical arrival time (TAT) moves on by one interval a request; a request that would
move it further ahead of the clock than a whole minute is refused. One statement decides, so that
no two replicas can both take the last request.
"""

import math
from dataclasses import dataclass

from service.db.pool import Connection

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


# Invariant: TAT never gets further ahead of now() than the period; a refused request moves nothing.
_TAKE = """
    WITH taken AS (
        INSERT INTO rate_limit AS old (key, tat) VALUES ($1, now() + make_interval(secs => $2))
        ON CONFLICT (key) DO UPDATE
        SET tat = greatest(old.tat, now()) + make_interval(secs => $2)
        WHERE greatest(old.tat, now()) + make_interval(secs => $2)
              <= now() + make_interval(secs => $3)
        RETURNING tat)
    SELECT true AS is_granted, extract(epoch FROM tat - now())::float8 AS ahead_seconds FROM taken
    UNION ALL
    SELECT false, coalesce((SELECT extract(epoch FROM tat - now())::float8 FROM rate_limit
                            WHERE key = $1), $3)  -- written since this statement began
    WHERE NOT EXISTS (SELECT FROM taken)
"""


async def take_request(conn: Connection, key: str, limit: int) -> Allowance:
    """Count one request of `key`, of which `limit` are allowed in a minute."""
    interval_seconds = PERIOD_SECONDS / limit
    row = await conn.fetchrow(_TAKE, key, interval_seconds, float(PERIOD_SECONDS))
    return decide_allowance(row["is_granted"], row["ahead_seconds"], limit)


def decide_allowance(is_granted: bool, ahead_seconds: float, limit: int) -> Allowance:
    """What a TAT so far ahead of the clock means."""
    interval_seconds = PERIOD_SECONDS / limit
    wait_seconds = ahead_seconds + interval_seconds - PERIOD_SECONDS
    return Allowance(
        is_granted=is_granted,
        limit=limit,
        remaining=max(0, math.floor((PERIOD_SECONDS - ahead_seconds) / interval_seconds)),
        reset_seconds=math.ceil(ahead_seconds),
        retry_after_seconds=max(1, math.ceil(wait_seconds)),
    )
