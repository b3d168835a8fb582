"""Reading queries over the enricher's tables: what is decided, what waits, and for what.

One sequential scan of `job_advertisement`, whatever is in it.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from service.db.pool import Connection

# Of those that are not decided, `waiting` are unknown until their next try; `claimed_too_long` are
# left from a replica that died, and due like `never_checked` and `due_again`.
State = Literal[
    "valid",
    "invalid",
    "waiting",
    "never_checked",
    "due_again",
    "claimed_too_long",
    "being_checked",
]


@dataclass(frozen=True, slots=True)
class Share:
    """How many rows are in a state; of a verdict for this reason, `next_due_at` if they wait."""

    state: State
    reason: str | None
    rows: int
    next_due_at: datetime | None


@dataclass(frozen=True, slots=True)
class DomainCounts:
    """Domains with a verdict, those of them that have not expired, those that are asked now."""

    known: int
    fresh: int
    being_asked: int


@dataclass(frozen=True, slots=True)
class UnfinishedImport:
    """An import that was broken off, or is running."""

    file_sha256: str
    lines_done: int
    rows_stored: int
    started_at: datetime


@dataclass(frozen=True, slots=True)
class EnrichStatus:
    """All of it."""

    shares: list[Share]
    domains: DomainCounts
    unfinished_imports: list[UnfinishedImport]

    def rows_in(self, state: State) -> int:
        """How many rows are in this state."""
        return sum(share.rows for share in self.shares if share.state == state)


# OFFSET keeps PostgreSQL from expecting as many groups as there are values in email_check, which it
# would sort on disk.
_COUNT_ROWS = """
    SELECT state, CASE WHEN state IN ('valid', 'invalid', 'waiting') THEN reason END AS reason,
           count(*) AS rows,
           min(email_check_not_before) FILTER (WHERE state = 'waiting') AS next_due_at
    FROM (SELECT CASE WHEN email_verified THEN 'valid'
                      WHEN NOT email_verified THEN 'invalid'
                      WHEN email_check_claimed_at > now() - make_interval(secs => $1)
                          THEN 'being_checked'
                      WHEN email_check_claimed_at IS NOT NULL THEN 'claimed_too_long'
                      WHEN email_check_not_before > now() THEN 'waiting'
                      WHEN email_check IS NULL THEN 'never_checked'
                      ELSE 'due_again' END AS state,
                 email_check ->> 'reason' AS reason,
                 email_check_not_before
          FROM job_advertisement
          OFFSET 0) row
    GROUP BY 1, 2
    ORDER BY 1, 3 DESC, 2
"""

# What a claim would take now.
_COUNT_DUE = """
    SELECT count(*) FROM job_advertisement
    WHERE email_verified IS NULL AND email_check_not_before <= now()
      AND (email_check_claimed_at IS NULL
           OR email_check_claimed_at <= now() - make_interval(secs => $1))
"""

_COUNT_DOMAINS = """
    SELECT count(verdict) AS known,
           count(*) FILTER (WHERE expires_at > now()) AS fresh,
           count(*) FILTER (WHERE claimed_at > now() - make_interval(secs => $1)) AS being_asked
    FROM email_domain
"""

_UNFINISHED = """
    SELECT encode(file_sha256, 'hex') AS file_sha256, lines_done, rows_stored, started_at
    FROM enrich_import WHERE finished_at IS NULL ORDER BY started_at
"""


async def fetch_status(
    conn: Connection, *, row_claim_seconds: float, domain_claim_seconds: float
) -> EnrichStatus:
    """The status; the claim of a row and that of a domain last so long."""
    rows = await conn.fetch(_COUNT_ROWS, row_claim_seconds)
    domains = await conn.fetchrow(_COUNT_DOMAINS, domain_claim_seconds)
    unfinished = await conn.fetch(_UNFINISHED)
    return EnrichStatus(
        [Share(**row) for row in rows],
        DomainCounts(**domains),
        [UnfinishedImport(**row) for row in unfinished],
    )


async def count_due(conn: Connection, *, row_claim_seconds: float) -> int:
    """How many rows could be claimed now; the claim of a row lasts so long."""
    return int(await conn.fetchval(_COUNT_DUE, row_claim_seconds))
