"""The loop on a real database: every row is decided, put off with a reason, or given back."""

import json
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
import trio.testing
from prometheus_client import REGISTRY

from service.db.pool import Database
from service.health import Health
from service.loops.enricher import Enricher
from service.settings import Settings
from tests.enrich.scripted_check import DOWN, INVALID, UNKNOWN, ScriptedCheck

DISPOSABLE = "mailinator.com"


def create(
    db: Database, check: ScriptedCheck, health: Health | None = None, **settings: Any
) -> Enricher:
    return Enricher(db, Settings.load(**settings), check, health or Health())


async def insert(db: Database, *emails: str | None) -> None:
    await db.fetch("INSERT INTO job_advertisement (email) SELECT unnest($1::text[])", list(emails))


async def rows_of(db: Database) -> list[tuple[str | None, bool | None, str | None]]:
    """Address, verdict and reason of each row."""
    rows = await db.fetch("SELECT * FROM job_advertisement ORDER BY id")
    return [
        (
            row["email"],
            row["email_verified"],
            json.loads(row["email_check"])["reason"] if row["email_check"] else None,
        )
        for row in rows
    ]


async def count_claimed(db: Database) -> int:
    (row,) = await db.fetch("SELECT count(email_check_claimed_at) FROM job_advertisement")
    return int(row[0])


async def is_decided(db: Database, email: str) -> bool:
    return any(row[0] == email and row[1] is not None for row in await rows_of(db))


async def until(condition: Callable[[], Awaitable[object]]) -> None:
    with trio.fail_after(10):
        while True:
            if await condition():
                return
            await trio.sleep(0.02)


async def enrich(enricher: Enricher) -> int:
    """One look, and the end of all that it has found; how many batches."""
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            claimed = await enricher.enrich_due_once(nursery)
    return claimed


async def test_each_row_gets_its_verdict(db: Database) -> None:
    await insert(
        db,
        "anna@example.com",
        "INFO@Example.COM",
        "bob@gone.example.com",
        "carl@silent.example.com",
        f"dora@{DISPOSABLE}",
        "no address",
        None,
        "",
        "x" * 10_240 + "@example.com",
        "eve@münchen.example.com",
        '"fay fay"@example.com',
        "gus@☕.example.com",
        "hal@[192.0.2.1]",
        "ida@example.com\r\nBcc: all@example.com",
    )
    check = ScriptedCheck({"gone.example.com": INVALID, "silent.example.com": UNKNOWN})
    before = REGISTRY.get_sample_value("mailroom_enriched_rows_total", {"verdict": "invalid"}) or 0
    assert await enrich(create(db, check)) == 1
    assert [(verified, reason) for _, verified, reason in await rows_of(db)] == [
        (True, "mx"),
        (True, "mx"),
        (False, "no_such_domain"),
        (None, "dns_timeout"),
        (False, "disposable_domain"),
        (False, "syntax"),
        (False, "empty"),
        (False, "empty"),
        (False, "too_long"),
        (True, "mx"),
        (True, "mx"),
        (False, "syntax"),
        (False, "ip_literal"),
        (False, "syntax"),
    ]
    assert check.asked == dict.fromkeys(
        (
            "example.com",
            "gone.example.com",
            "silent.example.com",
            "xn--mnchen-3ya.example.com",
        ),
        1,
    )
    after = REGISTRY.get_sample_value("mailroom_enriched_rows_total", {"verdict": "invalid"})
    assert after == before + 9
    rows = await db.fetch("SELECT email_check FROM job_advertisement ORDER BY id LIMIT 2")
    anna, info = (json.loads(row[0])["evidence"] for row in rows)
    assert anna.keys() == {"domain", "mx", "domain_checked_at"}
    assert info == {**anna, "role_account": True}
    assert await enrich(create(db, check)) == 0, "nothing is due"


async def test_batches_go_side_by_side_and_no_more_than_there_are_partitions(
    db: Database,
) -> None:
    await insert(db, *(f"anna@host{number}.example.com" for number in range(50)))
    started, gate = trio.Event(), trio.Event()

    async def wait(_domain: str) -> None:
        if check.asking == 6:
            started.set()
        await gate.wait()

    check = ScriptedCheck(before=wait)
    one = create(db, check, enrich_partitions=3, enrich_batch_size=2, enrich_concurrency=50)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(enrich, one)
        with trio.fail_after(5):
            await started.wait()
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert check.asking == 6
        assert await count_claimed(db) == 6, "the rest is for other replicas"
        gate.set()
    assert await count_claimed(db) == 0
    assert {verified for _, verified, _ in await rows_of(db)} == {True}
    assert set(check.asked.values()) == {1}


async def test_nothing_is_claimed_while_asking_is_of_no_use(db: Database) -> None:
    await insert(db, "anna@example.com")
    check = ScriptedCheck(pause_seconds=30)
    assert await enrich(create(db, check)) == 0
    assert await rows_of(db) == [("anna@example.com", None, None)]
    check.pause_seconds = 0
    assert await enrich(create(db, check)) == 1
    assert await rows_of(db) == [("anna@example.com", True, "mx")]


