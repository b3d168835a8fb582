"""Table `email_domain`: what is known of e-mail domains, for all replicas until it expires.

Whoever asks about a domain claims it first; `claimed_at` is the fencing token of the answer. A
claim whose replica died is free again after a while.
"""

import json
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from service.db.pool import Database
from service.model import AddressVerdict

_VERDICT = """
    d.verdict, d.reason, d.detail,
    d.evidence || jsonb_build_object('domain_checked_at', d.checked_at) AS evidence,
    extract(epoch FROM d.expires_at - now())::float8 AS seconds_left
"""

_FETCH_FRESH = f"""
    SELECT d.domain, {_VERDICT} FROM email_domain d
    WHERE d.domain = ANY($1::text[]) AND d.expires_at > now()
"""

# Invariant: a domain that has expired is claimed by one; the others find the claim. A row that is
# locked by another claim is seen as it is once that one is committed.
_CLAIM = f"""
    WITH claimed AS (
        INSERT INTO email_domain AS d (domain, claimed_at) VALUES ($1, now())
        ON CONFLICT (domain) DO UPDATE SET claimed_at = now()
        WHERE (d.expires_at IS NULL OR d.expires_at <= now())
          AND (d.claimed_at IS NULL OR d.claimed_at <= now() - make_interval(secs => $2))
        RETURNING d.claimed_at AS stamp, d.failures)
    SELECT claimed.stamp, claimed.failures, {_VERDICT}
    FROM (VALUES ($1)) AS wanted(domain)
    LEFT JOIN claimed ON true
    LEFT JOIN email_domain d ON d.domain = wanted.domain AND d.expires_at > now()
"""

# Invariant: an answer is stored only under the stamp of its claim.
_STORE = f"""
    UPDATE email_domain d SET
        verdict = $3, reason = $4, detail = $5, evidence = $6::jsonb, failures = $7,
        checked_at = now(), expires_at = now() + make_interval(secs => $8), claimed_at = NULL
    WHERE d.domain = $1 AND d.claimed_at = $2
    RETURNING {_VERDICT}
"""
_RELEASE = "UPDATE email_domain SET claimed_at = NULL WHERE domain = $1 AND claimed_at = $2"


@dataclass(frozen=True, slots=True)
class DomainClaim:
    """A domain that is ours to ask about; `failures`: how often in a row it stayed unknown."""

    domain: str
    stamp: datetime
    failures: int


async def fetch_fresh(db: Database, domains: Collection[str]) -> dict[str, AddressVerdict]:
    """The verdicts on those of the domains that are known and have not expired."""
    rows = await db.fetch(_FETCH_FRESH, list(domains))
    return {row["domain"]: _verdict(row) for row in rows}


async def claim_domain(
    db: Database, domain: str, *, expires_after_seconds: float
) -> DomainClaim | AddressVerdict | None:
    """The claim, or the verdict if there is one meanwhile; None while somebody else asks."""
    (row,) = await db.fetch(_CLAIM, domain, expires_after_seconds)
    if row["stamp"] is not None:
        return DomainClaim(domain, row["stamp"], row["failures"])
    return _verdict(row) if row["verdict"] is not None else None


async def store_verdict(
    db: Database, claim: DomainClaim, verdict: AddressVerdict, *, ttl_seconds: float
) -> AddressVerdict:
    """Keep the answer for that long; as it was stored, or as it came if the claim was lost."""
    is_unknown = verdict.verdict == "unknown"
    rows = await db.fetch(
        _STORE,
        claim.domain,
        claim.stamp,
        verdict.verdict,
        verdict.reason,
        verdict.detail,
        json.dumps(dict(verdict.evidence), ensure_ascii=False),
        claim.failures + 1 if is_unknown else 0,
        ttl_seconds,
    )
    return _verdict(rows[0]) if rows else verdict


async def release_domain(db: Database, claim: DomainClaim) -> None:
    """Somebody else may ask."""
    await db.fetch(_RELEASE, claim.domain, claim.stamp)


def _verdict(row: Any) -> AddressVerdict:
    return AddressVerdict(
        row["verdict"],
        row["reason"],
        row["detail"],
        json.loads(row["evidence"]),
        retry_after_seconds=row["seconds_left"] if row["verdict"] == "unknown" else None,
    )
