"""The schema: migrated once whoever starts first, refused when unknown, closed to bad states."""

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path

import psycopg
import pytest
import trio
from psycopg import sql
from psycopg.types.json import Jsonb

from service.db.migrate import check_schema, known_version, migrate
from service.db.pool import Database, open_connection
from service.errors import SchemaError
from tests.servers import PgBouncer, PostgresCluster

TABLES = {
    "api_token",
    "attachment",
    "email_domain",
    "email_mailbox_config",
    "enrich_import",
    "job_advertisement",
    "quarantine",
    "rate_limit",
    "request",
    "schema_version",
    "webhook_outbox",
}


_numbers = itertools.count(1)


@pytest.fixture
def empty_url(postgres: PostgresCluster) -> Iterator[str]:
    """A database without tables, for this test alone."""
    name = f"empty_{next(_numbers)}"
    yield postgres.create_database(name)
    postgres.drop_database(name)


def tables_of(url: str) -> set[str]:
    with psycopg.connect(url) as conn:
        rows = conn.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        return {name for (name,) in rows}


def execute(url: str, statement: str) -> None:
    with psycopg.connect(url) as conn:
        conn.execute(statement)


async def test_an_empty_database_gets_all_tables_at_the_newest_version(empty_url: str) -> None:
    assert await migrate(empty_url) == (0, known_version())
    assert tables_of(empty_url) == TABLES
    async with open_connection(empty_url) as conn:
        await check_schema(conn)


async def test_migrating_again_changes_nothing(empty_url: str) -> None:
    await migrate(empty_url)
    execute(empty_url, "INSERT INTO rate_limit VALUES ('kept', now())")
    assert await migrate(empty_url) == (known_version(), known_version())
    with psycopg.connect(empty_url) as conn:
        assert conn.execute("SELECT key FROM rate_limit").fetchall() == [("kept",)]
        assert conn.execute("SELECT version FROM schema_version").fetchall() == [(known_version(),)]


SHAPE = """
    SELECT format('%s is %s', relname, relpersistence) FROM pg_class
    WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace
    UNION ALL
    SELECT format('%s.%s %s %s %s', c.relname, attname, format_type(atttypid, atttypmod),
                  attnotnull, attstorage)
    FROM pg_attribute a JOIN pg_class c ON c.oid = attrelid
    WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace AND attnum > 0
    UNION ALL
    SELECT format('%s %s', conrelid::regclass, pg_get_constraintdef(oid)) FROM pg_constraint
    WHERE connamespace = 'public'::regnamespace
    UNION ALL
    SELECT indexdef FROM pg_indexes WHERE schemaname = 'public'
"""


def shape_of(url: str) -> list[str]:
    """Tables, columns, constraints and indexes, whatever their order."""
    with psycopg.connect(url) as conn:
        return sorted(text for (text,) in conn.execute(SHAPE))


async def test_the_first_version_becomes_what_an_empty_database_gets(
    empty_url: str, database_url: str
) -> None:
    execute(empty_url, (Path(__file__).parent / "schema_0001.sql").read_text("utf-8"))
    execute(empty_url, "INSERT INTO schema_version (version) VALUES (1)")
    execute(empty_url, "INSERT INTO rate_limit VALUES ('kept', now())")
    async with open_connection(empty_url) as conn:
        with pytest.raises(SchemaError, match="at version 1, this service needs"):
            await check_schema(conn)
    assert await migrate(empty_url) == (1, known_version())
    async with open_connection(empty_url) as conn:
        await check_schema(conn)
        assert await conn.fetchval("SELECT key FROM rate_limit") == "kept"
    assert shape_of(empty_url) == shape_of(database_url)


async def test_of_five_that_start_at_once_one_applies_and_all_succeed(empty_url: str) -> None:
    results: list[tuple[int, int]] = []

    async def start() -> None:
        results.append(await migrate(empty_url))

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(start)
    assert sorted(results) == [(0, known_version())] + [(known_version(), known_version())] * 4
    assert tables_of(empty_url) == TABLES


async def test_a_newer_schema_is_refused_and_left_alone(empty_url: str) -> None:
    await migrate(empty_url)
    execute(empty_url, "UPDATE schema_version SET version = 99")
    with pytest.raises(SchemaError, match=r"at version 99, newer than the \d+ that") as caught:
        await migrate(empty_url)
    assert caught.value.hint is not None
    async with open_connection(empty_url) as conn:
        with pytest.raises(SchemaError, match="at version 99, newer than"):
            await check_schema(conn)
        assert await conn.fetchval("SELECT version FROM schema_version") == 99


async def test_a_missing_schema_is_refused_with_the_command_that_makes_it(empty_url: str) -> None:
    async with open_connection(empty_url) as conn:
        with pytest.raises(SchemaError, match="at version 0") as caught:
            await check_schema(conn)
    assert caught.value.hint == "run: python -m service migrate"


async def test_a_database_of_something_else_is_left_as_it_was(empty_url: str) -> None:
    execute(empty_url, "CREATE TABLE request (id integer)")
    with pytest.raises(SchemaError, match='"request" already exists') as caught:
        await migrate(empty_url)
    assert caught.value.hint == "give mailroom a database of its own"
    assert tables_of(empty_url) == {"request"}


