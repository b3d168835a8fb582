"""Behind PgBouncer in transaction mode everything works as on PostgreSQL itself."""

from collections.abc import AsyncIterator

import psycopg
import pytest
import trio

from service.db.attachments import recover_stuck_attachments
from service.db.mailboxes import claim_due, complete_poll, insert_mailbox, move_cursor
from service.db.migrate import check_schema, migrate
from service.db.pool import MAX_CONNECTIONS, Database, open_database
from service.db.quarantine import insert_quarantined, list_quarantine
from service.db.request_views import list_requests
from service.db.requests import store_requests
from service.errors import DatabaseUnreachable
from service.model import FailedMessage, ImapConnection, ImapCursor
from tests.db.rows import new_file, new_request
from tests.servers import PgBouncer, PostgresCluster

FAILED = FailedMessage("4", "fetch", "NO")
PREPARED = "SELECT count(*) FROM pg_prepared_statements"
IDLE_IN_TRANSACTION = """
    SELECT pid FROM pg_stat_activity
    WHERE datname = current_database() AND state = 'idle in transaction'
"""


@pytest.fixture
async def pooled(pgbouncer: PgBouncer) -> AsyncIterator[Database]:
    """The service's pool on PgBouncer, which has two server connections."""
    async with open_database(pgbouncer.url) as database:
        await database.connect()
        yield database


async def test_statements_are_prepared_only_where_nobody_is_in_between(
    db: Database, pooled: Database
) -> None:
    async with db.transaction() as conn:
        await conn.fetchval("SELECT $1::integer", 1)
        assert await conn.fetchval(PREPARED) > 0
    async with pooled.transaction() as conn:
        await conn.fetchval("SELECT $1::integer", 1)
        assert await conn.fetchval(PREPARED) == 0


async def test_single_statements_of_many_tasks_share_two_server_connections(
    pooled: Database,
) -> None:
    async def work(number: int) -> None:
        for step in range(20):
            async with pooled.connection() as conn:
                assert await conn.fetchval("SELECT $1::integer + $2", number, step) == number + step
                assert await conn.fetchval("SELECT $1::text || ''", f"{number}") == f"{number}"
                assert await conn.fetch("SELECT unnest($1::bigint[])", [number]) == [(number,)]

    async with trio.open_nursery() as nursery:
        for number in range(2 * MAX_CONNECTIONS):
            nursery.start_soon(work, number)


async def test_a_poll_goes_through(pooled: Database) -> None:
    async with pooled.connection() as conn:
        await check_schema(conn)
    async with pooled.transaction() as conn:
        for number in range(3):
            await insert_mailbox(
                conn,
                address=f"user{number}@example.com",
                connection=ImapConnection("mail.example.com", 993, "implicit", "anna"),
                secret=b"token",
                poll_interval_seconds=120,
                ingest_all=True,
                ingest_since=None,
            )
    async with pooled.transaction() as conn, pooled.transaction() as other:
        first, second = await claim_due(conn, 2), await claim_due(other, 2)
    assert (len(first), len(second)) == (2, 1)
    mails = [new_request(f"<{n}@example.com>", attachments=(new_file(b"%PDF-"),)) for n in "abca"]
    async with pooled.transaction() as conn:
        claim = first[0]
        await move_cursor(conn, claim, ImapCursor(7, 3))
        outcomes = await store_requests(conn, claim.mailbox_id, mails)
        await insert_quarantined(
            conn, claim.mailbox_id, {"uid": 4}, FailedMessage("4", "fetch", "NO")
        )
        await complete_poll(conn, claim)
        await recover_stuck_attachments(conn, stuck_after_seconds=900, max_attempts=5)
    assert outcomes == ["stored", "stored", "stored", "duplicate"]
    assert len((await list_requests(pooled, limit=10)).requests) == 3
    async with pooled.connection() as conn:
        assert len(await list_quarantine(conn, include_resolved=False)) == 1


async def test_replicas_that_store_the_same_mails_at_once(pooled: Database) -> None:
    outcomes: list[str] = []

    async def replica(numbers: list[int]) -> None:
        mails = [new_request(f"<{number}@example.com>") for number in numbers]
        async with pooled.transaction() as conn:
            outcomes.extend(await store_requests(conn, None, mails))

    async with trio.open_nursery() as nursery:
        for step in (1, -1) * 4:
            nursery.start_soon(replica, list(range(30))[::step])
    assert outcomes.count("stored") == 30
    assert outcomes.count("duplicate") == 7 * 30


async def test_a_cancelled_query_leaves_the_pool_usable(pooled: Database) -> None:
    for _ in range(5):
        with trio.move_on_after(0.05) as scope:
            async with pooled.transaction() as conn:
                await conn.fetchval("SELECT pg_sleep(60)")
        assert scope.cancelled_caught
    with trio.fail_after(5):
        async with pooled.connection() as conn, pooled.connection() as other:
            assert await conn.fetchval("SELECT 1") == await other.fetchval("SELECT 1") == 1


async def test_a_forgotten_transaction_is_ended_also_where_postgresql_would_let_it_be(
    db: Database, pooled: Database
) -> None:
    async def forget() -> None:
        async with pooled.transaction() as conn:
            await conn.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
            with trio.fail_after(8):
                while await db.fetch(IDLE_IN_TRANSACTION):  # noqa: ASYNC110
                    await trio.sleep(0.1)
            await conn.fetchval("SELECT 1")

    with pytest.raises(DatabaseUnreachable):
        await forget()
    async with pooled.transaction() as conn:
        assert await conn.fetchval("SELECT 1") == 1


async def test_a_restart_of_postgresql_costs_what_is_under_way_and_nothing_more() -> None:
    async def be_interrupted(db: Database, cluster: PostgresCluster) -> None:
        async with db.transaction() as conn:
            await conn.fetchval("SELECT 1")
            cluster.restart()
            await conn.fetchval("SELECT 1")

    with PostgresCluster() as cluster, PgBouncer(cluster.url) as bouncer:
        async with open_database(bouncer.url) as db:
            await db.connect()
            with pytest.raises(DatabaseUnreachable):
                await be_interrupted(db, cluster)
            async with db.transaction() as conn:
                assert await conn.fetchval("SELECT 1") == 1


async def count_warnings(url: str, caplog: pytest.LogCaptureFixture) -> int:
    caplog.clear()
    with PgBouncer(url) as bouncer:  # no server connection from before
        async with open_database(bouncer.url) as database:
            await database.connect()
    return caplog.text.count("a forgotten transaction holds its connection for ever")


async def test_a_role_without_time_outs_is_told_so(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The schema was migrated by another one."""
    url = database_url.replace("postgres@", "clerk@")
    with psycopg.connect(database_url, autocommit=True) as conn:
        conn.execute("CREATE ROLE clerk LOGIN SUPERUSER")
        try:
            assert await count_warnings(url, caplog) == 1
            await migrate(url)
            assert await count_warnings(url, caplog) == 0
            assert await count_warnings(database_url, caplog) == 0
        finally:
            conn.execute("DROP ROLE clerk")
