"""Verdicts on domains: from the shared table while they are fresh, else asked for.

All partitions of all replicas together ask about a domain once, and no more than
ENRICH_CONCURRENCY at a time in one replica. No connection is held while it asks; claims, and
answers, that come close together are one statement.
"""

import random
from collections.abc import Collection, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import replace

import trio

from service.check.domain_check import DomainCheck
from service.db.domains import (
    Answer,
    DomainClaim,
    claim_domains,
    fetch_fresh,
    release_domain,
    store_answers,
)
from service.db.pool import Database
from service.errors import DatabaseUnreachable
from service.gathering import Gathering, Piece
from service.model import AddressVerdict
from service.settings import Settings

# Who waits for another's answer looks that often.
LOOK_SECONDS = 0.25
FIRST_RETRY_SECONDS = 60
MAX_RETRY_SECONDS = 21_600
JITTER = 0.2  # what failed together is not to come back together
RELEASE_TIMEOUT_SECONDS = 1

_Wanted = Piece[str, DomainClaim | AddressVerdict | None]


def decide_retry(failures: int, retry_after_seconds: float | None) -> float:
    """Seconds until a domain that stayed unknown `failures` times in a row is asked again."""
    doubled = FIRST_RETRY_SECONDS * 2.0 ** min(failures - 1, 16)
    jitter = random.uniform(1, 1 + JITTER)  # noqa: S311 - nothing secret
    return max(min(doubled, MAX_RETRY_SECONDS), retry_after_seconds or 0) * jitter


class Domains:
    """One for the process."""

    def __init__(
        self, db: Database, settings: Settings, check: DomainCheck, stopping: trio.Event
    ) -> None:
        self._db = db
        self._check = check
        self._stopping = stopping
        self._claims = Gathering(self._claim)
        self._answers = Gathering(self._store)
        self._asking = trio.CapacityLimiter(settings.enrich_concurrency)
        self._ttl_seconds = settings.enrich_domain_ttl_seconds
        self._expires_after_seconds = settings.domain_claim_seconds

    async def look_up(
        self, domains: Collection[str], *, within_seconds: float
    ) -> dict[str, AddressVerdict]:
        """The verdicts that could be had; missing are those that nobody could be asked in time.

        Who is asked already, at the end of the time or at the stop, is waited for.
        """
        give_up_at = trio.current_time() + within_seconds
        verdicts: dict[str, AddressVerdict] = {}
        with suppress(DatabaseUnreachable):
            verdicts |= await fetch_fresh(self._db, domains)
        async with trio.open_nursery() as nursery:
            for domain in set(domains) - verdicts.keys():
                nursery.start_soon(self._decide_into, verdicts, domain, give_up_at)
        return verdicts

    async def _decide_into(
        self, verdicts: MutableMapping[str, AddressVerdict], domain: str, give_up_at: float
    ) -> None:
        while trio.current_time() < give_up_at and not self._stopping.is_set():
            verdict = await self._decide(domain, give_up_at)
            if verdict is not None:
                verdicts[domain] = verdict
                break
            await trio.sleep(LOOK_SECONDS)

    async def _decide(self, domain: str, give_up_at: float) -> AddressVerdict | None:
        """None while somebody else asks, and when it is too late to begin."""
        with trio.move_on_at(give_up_at) as waiting:
            await self._asking.acquire()
        if waiting.cancelled_caught:
            return None
        try:
            found = None if self._stopping.is_set() else await self._claims.do(domain)
            if not isinstance(found, DomainClaim):
                return found
            verdict = await self._ask(found)
        finally:
            self._asking.release()
        if not verdict.was_asked:
            await self._release(found)
            return verdict
        return await self._answers.do(Answer(found, verdict, self._decide_ttl(found, verdict)))

    async def _claim(self, pieces: Sequence[_Wanted]) -> None:
        """Of several that want the same domain one gets the claim."""
        with suppress(DatabaseUnreachable):
            found = await claim_domains(
                self._db,
                [piece.item for piece in pieces],
                expires_after_seconds=self._expires_after_seconds,
            )
            for piece in pieces:
                one = found.get(piece.item)
                piece.complete(one)
                if isinstance(one, DomainClaim):
                    del found[piece.item]

    async def _store(self, pieces: Sequence[Piece[Answer, AddressVerdict]]) -> None:
        with suppress(DatabaseUnreachable):
            stored = await store_answers(self._db, [piece.item for piece in pieces])
            for piece in pieces:
                answer = piece.item
                as_it_came = replace(answer.verdict, retry_after_seconds=answer.ttl_seconds)
                piece.complete(stored.get(answer.claim.domain, as_it_came))

    async def _ask(self, claim: DomainClaim) -> AddressVerdict:
        try:
            return await self._check.check(claim.domain)
        except trio.Cancelled:
            with trio.move_on_after(RELEASE_TIMEOUT_SECONDS, shield=True):
                await self._release(claim)
            raise

    async def _release(self, claim: DomainClaim) -> None:
        with suppress(DatabaseUnreachable):  # then it expires
            await release_domain(self._db, claim)

    def _decide_ttl(self, claim: DomainClaim, verdict: AddressVerdict) -> float:
        if verdict.verdict == "unknown":
            return decide_retry(claim.failures + 1, verdict.retry_after_seconds)
        return self._ttl_seconds
