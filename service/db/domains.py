"""Table `email_domain`: what is known of e-mail domains, for all replicas until it expires.

Whoever asks about a domain claims it first; `claimed_at` is the fencing token of the answer. A
claim whose replica died is free again after a while.
"""

import json
from collections.abc import Collection, Sequence
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

# Invariant: a domain that has expired is claimed by one; the others find the claim. Rows are locked
# in the order of their names everywhere: no two statements deadlock.
_CLAIM = f"""
    WITH claimed AS (
        INSERT INTO email_domain AS d (domain, claimed_at)
        SELECT one, now() FROM unnest($1::text[]) AS one ORDER BY one COLLATE "C"
        ON CONFLICT (domain) DO UPDATE SET claimed_at = now()
        WHERE (d.expires_at IS NULL OR d.expires_at <= now())
          AND (d.claimed_at IS NULL OR d.claimed_at <= now() - make_interval(secs => $2))
        RETURNING d.domain, d.claimed_at AS stamp, d.failures)
    SELECT domain, claimed.stamp, claimed.failures, {_VERDICT}
    FROM unnest($1::text[]) AS domain
    LEFT JOIN claimed USING (domain)
    LEFT JOIN email_domain d USING (domain)
    WHERE claimed.stamp IS NOT NULL OR d.expires_at > now()
"""

# Invariant: an answer is stored only under the stamp of its claim.
_STORE = f"""
    WITH locked AS MATERIALIZED (
        SELECT domain FROM email_domain WHERE domain = ANY($1::text[])
        ORDER BY domain COLLATE "C" FOR UPDATE)
    UPDATE email_domain d SET
        verdict = a.verdict, reason = a.reason, detail = a.detail, evidence = a.evidence::jsonb,
        failures = a.failures, checked_at = now(),
        expires_at = now() + make_interval(secs => a.ttl_seconds), claimed_at = NULL
    FROM locked, unnest($1::text[], $2::timestamptz[], $3::text[], $4::text[], $5::text[],
                        $6::text[], $7::integer[], $8::float8[])
        AS a(domain, stamp, verdict, reason, detail, evidence, failures, ttl_seconds)
    WHERE d.domain = locked.domain AND a.domain = d.domain AND d.claimed_at = a.stamp
    RETURNING d.domain, {_VERDICT}
"""
_RELEASE = "UPDATE email_domain SET claimed_at = NULL WHERE domain = $1 AND claimed_at = $2"


@dataclass(frozen=True, slots=True)
class DomainClaim:
    """A domain that is ours to ask about; `failures`: how often in a row it stayed unknown."""

    domain: str
    stamp: datetime
    failures: int


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a claim; it is kept for `ttl_seconds`."""

    claim: DomainClaim
    verdict: AddressVerdict
    ttl_seconds: float


async def fetch_fresh(db: Database, domains: Collection[str]) -> dict[str, AddressVerdict]:
    """The verdicts on those of the domains that are known and have not expired."""
    rows = await db.fetch(_FETCH_FRESH, list(domains))
    return {row["domain"]: _verdict(row) for row in rows}


async def claim_domains(
    db: Database, domains: Collection[str], *, expires_after_seconds: float
) -> dict[str, DomainClaim | AddressVerdict]:
    """The claims, or the verdicts that there are meanwhile; without those that others ask about."""
    rows = await db.fetch(_CLAIM, list(set(domains)), expires_after_seconds)
    return {
        row["domain"]: DomainClaim(row["domain"], row["stamp"], row["failures"])
        if row["stamp"] is not None
        else _verdict(row)
        for row in rows
    }


async def store_answers(db: Database, answers: Sequence[Answer]) -> dict[str, AddressVerdict]:
    """Keep them; as they were stored, without those whose claim was lost."""
    rows = await db.fetch(_STORE, *map(list, zip(*map(_columns, answers), strict=True)))
    return {row["domain"]: _verdict(row) for row in rows}


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


def _columns(answer: Answer) -> tuple[object, ...]:
    claim, verdict = answer.claim, answer.verdict
    return (
        claim.domain,
        claim.stamp,
        verdict.verdict,
        verdict.reason,
        verdict.detail,
        json.dumps(dict(verdict.evidence), ensure_ascii=False),
        claim.failures + 1 if verdict.verdict == "unknown" else 0,
        answer.ttl_seconds,
    )
