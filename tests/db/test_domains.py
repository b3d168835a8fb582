"""The shared verdicts on domains: one asks, the others find its claim and then its answer."""

from datetime import timedelta

import pytest
import trio

from service.db import domains
from service.db.domains import (
    Answer,
    DomainClaim,
    claim_domains,
    fetch_fresh,
    release_domain,
    store_answers,
)
from service.db.pool import Database
from service.model import AddressVerdict

VALID = AddressVerdict("valid", "mx", "takes mail", {"mx": ["10 mx.example.com"]})
UNKNOWN = AddressVerdict("unknown", "dns_timeout", "no answer within 5 s")
DOMAIN = "example.com"


async def claim(db: Database, domain: str = DOMAIN) -> DomainClaim | AddressVerdict | None:
    return (await claim_domains(db, [domain], expires_after_seconds=40)).get(domain)


async def store(
    db: Database, claim: DomainClaim, verdict: AddressVerdict, *, ttl_seconds: float
) -> AddressVerdict | None:
    stored = await store_answers(db, [Answer(claim, verdict, ttl_seconds)])
    return stored.get(claim.domain)


async def own(db: Database) -> DomainClaim:
    found = await claim(db)
    assert isinstance(found, DomainClaim)
    return found


async def age(db: Database, column: str) -> None:
    """As if a day had passed."""
    await db.fetch(f"UPDATE email_domain SET {column} = {column} - interval '1 day'")


async def test_one_asks_and_the_others_wait_for_its_answer(db: Database) -> None:
    found: list[DomainClaim | AddressVerdict | None] = []

    async def take() -> None:
        found.append(await claim(db))

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(take)
    (mine,) = [one for one in found if isinstance(one, DomainClaim)]
    assert found.count(None) == 19
    stored = await store(db, mine, VALID, ttl_seconds=3600)
    assert stored is not None
    assert stored.evidence.keys() == {"mx", "domain_checked_at"}
    assert await claim(db) == stored
    assert await fetch_fresh(db, [DOMAIN, "example.org"]) == {DOMAIN: stored}


async def test_a_verdict_that_has_expired_is_asked_for_again(db: Database) -> None:
    await store(db, await own(db), VALID, ttl_seconds=3600)
    await age(db, "expires_at")
    assert await fetch_fresh(db, [DOMAIN]) == {}
    assert (await own(db)).failures == 0
    assert await claim(db) is None


async def test_of_an_unknown_domain_the_failures_are_counted_until_it_is_known(
    db: Database,
) -> None:
    for failures in range(3):
        mine = await own(db)
        assert mine.failures == failures
        stored = await store(db, mine, UNKNOWN, ttl_seconds=60)
        assert stored is not None
        assert stored.retry_after_seconds is not None
        assert 50 < stored.retry_after_seconds <= 60
        assert isinstance(await claim(db), AddressVerdict), "not before its time"
        await age(db, "expires_at")
    await store(db, await own(db), VALID, ttl_seconds=60)
    await age(db, "expires_at")
    assert (await own(db)).failures == 0


async def test_of_one_that_died_the_claim_expires_and_its_late_answer_changes_nothing(
    db: Database,
) -> None:
    dead = await own(db)
    await age(db, "claimed_at")
    heir = await own(db)
    assert heir.stamp - dead.stamp < timedelta(minutes=1)
    assert await store(db, dead, UNKNOWN, ttl_seconds=60) is None
    assert await fetch_fresh(db, [DOMAIN]) == {}
    await release_domain(db, dead)
    assert await claim(db) is None, "still claimed by the heir"
    await store(db, heir, VALID, ttl_seconds=60)
    assert (await fetch_fresh(db, [DOMAIN]))[DOMAIN].verdict == "valid"


async def test_one_that_was_given_back_can_be_claimed_at_once(db: Database) -> None:
    await release_domain(db, await own(db))
    await own(db)


async def test_several_are_claimed_and_stored_in_one_statement_each(db: Database) -> None:
    names = ["c.example.com", "a.example.com", "b.example.com", "a.example.com"]
    await store(db, await own(db), VALID, ttl_seconds=60)
    other = await claim(db, "b.example.com")
    assert isinstance(other, DomainClaim)
    found = await claim_domains(db, [*names, DOMAIN], expires_after_seconds=40)
    assert found.keys() == {"a.example.com", "c.example.com", DOMAIN}
    claims = [one for one in found.values() if isinstance(one, DomainClaim)]
    assert {one.domain for one in claims} == {"a.example.com", "c.example.com"}
    lost = DomainClaim("b.example.com", other.stamp - timedelta(seconds=1), 0)
    answers = [Answer(one, VALID, 60) for one in (*claims, lost)]
    assert (await store_answers(db, answers)).keys() == {"a.example.com", "c.example.com"}


async def test_many_that_claim_and_store_the_same_names_do_not_deadlock(db: Database) -> None:
    names = [f"host{number}.example.com" for number in range(50)]

    async def work(order: int) -> None:
        for _ in range(10):
            found = await claim_domains(db, names[::order], expires_after_seconds=40)
            claims = [one for one in found.values() if isinstance(one, DomainClaim)]
            if claims:
                await store_answers(db, [Answer(one, VALID, 0) for one in claims[::order]])

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(work, 1 if number % 2 else -1)


@pytest.mark.parametrize("statement", [domains._CLAIM, domains._STORE])
def test_rows_are_locked_in_an_order_that_no_collation_changes(statement: str) -> None:
    """The collation of a test's database may be this one."""
    assert 'COLLATE "C"' in statement
