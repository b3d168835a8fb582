"""The pool: rule 1 on real connections, transactions, cancellation, and a PostgreSQL that goes."""

import gc
import inspect
import logging
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial

import psutil
import psycopg
import pytest
import trio
import trio.testing

from service.db.driver_errors import REJECTED_ERRORS, UniqueViolationError
from service.db.migrate import migrate
from service.db.pool import (
    END_TIMEOUT_SECONDS,
    MAX_CONNECTIONS,
    Connection,
    Database,
    open_connection,
    open_database,
)
from service.errors import DatabaseUnreachable, IOInsideTransaction, SchemaError, SettingsError
from service.mail.imap import ImapSession
from service.mail.imap_line import ImapLine
from service.model import ImapConnection
from service.outbound import refuse_inside_transaction
from tests.servers import PostgresCluster
from tests.servers.postgres import StopMode

INSERT = "INSERT INTO rate_limit (key, tat) VALUES ($1, now())"
KEYS = "SELECT array_agg(key ORDER BY key) FROM rate_limit"
BUSY = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query ~ '^SELECT pg_sleep'"


def reach_out() -> None:
    refuse_inside_transaction("calling example.com")


async def reach_out_later() -> None:
    await trio.lowlevel.checkpoint()
    reach_out()


async def reach_out_in_a_task() -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reach_out_later)
        nursery.start_soon(trio.sleep_forever)


def line_below() -> str:
    """The place of the line that follows the call."""
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return f"{__file__}:{frame.f_back.f_lineno + 1} "


async def keys_in(db: Database) -> list[str]:
    async with db.connection() as conn:
        return await conn.fetchval(KEYS) or []


async def test_io_inside_a_transaction_names_where_it_began(db: Database) -> None:
    place = line_below()
    async with db.transaction():
        with pytest.raises(IOInsideTransaction, match=r"calling example\.com") as caught:
            reach_out()
    assert place in str(caught.value)
    reach_out()


async def test_io_beside_a_held_connection_names_where_it_was_taken(db: Database) -> None:
    place = line_below()
    async with db.connection():
        with pytest.raises(IOInsideTransaction) as caught:
            reach_out()
    assert place in str(caught.value)
    reach_out()


async def test_a_connection_of_its_own_is_held_just_the_same(database_url: str) -> None:
    place = line_below()
    async with open_connection(database_url):
        with pytest.raises(IOInsideTransaction) as caught:
            reach_out()
    assert place in str(caught.value)
    reach_out()


async def test_functions_tasks_and_threads_are_no_way_around_it(db: Database) -> None:
    async with db.transaction() as conn, conn.transaction():
        await conn.fetchval("SELECT 1")
        with pytest.raises(IOInsideTransaction):
            await reach_out_later()
        with pytest.raises(IOInsideTransaction):
            await trio.to_thread.run_sync(reach_out)
        with pytest.raises(ExceptionGroup) as caught:
            await reach_out_in_a_task()
        assert caught.group_contains(IOInsideTransaction, depth=1)


async def test_another_database_cannot_be_reached_for_inside_a_transaction(
    db: Database, database_url: str
) -> None:
    async with db.transaction():
        with pytest.raises(IOInsideTransaction, match="connecting to the database"):
            async with open_connection(database_url):
                pytest.fail("it connected")
        with pytest.raises(IOInsideTransaction, match="connecting to the database"):
            await db.connect()


async def test_the_mail_client_refuses_to_start_inside_a_transaction(db: Database) -> None:
    connection = ImapConnection("mail.example.com", 993, "implicit", "anna")
    line = ImapLine(connection, timeout_seconds=1)
    session = ImapSession(line, "secret", trio.CapacityLimiter(1))
    steps: list[Callable[[], Awaitable[object]]] = [
        line.resolve,
        line.connect,
        line.secure,
        session.open,
        partial(line.login, "secret"),
    ]
    async with db.transaction():
        for step in steps:
            with pytest.raises(IOInsideTransaction, match=r"mail\.example\.com may not start"):
                await step()


async def test_io_that_was_refused_rolls_back_and_leaves_the_pool_usable(db: Database) -> None:
    async def write_and_reach_out() -> None:
        async with db.transaction() as conn:
            await conn.execute(INSERT, "a")
            reach_out()

    for _ in range(2 * MAX_CONNECTIONS):
        with pytest.raises(IOInsideTransaction):
            await write_and_reach_out()
    assert await keys_in(db) == []


async def test_a_transaction_commits_at_its_end(db: Database) -> None:
    async with db.transaction() as conn:
        await conn.execute(INSERT, "a")
        assert await keys_in(db) == []
    assert await keys_in(db) == ["a"]


async def test_an_exception_rolls_back_and_passes_unchanged(db: Database) -> None:
    error = LookupError("of the caller")

    async def write_and_fail() -> None:
        async with db.transaction() as conn:
            await conn.execute(INSERT, "a")
            raise error

    with pytest.raises(LookupError) as caught:
        await write_and_fail()
    assert caught.value is error
    assert await keys_in(db) == []


