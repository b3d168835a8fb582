"""Transactions that take long: measured by name, warned of while open, ended when they idle."""

import logging
import re
import time
from collections.abc import Callable
from functools import partial

import psycopg
import pytest
import trio
from prometheus_client import REGISTRY, generate_latest

from service.db.long_transactions import MAX_FRAMES
from service.db.pool import MAX_CONNECTIONS, Connection, Database, open_database
from service.errors import DatabaseUnreachable
from tests.servers import PgBouncer

LOGGER = "service.db.long_transactions"
HERE = re.escape(__file__)


def count(function: str) -> float:
    labels = {"transaction": f"{__name__}:{function}"}
    return REGISTRY.get_sample_value("mailroom_transaction_seconds_count", labels) or 0


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == LOGGER and record.levelno == logging.WARNING
    ]


class Work:
    async def in_a_method(self, db: Database) -> None:
        async with db.transaction() as conn, conn.transaction():
            await conn.fetchval("SELECT 1")


async def fail_inside(db: Database) -> None:
    async with db.transaction():
        raise LookupError


async def test_transactions_are_measured_by_who_began_them(db: Database) -> None:
    async def in_a_closure() -> None:
        async with db.transaction() as conn:
            await conn.fetchval("SELECT 1")

    own = "test_transactions_are_measured_by_who_began_them.in_a_closure"
    names = (own, "Work.in_a_method", "fail_inside")
    before = [count(name) for name in names]
    for _ in range(2):
        await in_a_closure()
        await Work().in_a_method(db)  # with a savepoint, which is not one of its own
    with pytest.raises(LookupError):
        await fail_inside(db)
    assert [count(name) for name in names] == [before[0] + 2, before[1] + 2, before[2] + 1]
    line = f'mailroom_transaction_seconds_count{{transaction="{__name__}:{own}"}}'
    assert line in generate_latest().decode()


async def sleep_deep_inside(seconds: float, depth: int = 0) -> None:
    if depth:
        await sleep_deep_inside(seconds, depth - 1)
    else:
        await trio.sleep(seconds)


async def take_long(db: Database, warned: Callable[[], bool]) -> None:
    async with db.transaction():
        with trio.fail_after(5):
            while not warned():
                await sleep_deep_inside(0.02)


async def test_a_long_one_is_told_while_it_is_open_with_its_stack_and_again_at_its_end(
    db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    began = trio.current_time()
    await take_long(db, lambda: len(warnings_in(caplog)) == 1)
    assert 1 < trio.current_time() - began < 3
    while_open, at_end = warnings_in(caplog)
    name = f"the transaction {__name__}:take_long, begun at {HERE}:\\d+,"
    assert re.match(f"{name} has been open for 1 s; its task is at:\n", while_open)
    assert re.search(f'File "{HERE}", line \\d+, in sleep_deep_inside\n', while_open)
    assert "await trio.sleep(seconds)" in while_open
    assert re.fullmatch(f"{name} took \\d\\.\\d s", at_end)


async def test_a_deep_stack_is_cut_to_its_inner_end(
    db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    async with db.transaction():
        await sleep_deep_inside(1.1, depth=50)
    while_open, _ = warnings_in(caplog)
    assert while_open.count('File "') <= MAX_FRAMES
    assert "await trio.sleep(seconds)" in while_open


async def test_each_of_several_is_told_once(db: Database, caplog: pytest.LogCaptureFixture) -> None:
    async def take(seconds: float) -> None:
        await trio.sleep(seconds / 4)
        async with db.transaction():
            await trio.sleep(seconds)

    async with trio.open_nursery() as nursery:
        for seconds in (0.01, 0.1, 0.3, 1.2, 1.4, 1.6):
            nursery.start_soon(take, seconds)
    said = warnings_in(caplog)
    assert len([one for one in said if "has been open" in one]) == 3
    assert len([one for one in said if "took" in one]) == 3


async def test_short_ones_are_not_told_however_many(
    db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        end = trio.current_time() + 1.3
        while trio.current_time() < end:
            async with db.transaction() as conn:
                await conn.fetchval("SELECT 1")

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(work)
    assert warnings_in(caplog) == []


async def test_one_that_blocks_the_event_loop_is_told_at_its_end(
    db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    async with db.transaction():
        time.sleep(1.1)  # noqa: ASYNC251 - what nobody should do
    assert "took 1." in warnings_in(caplog)[-1]


# Those that idle: PostgreSQL ends them.


async def use_all_connections(db: Database) -> None:
    """MAX_CONNECTIONS tasks work at the same time."""
    async with trio.open_nursery() as nursery:
        for _ in range(MAX_CONNECTIONS):
            nursery.start_soon(db.fetch, "SELECT pg_sleep(0.01)")


async def insert(conn: Connection, key: str) -> None:
    await conn.execute("INSERT INTO rate_limit (key, tat) VALUES ($1, now())", key)


async def idle_too_long(db: Database, key: str, *, ask_again: bool) -> None:
    """What rule 1 forbids; the time-out is 5 s."""
    async with db.transaction() as conn:
        await insert(conn, key)
        await trio.sleep(5.5)
        if ask_again:
            await insert(conn, f"{key} again")


async def expect_the_end(db: Database, key: str, *, ask_again: bool) -> None:
    with pytest.raises(DatabaseUnreachable) as caught:
        await idle_too_long(db, key, ask_again=ask_again)
    said = str(caught.value)
    assert "the connection ended in the middle of the transaction" in said
    assert said.endswith("it ends one that is idle for 5s")


async def go_on(db: Database, who: str) -> None:
    for number in range(12):
        async with db.transaction() as conn:
            await insert(conn, f"{who} {number:02}")
        await trio.sleep(0.5)


async def idle_beside_others(url: str, who: str) -> None:
    async with open_database(url) as db:
        await db.connect()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(expect_the_end, db, f"{who} a", ask_again=True))
            nursery.start_soon(partial(expect_the_end, db, f"{who} b", ask_again=False))
            nursery.start_soon(go_on, db, who)
        await use_all_connections(db)


async def test_one_that_idles_is_ended_by_postgresql_and_only_that_operation_fails(
    database_url: str,
) -> None:
    """By the connection's own setting, and behind PgBouncer by that of the role."""
    with PgBouncer(database_url, server_connections=3) as bouncer:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(idle_beside_others, database_url, "direct")
            nursery.start_soon(idle_beside_others, bouncer.url, "pooled")
    with psycopg.connect(database_url) as conn:
        keys = {key for (key,) in conn.execute("SELECT key FROM rate_limit")}
    assert keys == {f"{who} {number:02}" for who in ("direct", "pooled") for number in range(12)}
