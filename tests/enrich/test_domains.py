"""Verdicts on domains: asked once for all who want them, bounded, kept, and never lost for long."""

import pytest
import trio

from service.db.pool import Database
from service.domains import FIRST_RETRY_SECONDS, JITTER, MAX_RETRY_SECONDS, Domains, decide_retry
from service.settings import Settings
from tests.enrich.scripted_check import DOWN, INVALID, UNKNOWN, VALID, ScriptedCheck, never

DOMAINS = [f"host{number}.example.com" for number in range(30)]


def create(db: Database, check: ScriptedCheck, *, concurrency: int = 16) -> Domains:
    return Domains(db, Settings.load(enrich_concurrency=concurrency), check)


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


async def test_what_cannot_be_had_in_time_is_missing_and_somebody_else_may_ask(
    db: Database,
) -> None:
    check = ScriptedCheck(before=never)
    verdicts = await create(db, check).look_up(DOMAINS[:2], within_seconds=0.3)
    assert verdicts == {}
    assert check.asked == dict.fromkeys(DOMAINS[:2], 1)
    other = ScriptedCheck()
    verdicts = await create(db, other).look_up(DOMAINS[:2], within_seconds=20)
    assert verdicts.keys() == set(DOMAINS[:2])


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
    domains = Domains(db, settings, check)
    with trio.fail_after(5):
        while check.asked[DOMAINS[0]] < 3:
            await domains.look_up(DOMAINS[:1], within_seconds=20)