async def test_a_cancellation_rolls_back(db: Database) -> None:
    with trio.CancelScope() as scope:
        async with db.transaction() as conn:
            await conn.execute(INSERT, "a")
            scope.cancel()
            await trio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    assert await keys_in(db) == []


async def test_a_unique_violation_in_a_savepoint_leaves_the_outer_transaction_alive(
    db: Database,
) -> None:
    async def insert_under_a_savepoint(conn: Connection, *keys: str) -> None:
        async with conn.transaction():
            for key in keys:
                await conn.execute(INSERT, key)

    async with db.transaction() as conn:
        await conn.execute(INSERT, "a")
        with pytest.raises(UniqueViolationError):
            await insert_under_a_savepoint(conn, "b", "a")
        await conn.execute(INSERT, "c")
    assert await keys_in(db) == ["a", "c"]


async def test_cancelled_queries_end_on_the_server_and_leave_the_pool_usable(
    db: Database, database_url: str
) -> None:
    async def cancelled_soon(seconds: float) -> None:
        with trio.move_on_after(seconds) as scope:
            async with db.transaction() as conn:
                await conn.fetchval("SELECT pg_sleep(60)")
        assert scope.cancelled_caught

    async with trio.open_nursery() as nursery:
        for number in range(3 * MAX_CONNECTIONS):
            nursery.start_soon(cancelled_soon, 0.02 * number)
    with psycopg.connect(database_url) as watcher:
        assert watcher.execute(BUSY).fetchone() == (0,)
    await use_all_connections(db)


async def use_all_connections(db: Database) -> None:
    """MAX_CONNECTIONS tasks hold one at the same time."""
    left = MAX_CONNECTIONS
    all_held = trio.Event()

    async def use_one() -> None:
        nonlocal left
        async with db.transaction() as conn:
            assert await conn.fetchval("SELECT 1") == 1
            left -= 1
            if left == 0:
                all_held.set()
            await all_held.wait()

    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            for _ in range(MAX_CONNECTIONS):
                nursery.start_soon(use_one)


@pytest.mark.parametrize(
    ("sql", "value"),
    [
        (INSERT, "NUL \0 inside"),
        (INSERT, "surrogate \ud800 inside"),
        (INSERT, None),
        (INSERT, 5),
        ("SELECT $1::integer", 2**40),
        ("SELECT $1::jsonb", '"\\u0000"'),
        ("SELECT $1::jsonb", "{"),
        (  # an index row takes 2,704 bytes
            "INSERT INTO rate_limit SELECT string_agg(md5($1 || n), ''), now()"
            " FROM generate_series(1, 200) n",
            "long",
        ),
    ],
)
async def test_values_that_the_database_will_not_have_are_rejected(
    db: Database, sql: str, value: object
) -> None:
    async def send() -> None:
        async with db.transaction() as conn:
            await conn.execute(sql, value)

    with pytest.raises(REJECTED_ERRORS):
        await send()
    assert await keys_in(db) == []


async def test_a_database_that_is_not_connected_yet_is_unreachable(database_url: str) -> None:
    async with open_database(database_url) as db:
        with pytest.raises(DatabaseUnreachable, match="not connected yet"):
            await keys_in(db)


@pytest.fixture
def cluster() -> Iterator[PostgresCluster]:
    """A PostgreSQL that may be stopped."""
    with PostgresCluster() as cluster:
        yield cluster


@pytest.mark.parametrize("how", ["fast", "immediate"])
async def test_a_postgresql_that_went_away_is_used_again_without_reopening(
    cluster: PostgresCluster, how: StopMode
) -> None:
    async def lose_it_in_the_middle(db: Database) -> None:
        async with db.transaction() as conn:
            await conn.fetchval("SELECT 1")
            cluster.stop(how)
            await conn.fetchval("SELECT 1")

    async with open_database(cluster.url) as db:
        await db.connect()
        await use_all_connections(db)
        with pytest.raises(DatabaseUnreachable, match=r"cannot be reached|ended in the middle"):
            await lose_it_in_the_middle(db)
        for _ in range(2 * MAX_CONNECTIONS):
            with pytest.raises(DatabaseUnreachable, match="PostgreSQL cannot be reached"):
                await keys_in(db)
        cluster.start()
        await use_all_connections(db)


async def test_giving_up_on_a_postgresql_that_hangs_harms_nobody(cluster: PostgresCluster) -> None:
    async with open_database(cluster.url) as db:
        await db.connect()
        cluster.stop()
        with socket.create_server(("127.0.0.1", cluster.port)):  # it accepts and says nothing
            for step in range(100):  # at each point of the way
                with trio.move_on_after(0.0001 * step) as scope:
                    await keys_in(db)
                assert scope.cancelled_caught
        gc.collect()  # what asyncio has to say of the futures that nobody awaits any more
        await trio.sleep(0.1)
        cluster.start()
        await use_all_connections(db)