async def test_a_role_that_may_not_create_tables_is_told_so(
    postgres: PostgresCluster, empty_url: str
) -> None:
    execute(postgres.url, "CREATE ROLE visitor LOGIN")
    with pytest.raises(SchemaError, match="permission denied for schema public"):
        await migrate(empty_url.replace("postgres@", "visitor@"))
    assert tables_of(empty_url) == set()


SHOW_IDLE_TIMEOUT = "SHOW idle_in_transaction_session_timeout"


async def test_every_later_connection_carries_the_idle_timeout(
    postgres: PostgresCluster, empty_url: str
) -> None:
    await migrate(empty_url)
    async with open_connection(empty_url) as conn:
        assert await conn.fetchval(SHOW_IDLE_TIMEOUT) == "5s"
    async with open_connection(postgres.url) as conn:
        assert await conn.fetchval(SHOW_IDLE_TIMEOUT) == "0", "another database is not touched"


async def test_the_pool_carries_the_idle_timeout(db: Database) -> None:
    async with db.connection() as conn:
        assert await conn.fetchval(SHOW_IDLE_TIMEOUT) == "5s"


async def test_migrating_works_and_the_idle_timeout_holds_through_pgbouncer(
    empty_url: str,
) -> None:
    with PgBouncer(empty_url) as bouncer:
        assert await migrate(bouncer.url) == (0, known_version())
        assert await migrate(bouncer.url) == (known_version(), known_version())
    with PgBouncer(empty_url) as bouncer:  # no server connection from before
        async with open_connection(bouncer.url) as conn:
            assert await conn.fetchval(SHOW_IDLE_TIMEOUT) == "5s"


MAILBOX = {
    "address": "anna@example.com",
    "provider": "imap",
    "connection": Jsonb({"host": "mail.example.com"}),
}
REQUEST = {
    "source_ref": "<1@example.com>",
    "content_fingerprint": "0" * 64,
    "received_at": "2026-03-02T04:48:00Z",
    "body_text": "",
}
ATTACHMENT = {
    "kind": "file",
    "part_id": "2",
    "content_type": "application/pdf",
    "size_bytes": 5,
    "sha256": "a" * 64,
    "content": b"%PDF-",
    "verdict": "extract",
    "status": "pending",
}
SKIPPED = {
    **ATTACHMENT,
    "verdict": "unsupported",
    "verdict_reason": "an archive",
    "status": "skipped",
    "content": None,
    "sha256": None,
}
BODY = {**ATTACHMENT, "kind": "body", "part_id": None, "content": None, "sha256": None}
PROCESSING = {**ATTACHMENT, "status": "processing", "processing_started_at": "now"}
DONE = {**ATTACHMENT, "status": "done", "finished_at": "now", "result": Jsonb({})}
FAILED = {**ATTACHMENT, "status": "failed", "finished_at": "now", "error": "it broke"}
QUARANTINED = {"server_ref": Jsonb({"uid": 1}), "stage": "fetch", "error": "NO"}
TOKEN = {"name": "ci", "token_sha256": b"x" * 32, "scopes": ["messages:index"]}

DOMAIN = {
    "domain": "example.com",
    "verdict": "valid",
    "reason": "mx",
    "detail": "takes mail",
    "evidence": Jsonb({}),
    "checked_at": "now",
    "expires_at": "tomorrow",
}