async def test_what_could_not_be_asked_waits_with_its_reason(db: Database) -> None:
    await insert(db, "anna@example.com", "bob@example.org")
    await enrich(create(db, ScriptedCheck({"example.com": DOWN})))
    assert await rows_of(db) == [
        ("anna@example.com", None, "api_down"),
        ("bob@example.org", True, "mx"),
    ]
    (row,) = await db.fetch(
        "SELECT extract(epoch FROM email_check_not_before - now()) AS seconds"
        " FROM job_advertisement WHERE email_verified IS NULL"
    )
    assert 290 < row["seconds"] <= 300


async def test_what_nobody_could_be_asked_in_time_is_given_back_undecided(db: Database) -> None:
    await insert(db, "anna@a.example.com", "bob@b.example.com", "no address")

    async def take_too_long(_domain: str) -> None:
        await trio.sleep(2.5)

    check = ScriptedCheck(before=take_too_long)
    one = create(db, check, watchdog_stuck_after_seconds=4, enrich_concurrency=1)
    async with trio.open_nursery() as nursery:
        await one.enrich_due_once(nursery)
        await until(lambda: is_decided(db, "no address"))
        assert len(check.asked) == 1
        assert await count_claimed(db) == 0
        nursery.cancel_scope.cancel()
    decided = [verified for _, verified, _ in await rows_of(db)]
    assert sorted(map(str, decided)) == ["False", "None", "True"]


@pytest.mark.expects_errors
async def test_a_row_that_postgresql_refuses_costs_its_neighbours_nothing(db: Database) -> None:
    await insert(db, *(f"user{number}@example.com" for number in range(20)))
    await db.fetch(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " RAISE EXCEPTION 'never'; END $$"
    )
    await db.fetch(
        "CREATE TRIGGER refuse BEFORE UPDATE OF email_verified ON job_advertisement FOR EACH ROW"
        " WHEN (NEW.email = 'user7@example.com') EXECUTE FUNCTION refuse()"
    )
    one = create(db, ScriptedCheck())
    await enrich(one)
    undecided = [email for email, verified, _ in await rows_of(db) if verified is None]
    assert undecided == ["user7@example.com"]
    assert (one.decided["valid"], one.failed) == (19, 1)
    assert await enrich(one) == 0, "not before its claim is too old"


async def test_a_changed_address_is_checked_anew(db: Database) -> None:
    await insert(db, "anna@example.com", "bob@silent.example.com", "carl@example.com")
    check = ScriptedCheck({"silent.example.com": UNKNOWN})
    await enrich(create(db, check))
    await db.fetch("UPDATE job_advertisement SET email = 'x@example.org' WHERE email LIKE 'anna%'")
    await db.fetch("UPDATE job_advertisement SET email = 'y@example.org' WHERE email LIKE 'bob%'")
    await db.fetch(
        "UPDATE job_advertisement SET email = 'z@example.org', email_verified = false"
        " WHERE email LIKE 'carl%'"
    )
    assert sorted(await rows_of(db)) == [
        ("x@example.org", None, None),
        ("y@example.org", None, None),
        ("z@example.org", False, "mx"),  # somebody knew it
    ]
    await enrich(create(db, check))
    assert sorted(await rows_of(db))[:2] == [
        ("x@example.org", True, "mx"),
        ("y@example.org", True, "mx"),
    ]


async def test_a_stop_gives_back_what_is_under_way(db: Database) -> None:
    await insert(db, "anna@example.com")
    is_asked = trio.Event()

    async def hang(_domain: str) -> None:
        is_asked.set()
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        await create(db, ScriptedCheck(before=hang)).enrich_due_once(nursery)
        with trio.fail_after(5):
            await is_asked.wait()
        nursery.cancel_scope.cancel()
    assert await count_claimed(db) == 0
    assert await enrich(create(db, ScriptedCheck())) == 1


async def test_the_loop_ends_at_the_stop_and_beats_meanwhile(db: Database) -> None:
    await insert(db, "anna@example.com")
    health = Health()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(create(db, ScriptedCheck(), health).run)
        await until(lambda: is_decided(db, "anna@example.com"))
        health.stopping.set()
    (heartbeat,) = health.heartbeats
    assert heartbeat.name == "enricher"
    assert heartbeat.failures_in_a_row == 0
    assert not heartbeat.is_late


@pytest.mark.expects_errors
async def test_a_crash_costs_one_batch_which_is_due_again_later(
    db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    await insert(db, "anna@broken.example.com", "bob@example.com")

    async def crash(domain: str) -> None:
        if domain == "broken.example.com":
            raise RuntimeError("a fault of ours")

    check = ScriptedCheck(before=crash)
    assert await enrich(create(db, check, enrich_batch_size=1)) == 2
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    verdicts = Counter(verified for _, verified, _ in await rows_of(db))
    assert verdicts == {True: 1, None: 1}
    assert await count_claimed(db) == 1