@pytest.fixture
def freeze(cluster: PostgresCluster) -> Iterator[Callable[[], None]]:
    """Makes PostgreSQL silent, as behind a broken network, until the end of the test."""
    frozen: list[psutil.Process] = []

    def suspend() -> None:
        with psycopg.connect(cluster.url) as conn:
            postmaster = psutil.Process(conn.info.backend_pid).parent()
        assert postmaster is not None
        for process in (postmaster, *postmaster.children()):
            process.suspend()
            frozen.append(process)

    yield suspend
    for process in frozen:
        with suppress(psutil.NoSuchProcess):  # a worker at its end
            process.resume()


async def test_a_postgresql_that_falls_silent_does_not_hold_up_the_end(
    cluster: PostgresCluster, freeze: Callable[[], None]
) -> None:
    is_silent = trio.Event()

    async def in_a_statement(db: Database) -> None:
        await is_silent.wait()
        await keys_in(db)

    async def in_a_savepoint(db: Database) -> None:
        async with db.transaction() as conn, conn.transaction():
            await trio.sleep_forever()

    async def in_a_commit(db: Database) -> None:
        async with db.transaction() as conn:
            await conn.execute(INSERT, "a")
            await is_silent.wait()

    async def start(work: Callable[[Database], Awaitable[None]], db: Database) -> None:
        with suppress(DatabaseUnreachable):
            await work(db)

    await migrate(cluster.url)
    async with open_database(cluster.url) as db:
        await db.connect()
        await use_all_connections(db)
        with trio.move_on_after(1) as scope:
            async with trio.open_nursery() as nursery:
                for work in (in_a_statement, in_a_savepoint, in_a_commit):
                    nursery.start_soon(start, work, db)
                await trio.testing.wait_all_tasks_blocked(0.1)
                freeze()
                is_silent.set()
        assert scope.cancel_called
        began = trio.current_time()
    assert trio.current_time() - began < END_TIMEOUT_SECONDS + 1
    assert began - scope.deadline < END_TIMEOUT_SECONDS + 1


async def test_connecting_waits_until_it_can_and_says_once_why_not(
    cluster: PostgresCluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.stop()
    async with open_database(cluster.url) as db:
        with pytest.raises(DatabaseUnreachable):
            await db.connect()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(db.connect_when_reachable)
            await trio.sleep(2.5)  # two more attempts
            cluster.start()
        await use_all_connections(db)
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    reasons = {record.getMessage() for record in warnings}
    assert any("PostgreSQL cannot be reached" in reason for reason in reasons)
    assert len(warnings) == len(reasons) <= 2, "the server's start may be the second reason"


UNREACHABLE = [
    "postgresql://postgres@127.0.0.1:1/postgres",
    "postgresql://postgres@no-such-host.invalid/postgres",
    "postgresql://postgres@127.0.0.1:{port}/no_such_database",
    "postgresql://no_such_role:geheim-5@127.0.0.1:{port}/postgres",
    "postgresql://postgres@127.0.0.1:{port}/postgres?sslmode=require",
]
WRONG = [
    "postgresql://anna:geheim-5/6@127.0.0.1:{port}/postgres",
    "postgresql://anna:geheim-5@127.0.0.1:port/postgres",
    "postgresql://[::1/postgres",
    "postgresql://postgres@127.0.0.1:{port}/postgres?sslmode=maybe",
    "postgresql://postgres@127.0.0.1:{port}/postgres?schema=public",
]


@pytest.mark.parametrize(
    ("url", "error"),
    [(url, DatabaseUnreachable) for url in UNREACHABLE] + [(url, SettingsError) for url in WRONG],
)
async def test_what_is_wrong_with_a_url_comes_out_as_one_line_without_the_password(
    postgres: PostgresCluster, url: str, error: type[Exception]
) -> None:
    url = url.replace("{port}", str(postgres.port))
    with pytest.raises(error) as caught:
        async with open_connection(url):
            pytest.fail("it connected")
    async with open_database(url) as db:
        with pytest.raises(error, match=r"PostgreSQL cannot be reached|^DATABASE_URL: "):
            await db.connect()
    assert len(str(caught.value).splitlines()) == 1
    assert "geheim" not in str(caught.value)


async def test_a_role_without_rights_is_told_so(db: Database) -> None:
    async def read_as_a_stranger() -> None:
        async with db.transaction() as conn:
            await conn.execute("SET LOCAL ROLE pg_monitor")
            await conn.fetch("SELECT * FROM request")

    with pytest.raises(SchemaError, match="permission denied for table request") as caught:
        await read_as_a_stranger()
    assert caught.value.hint is not None


async def test_an_error_leaves_a_database_as_itself(database_url: str) -> None:
    with pytest.raises(LookupError):
        async with open_database(database_url):
            raise LookupError
    with pytest.raises(LookupError):
        async with open_connection(database_url):
            raise LookupError
