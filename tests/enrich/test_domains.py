"""Verdicts on domains: asked once for all who want them, bounded, kept, and never lost for long."""

from functools import partial

import psycopg
import pytest
import trio

from service.db.pool import LOCK_TIMEOUT, Database, open_database
from service.domains import FIRST_RETRY_SECONDS, JITTER, MAX_RETRY_SECONDS, Domains, decide_retry
from service.model import AddressVerdict
from service.settings import Settings
from tests.enrich.scripted_check import DOWN, INVALID, UNKNOWN, VALID, ScriptedCheck

# As long as a statement waits for a lock, and a moment more.
LOCK_SECONDS = int(LOCK_TIMEOUT.removesuffix("s")) + 0.5
DOMAINS = [f"host{number}.example.com" for number in range(30)]


def create(db: Database, check: ScriptedCheck, *, concurrency: int = 16) -> Domains:
    return Domains(db, Settings.load(enrich_concurrency=concurrency), check, trio.Event())


async def short(_domain: str) -> None:
    await trio.sleep(0.02)


async def test_each_domain_is_asked_once_by_all_partitions_and_replicas(db: Database) -> None:
    check = ScriptedCheck({DOMAINS[0]: INVALID}, before=short)
    replicas = [create(db, check), create(db, check)]
    found = []

    async def want(domains: Domains) -> None:
        found.append(await domains.look_up(DOMAINS, within_seconds=20))

    async with trio.open_nursery() as nursery:
        for number in range(8):
            nursery.start_soon(want, replicas[number % 2])
    assert check.asked == dict.fromkeys(DOMAINS, 1)
    for verdicts in found:
        assert verdicts == found[0]
        assert verdicts.keys() == set(DOMAINS)
    assert found[0][DOMAINS[0]].verdict == "invalid"
    assert {found[0][domain].verdict for domain in DOMAINS[1:]} == {"valid"}


async def test_no_more_are_asked_at_a_time_than_allowed(db: Database) -> None:
    check = ScriptedCheck(before=short)
    await create(db, check, concurrency=3).look_up(DOMAINS, within_seconds=20)
    assert check.most_at_once == 3


async def test_what_is_unknown_backs_off_and_is_not_asked_meanwhile(db: Database) -> None:
    check = ScriptedCheck({DOMAINS[0]: UNKNOWN})
    domains = create(db, check)
    for _ in range(3):
        verdict = (await domains.look_up(DOMAINS[:1], within_seconds=20))[DOMAINS[0]]
        assert verdict.reason == "dns_timeout"
        assert verdict.retry_after_seconds is not None
        assert 50 < verdict.retry_after_seconds <= FIRST_RETRY_SECONDS * (1 + JITTER)
    assert check.asked[DOMAINS[0]] == 1


async def test_what_was_not_asked_is_no_failure_and_is_not_kept(db: Database) -> None:
    check = ScriptedCheck({DOMAINS[0]: DOWN})
    domains = create(db, check)
    assert (await domains.look_up(DOMAINS[:1], within_seconds=20)) == {DOMAINS[0]: DOWN}
    check.verdicts = {}
    assert (await domains.look_up(DOMAINS[:1], within_seconds=20))[DOMAINS[0]].reason == "mx"


async def test_at_the_end_of_the_time_nobody_else_is_asked_but_who_was_is_waited_for(
    db: Database,
) -> None:
    async def take_too_long(_domain: str) -> None:
        await trio.sleep(1)

    check = ScriptedCheck(before=take_too_long)
    domains = create(db, check, concurrency=1)
    verdicts = await domains.look_up(DOMAINS[:5], within_seconds=0.5)
    assert verdicts.keys() == check.asked.keys()
    assert len(verdicts) == 1
    check.before = short
    assert (await domains.look_up(DOMAINS[:5], within_seconds=20)).keys() == set(DOMAINS[:5])


@pytest.mark.parametrize("delay_seconds", [0, 0.001, 0.003, 0.01, 0.03])
async def test_a_stop_leaves_no_claim(db: Database, delay_seconds: float) -> None:
    """Whatever it comes upon: a claim, an ask or the storing of an answer."""
    stopping = trio.Event()
    check = ScriptedCheck(before=short)
    settings = Settings.load(enrich_concurrency=4)
    domains = Domains(db, settings, check, stopping)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(domains.look_up, DOMAINS, within_seconds=20))
        await trio.sleep(delay_seconds)
        stopping.set()
    rows = await db.fetch(
        "SELECT count(claimed_at) AS claimed, count(verdict) AS n FROM email_domain"
    )
    assert (rows[0]["claimed"], rows[0]["n"]) == (0, check.asked.total())


async def test_who_is_cancelled_gives_back_what_is_being_asked(db: Database) -> None:
    is_asked = trio.Event()

    async def hang(_domain: str) -> None:
        is_asked.set()
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        domains = create(db, ScriptedCheck(before=hang))
        nursery.start_soon(partial(domains.look_up, DOMAINS[:1], within_seconds=20))
        await is_asked.wait()
        nursery.cancel_scope.cancel()
    other = create(db, ScriptedCheck())
    assert (await other.look_up(DOMAINS[:1], within_seconds=20)).keys() == set(DOMAINS[:1])


async def test_a_database_that_is_away_for_a_moment_costs_no_second_question(
    database_url: str,
) -> None:
    """The answer is kept until it can be stored."""
    is_asked, gate = trio.Event(), trio.Event()

    async def wait(_domain: str) -> None:
        is_asked.set()
        await gate.wait()

    check = ScriptedCheck(before=wait)
    found: dict[str, AddressVerdict] = {}
    async with open_database(database_url) as db, trio.open_nursery() as nursery:
        await db.connect()
        domains = create(db, check)

        async def look() -> None:
            found.update(await domains.look_up(DOMAINS[:1], within_seconds=20))

        nursery.start_soon(look)
        await is_asked.wait()
        with psycopg.connect(database_url) as conn:
            conn.execute("LOCK TABLE email_domain")
            gate.set()
            await trio.sleep(LOCK_SECONDS)
            assert not found
    assert found.keys() == check.asked.keys() == set(DOMAINS[:1])


@pytest.mark.parametrize(
    ("failures", "asked_seconds", "least_seconds"),
    [
        (1, None, FIRST_RETRY_SECONDS),
        (2, None, 2 * FIRST_RETRY_SECONDS),
        (3, 10, 4 * FIRST_RETRY_SECONDS),
        (3, 1000, 1000),
        (50, None, MAX_RETRY_SECONDS),
        (10_000, None, MAX_RETRY_SECONDS),
        (1, 86_400, 86_400),
    ],
)
def test_the_pause_doubles_and_honours_what_was_asked(
    failures: int, asked_seconds: float | None, least_seconds: float
) -> None:
    for _ in range(20):
        seconds = decide_retry(failures, asked_seconds)
        assert least_seconds <= seconds <= least_seconds * (1 + JITTER)


async def test_a_verdict_is_kept_as_long_as_the_setting_says(db: Database) -> None:
    check = ScriptedCheck({DOMAINS[0]: VALID})
    settings = Settings.load(enrich_domain_ttl_seconds=0.05)
    domains = Domains(db, settings, check, trio.Event())
    with trio.fail_after(5):
        while check.asked[DOMAINS[0]] < 3:
            await domains.look_up(DOMAINS[:1], within_seconds=20)
