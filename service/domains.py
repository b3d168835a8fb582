"""Verdicts on domains: from the shared table while they are fresh, else asked for.

All partitions of all replicas together ask about a domain once, and no more than
ENRICH_CONCURRENCY at a time in one replica. No connection is held while it asks.
"""

import random
from collections.abc import Collection, MutableMapping
from contextlib import suppress

import trio

from service.check.domain_check import DomainCheck
from service.db.domains import (
    DomainClaim,
    claim_domain,
    fetch_fresh,
    release_domain,
    store_verdict,
)
from service.db.pool import Database
from service.errors import DatabaseUnreachable
from service.model import AddressVerdict
from service.settings import Settings

# Who waits for another's answer, or for the database, looks that often.
LOOK_SECONDS = 0.25
FIRST_RETRY_SECONDS = 60
MAX_RETRY_SECONDS = 21_600
JITTER = 0.2  # what failed together is not to come back together
RELEASE_TIMEOUT_SECONDS = 2


def decide_retry(failures: int, retry_after_seconds: float | None) -> float:
    """Seconds until a domain that stayed unknown `failures` times in a row is asked again."""
    doubled = FIRST_RETRY_SECONDS * 2.0 ** min(failures - 1, 16)
    jitter = random.uniform(1, 1 + JITTER)  # noqa: S311 - nothing secret
    return max(min(doubled, MAX_RETRY_SECONDS), retry_after_seconds or 0) * jitter


class Domains:
    """One for the process."""

    def __init__(self, db: Database, settings: Settings, check: DomainCheck) -> None:
        self._db = db
        self._check = check
        self._asking = trio.CapacityLimiter(settings.enrich_concurrency)
        self._ttl_seconds = settings.enrich_domain_ttl_seconds
        self._expires_after_seconds = settings.domain_claim_seconds

    async def look_up(
        self, domains: Collection[str], *, within_seconds: float
    ) -> dict[str, AddressVerdict]:
        """The verdicts that could be had in that time; those on the other domains are missing."""
        verdicts: dict[str, AddressVerdict] = {}
        with suppress(DatabaseUnreachable):
            verdicts |= await fetch_fresh(self._db, domains)
        with trio.move_on_after(within_seconds):
            async with trio.open_nursery() as nursery:
                for domain in set(domains) - verdicts.keys():
                    nursery.start_soon(self._decide_into, verdicts, domain)
        return verdicts

    async def _decide_into(
        self, verdicts: MutableMapping[str, AddressVerdict], domain: str
    ) -> None:
        while domain not in verdicts:
            with suppress(DatabaseUnreachable):
                verdict = await self._decide(domain)
                if verdict is not None:
                    verdicts[domain] = verdict
                    return
            await trio.sleep(LOOK_SECONDS)

    async def _decide(self, domain: str) -> AddressVerdict | None:
        """None while somebody else asks."""
        async with self._asking:
            found = await claim_domain(
                self._db, domain, expires_after_seconds=self._expires_after_seconds
            )
            if not isinstance(found, DomainClaim):
                return found
            verdict = await self._ask(found)
        if not verdict.was_asked:
            await release_domain(self._db, found)
            return verdict
        return await store_verdict(
            self._db, found, verdict, ttl_seconds=self._decide_ttl(found, verdict)
        )

    async def _ask(self, claim: DomainClaim) -> AddressVerdict:
        try:
            return await self._check.check(claim.domain)
        except trio.Cancelled:
            with trio.move_on_after(RELEASE_TIMEOUT_SECONDS, shield=True):
                with suppress(DatabaseUnreachable):
                    await release_domain(self._db, claim)
            raise

    def _decide_ttl(self, claim: DomainClaim, verdict: AddressVerdict) -> float:
        if verdict.verdict == "unknown":
            return decide_retry(claim.failures + 1, verdict.retry_after_seconds)
        return self._ttl_seconds