Row = Mapping[str, object]
LEGAL: list[tuple[str, Row]] = [
    ("email_mailbox_config", MAILBOX),
    ("request", REQUEST),
    ("attachment", ATTACHMENT),
    ("attachment", SKIPPED),
    ("attachment", BODY),
    ("attachment", PROCESSING),
    ("attachment", DONE),
    ("attachment", FAILED),
    ("quarantine", QUARANTINED),
    ("job_advertisement", {"email": None}),
    ("email_domain", {"domain": "example.com", "claimed_at": "now"}),
    ("email_domain", DOMAIN),
    ("enrich_import", {"file_sha256": b"x" * 32}),
    ("api_token", TOKEN),
]
ILLEGAL: list[tuple[str, Row, Row]] = [
    ("schema_version", {"version": 1}, {}),  # there is one already
    ("schema_version", {"version": 1}, {"only_row": False}),
    ("email_mailbox_config", MAILBOX, {"address": None}),
    ("email_mailbox_config", MAILBOX, {"address": ""}),
    ("email_mailbox_config", MAILBOX, {"address": "anna@example.com\r\nA1 NOOP"}),
    ("email_mailbox_config", MAILBOX, {"provider": "pop3"}),
    ("email_mailbox_config", MAILBOX, {"connection": Jsonb([])}),
    ("email_mailbox_config", MAILBOX, {"poll_interval": "0 seconds"}),
    ("email_mailbox_config", MAILBOX, {"poll_interval": "-1 hour"}),
    ("email_mailbox_config", MAILBOX, {"cursor": Jsonb(7)}),
    ("email_mailbox_config", MAILBOX, {"state": "asleep"}),
    ("email_mailbox_config", MAILBOX, {"enabled": None}),
    ("email_mailbox_config", MAILBOX, {"consecutive_failures": -1}),
    ("request", REQUEST, {"source": ""}),
    ("request", REQUEST, {"source_ref": ""}),
    ("request", REQUEST, {"source_ref": None}),
    ("request", REQUEST, {"source_ref": "ä" * 1051}),
    ("request", REQUEST, {"mailbox_id": 4711}),
    ("request", REQUEST, {"content_fingerprint": "0" * 63}),
    ("request", REQUEST, {"content_fingerprint": "A" * 64}),
    ("request", REQUEST, {"content_fingerprint": None}),
    ("request", REQUEST, {"recipients": Jsonb({})}),
    ("request", REQUEST, {"received_at": None}),
    ("request", REQUEST, {"body_text": None}),
    ("attachment", ATTACHMENT, {"request_id": 4711}),
    ("attachment", ATTACHMENT, {"kind": "folder"}),
    ("attachment", ATTACHMENT, {"part_id": None}),
    ("attachment", BODY, {"part_id": "1"}),
    ("attachment", ATTACHMENT, {"size_bytes": -1}),
    ("attachment", ATTACHMENT, {"sha256": "abc"}),
    ("attachment", ATTACHMENT, {"sha256": None}),
    ("attachment", ATTACHMENT, {"content": None}),
    ("attachment", ATTACHMENT, {"verdict": "maybe"}),
    ("attachment", ATTACHMENT, {"status": "skipped", "verdict_reason": "no reason"}),
    ("attachment", ATTACHMENT, {"status": "lost"}),
    ("attachment", ATTACHMENT, {"attempts": -1}),
    ("attachment", ATTACHMENT, {"processing_started_at": "now"}),
    ("attachment", ATTACHMENT, {"finished_at": "now"}),
    ("attachment", SKIPPED, {"status": "pending"}),
    ("attachment", SKIPPED, {"verdict_reason": None}),
    ("attachment", PROCESSING, {"processing_started_at": None}),
    ("attachment", DONE, {"finished_at": None}),
    ("attachment", DONE, {"result": None}),
    ("attachment", DONE, {"result": Jsonb([])}),
    ("attachment", FAILED, {"finished_at": None}),
    ("attachment", FAILED, {"error": None}),
    ("attachment", FAILED, {"processing_started_at": "now"}),
    ("quarantine", QUARANTINED, {"server_ref": Jsonb("7")}),
    ("quarantine", QUARANTINED, {"stage": "limbo"}),
    ("quarantine", QUARANTINED, {"error": None}),
    ("quarantine", QUARANTINED, {"attempts": 0}),
    ("job_advertisement", {"email": "a@example.com"}, {"email_check": Jsonb("ok")}),
    ("job_advertisement", {"email": None}, {"email_check_not_before": None}),
    ("email_domain", DOMAIN, {"domain": ""}),
    ("email_domain", DOMAIN, {"verdict": "maybe"}),
    ("email_domain", DOMAIN, {"reason": None}),
    ("email_domain", DOMAIN, {"expires_at": None}),
    ("email_domain", DOMAIN, {"verdict": None}),
    ("email_domain", DOMAIN, {"evidence": Jsonb([])}),
    ("email_domain", DOMAIN, {"failures": -1}),
    ("enrich_import", {"file_sha256": b"x" * 32}, {"file_sha256": b"x"}),
    ("enrich_import", {"file_sha256": b"x" * 32}, {"lines_done": -1}),
    ("api_token", TOKEN, {"name": ""}),
    ("api_token", TOKEN, {"token_sha256": b"the token itself"}),
    ("api_token", TOKEN, {"scopes": []}),
    ("rate_limit", {"key": "a", "tat": "now"}, {"tat": None}),
]


def is_taken(conn: psycopg.Connection, table: str, row: Row) -> bool:
    """Whether the schema takes the row; it is not kept."""
    try:
        with conn.transaction(force_rollback=True):
            if table == "attachment":
                insert(conn, "request", {"id": 1, **REQUEST})
                row = {"request_id": 1, **row}
            insert(conn, table, row)
    except psycopg.errors.IntegrityError:
        return False
    return True


def insert(conn: psycopg.Connection, table: str, row: Row) -> None:
    statement = sql.SQL("INSERT INTO {} ({}) OVERRIDING SYSTEM VALUE VALUES ({})").format(
        sql.Identifier(table),
        sql.SQL(", ").join(map(sql.Identifier, row)),
        sql.SQL(", ").join(map(sql.Literal, row.values())),
    )
    conn.execute(statement)


def test_the_schema_takes_the_legal_states(database_url: str) -> None:
    with psycopg.connect(database_url) as conn:
        refused = [(table, row) for table, row in LEGAL if not is_taken(conn, table, row)]
    assert refused == []


def test_the_schema_forbids_the_illegal_states(database_url: str) -> None:
    with psycopg.connect(database_url) as conn:
        taken = [
            (table, change)
            for table, row, change in ILLEGAL
            if is_taken(conn, table, {**row, **change})
        ]
    assert taken == []
