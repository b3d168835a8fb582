"""Claims on mailboxes: disjoint, fenced by their stamp, and due again when a replica dies."""

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import psycopg
import pytest
import trio

from service.db.mailbox_json import dump_connection, dump_cursor
from service.db.mailboxes import (
    Claim,
    claim_due,
    claim_mailbox,
    complete_poll,
    delete_mailbox,
    enable_mailbox,
    fail_poll,
    get_mailbox,
    get_secret,
    insert_mailbox,
    list_mailboxes,
    move_cursor,
    seconds_until_due,
    update_mailbox,
)
from service.db.pool import Connection, Database
from service.errors import ClaimLost, MailroomError
from service.model import (
    Connection as MailboxConnection,
)
from service.model import (
    Cursor,
    GmailConnection,
    GmailCursor,
    GraphConnection,
    GraphCursor,
    ImapConnection,
    ImapCursor,
)

CONNECTION = ImapConnection("mail.example.com", 993, "implicit", "anna", "Büro")


async def add(db: Database, *addresses: str, **columns: str) -> None:
    """Add mailboxes; `columns` are SQL expressions to set afterwards."""
    async with db.transaction() as conn:
        for address in addresses:
            await insert_mailbox(
                conn,
                address=address,
                connection=CONNECTION,
                secret=b"token",
                poll_interval_seconds=120,
                ingest_all=False,
                ingest_since=None,
            )
            for name, value in columns.items():
                await conn.execute(
                    f"UPDATE email_mailbox_config SET {name} = {value} WHERE address = $1", address
                )


async def claim(db: Database, limit: int = 10) -> list[Claim]:
    async with db.transaction() as conn:
        return await claim_due(conn, limit)


def addresses(claims: Sequence[Claim]) -> list[str]:
    return sorted(one.address for one in claims)


def names(count: int) -> list[str]:
    return [f"user{number:02}@example.com" for number in range(count)]


async def test_a_mailbox_is_shown_as_it_was_added_without_its_secret(db: Database) -> None:
    await add(db, "Anna@example.com")
    async with db.connection() as conn:
        mailbox = await get_mailbox(conn, "anna@EXAMPLE.com")
        assert await get_secret(conn, "anna@example.com") == b"token"
    assert mailbox.address == "Anna@example.com"
    assert mailbox.connection == json.loads(dump_connection(CONNECTION))
    assert "issuer" not in mailbox.connection, "nothing of OAuth with a password"
    assert (mailbox.provider, mailbox.state, mailbox.enabled) == ("imap", "active", True)
    assert mailbox.poll_interval_seconds == 120
    assert (mailbox.cursor, mailbox.last_polled_at, mailbox.last_error) == (None, None, None)
    assert mailbox.ingest_since == mailbox.created_at, "the default is from now on"
    assert "token" not in repr(mailbox)


@pytest.mark.parametrize(
    ("ingest_all", "ingest_since"), [(True, None), (False, datetime(2026, 3, 2, tzinfo=UTC))]
)
async def test_where_to_begin_can_be_chosen(
    db: Database, ingest_all: bool, ingest_since: datetime | None
) -> None:
    async with db.transaction() as conn:
        await insert_mailbox(
            conn,
            address="anna@example.com",
            connection=CONNECTION,
            secret=b"token",
            poll_interval_seconds=1.5,
            ingest_all=ingest_all,
            ingest_since=ingest_since,
        )
        mailbox = await get_mailbox(conn, "anna@example.com")
    assert mailbox.ingest_since == ingest_since
    assert mailbox.poll_interval_seconds == 1.5


async def test_mailboxes_are_listed_by_address(db: Database) -> None:
    await add(db, "carl@example.com", "Bob@example.com", "anna@example.com")
    async with db.connection() as conn:
        listed = [mailbox.address for mailbox in await list_mailboxes(conn)]
    assert listed == ["anna@example.com", "Bob@example.com", "carl@example.com"]


async def test_an_address_exists_once_whatever_its_case(db: Database) -> None:
    await add(db, "anna@example.com")
    with pytest.raises(MailroomError, match=r"mailbox ANNA@example\.com exists already") as caught:
        await add(db, "ANNA@example.com")
    assert caught.value.hint is not None


@pytest.mark.parametrize(
    "work",
    [
        get_mailbox,
        claim_mailbox,
        delete_mailbox,
        lambda conn, address: enable_mailbox(conn, address, enabled=True),
    ],
)
async def test_an_unknown_mailbox_is_said_to_be_unknown(
    db: Database, work: Callable[[Connection, str], Awaitable[object]]
) -> None:
    async with db.transaction() as conn:
        with pytest.raises(MailroomError, match=r"no mailbox bob@example\.com") as caught:
            await work(conn, "bob@example.com")
    assert caught.value.hint == "see: mailbox list"


async def test_a_claim_holds_what_a_poll_needs(db: Database) -> None:
    await add(
        db,
        "anna@example.com",
        cursor="""'{"uidvalidity": 7, "uid": 41}'""",
        consecutive_failures="3",
        state="'needs_reauth'",
    )
    (one,) = await claim(db)
    async with db.connection() as conn:
        mailbox = await get_mailbox(conn, "anna@example.com")
    assert one == Claim(
        mailbox_id=mailbox.id,
        address="anna@example.com",
        connection=CONNECTION,
        secret=b"token",
        poll_interval_seconds=120,
        stamp=one.stamp,
        ingest_since=mailbox.ingest_since,
        cursor=ImapCursor(7, 41),
        state="needs_reauth",
        consecutive_failures=3,
        has_quarantine=False,
    )
    assert mailbox.last_polled_at == one.stamp


@pytest.mark.parametrize(
    ("columns", "is_due"),
    [
        ({}, True),
        ({"last_polled_at": "now() - interval '121 seconds'"}, True),
        ({"last_polled_at": "now() - interval '110 seconds'"}, False),
        ({"last_polled_at": "now() + interval '1 day'"}, False),
        ({"not_before": "now() - interval '1 second'"}, True),
        ({"not_before": "now() + interval '10 seconds'"}, False),
        ({"enabled": "false"}, False),
        ({"state": "'needs_reauth'"}, True),
        (
            {
                "last_polled_at": "now() - interval '1 hour'",
                "not_before": "now() + interval '1 minute'",
            },
            False,
        ),
        (
            {
                "last_polled_at": "now() - interval '20 seconds'",
                "poll_interval": "interval '15 seconds'",
            },
            True,
        ),
    ],
)
async def test_only_what_is_due_is_claimed(
    db: Database, columns: dict[str, str], is_due: bool
) -> None:
    await add(db, "anna@example.com", **columns)
    assert len(await claim(db)) == is_due
    assert await claim(db) == [], "the stamp is set"


@pytest.mark.parametrize(
    ("connection", "cursor"),
    [
        (GmailConnection("Rechnungen", "service_account"), GmailCursor(7, 1_700_000, (8, "aB"))),
        (GraphConnection("inbox", shared=True), GraphCursor("t", is_skip=True)),
        (ImapConnection("imap.example.com", 993, "implicit", "a", issuer="google"), None),
    ],
)
async def test_a_mailbox_of_each_provider_is_claimed_with_its_connection_and_cursor(
    db: Database, connection: MailboxConnection, cursor: Cursor | None
) -> None:
    async with db.transaction() as conn:
        await insert_mailbox(
            conn,
            address="anna@example.com",
            connection=connection,
            secret=b"token",
            poll_interval_seconds=120,
            ingest_all=True,
            ingest_since=None,
        )
        await conn.execute(
            "UPDATE email_mailbox_config SET cursor = $1::jsonb", dump_cursor(cursor)
        )
    (one,) = await claim(db)
    assert (one.connection, one.cursor) == (connection, cursor)


async def test_the_longest_unpolled_mailboxes_are_claimed_first(db: Database) -> None:
    await add(db, "recent@example.com", last_polled_at="now() - interval '3 minutes'")
    await add(db, "never@example.com")
    await add(db, "old@example.com", last_polled_at="now() - interval '1 day'")
    claimed = [addresses(await claim(db, limit=1)) for _ in range(4)]
    assert claimed == [["never@example.com"], ["old@example.com"], ["recent@example.com"], []]


async def test_the_limit_holds_whatever_the_planner_knows_of_the_table(
    db: Database, database_url: str
) -> None:
    await add(db, "first@example.com")
    with psycopg.connect(database_url, autocommit=True) as conn:
        conn.execute("VACUUM ANALYZE email_mailbox_config")  # now it counts on one row
    await add(db, *names(6))
    assert [len(await claim(db, limit=2)) for _ in range(5)] == [2, 2, 2, 1, 0]


async def test_claims_at_the_same_time_are_disjoint_and_wait_for_nobody(db: Database) -> None:
    await add(db, *names(5))
    with trio.fail_after(2):
        async with db.transaction() as conn, db.transaction() as other, db.transaction() as third:
            first = await claim_due(conn, 2)
            second = await claim_due(other, 2)
            rest = await claim_due(third, 10)
            assert await claim(db) == []
    assert [len(claims) for claims in (first, second, rest)] == [2, 2, 1]
    assert addresses([*first, *second, *rest]) == names(5)
    assert await claim(db) == []


async def test_the_stamp_is_there_for_others_once_it_is_committed(db: Database) -> None:
    await add(db, "anna@example.com")
    async with db.transaction() as conn:
        (one,) = await claim_due(conn, 1)
        async with db.connection() as other:
            assert (await get_mailbox(other, "anna@example.com")).last_polled_at is None
    async with db.connection() as conn:
        assert (await get_mailbox(conn, "anna@example.com")).last_polled_at == one.stamp
        assert await conn.fetchval("SELECT now() - $1::timestamptz < interval '5 s'", one.stamp)


async def test_a_claim_that_is_not_committed_leaves_the_mailbox_due(db: Database) -> None:
    await add(db, "anna@example.com")

    async def die() -> None:
        async with db.transaction() as conn:
            await claim_due(conn, 1)
            raise LookupError

    with pytest.raises(LookupError):
        await die()
    assert len(await claim(db)) == 1


async def test_many_replicas_claim_each_mailbox_once(db: Database) -> None:
    await add(db, *names(60))
    claimed: list[Claim] = []

    async def replica() -> None:
        while claims := await claim(db):
            claimed.extend(claims)

    async with trio.open_nursery() as nursery:
        for _ in range(8):
            nursery.start_soon(replica)
    left = await claim(db)  # a replica that found the rest locked has ended early
    assert addresses([*claimed, *left]) == names(60)


@pytest.mark.expects_errors
@pytest.mark.parametrize(
    "columns",
    [
        {"connection": "'{}'"},
        {"connection": """connection || '{"surprise": 1}'"""},
        {"cursor": "'{}'"},
    ],
)
async def test_a_row_that_makes_no_sense_does_not_hold_up_its_neighbours(
    db: Database, columns: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    await add(db, "bad@example.com", **columns)
    await add(db, "good@example.com")
    assert addresses(await claim(db)) == ["good@example.com"]
    assert "bad@example.com: its row in the database makes no sense" in caplog.text
    assert await claim(db) == []


async def test_one_mailbox_is_claimed_due_or_not(db: Database) -> None:
    await add(
        db,
        "anna@example.com",
        enabled="false",
        last_polled_at="now()",
        not_before="now() + interval '1 hour'",
    )
    async with db.transaction() as conn:
        one = await claim_mailbox(conn, "ANNA@example.com")
    async with db.connection() as conn:
        assert (await get_mailbox(conn, "anna@example.com")).last_polled_at == one.stamp


async def change_cursor(conn: Connection, one: Claim) -> None:
    await move_cursor(conn, one, ImapCursor(7, 42))


async def fail(conn: Connection, one: Claim) -> None:
    await fail_poll(
        conn, one, failures=2, error="NO: \0 \ud800", state="needs_reauth", delay_seconds=240
    )


WRITES = [change_cursor, complete_poll, fail]


async def claim_again(conn: Connection, one: Claim) -> None:
    await claim_mailbox(conn, one.address)


async def remove(conn: Connection, one: Claim) -> None:
    await delete_mailbox(conn, one.address)


async def change(conn: Connection, one: Claim) -> None:
    await update_mailbox(
        conn, one.address, connection=one.connection, secret=b"new", poll_interval_seconds=60
    )


async def whole_row(conn: Connection) -> list[object]:
    return [tuple(row) for row in await conn.fetch("SELECT * FROM email_mailbox_config")]


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("meanwhile", [claim_again, remove, change])
async def test_a_late_write_is_refused_and_changes_nothing(
    db: Database,
    write: Callable[[Connection, Claim], Awaitable[None]],
    meanwhile: Callable[[Connection, Claim], Awaitable[None]],
) -> None:
    await add(db, "anna@example.com")
    (one,) = await claim(db)
    async with db.transaction() as conn:
        await meanwhile(conn, one)
    async with db.transaction() as conn:
        before = await whole_row(conn)
        with pytest.raises(ClaimLost, match=r"anna@example\.com"):
            await write(conn, one)
        assert await whole_row(conn) == before


async def test_the_writes_of_the_claims_holder(db: Database) -> None:
    await add(db, "anna@example.com")
    (one,) = await claim(db)
    async with db.transaction() as conn:
        await change_cursor(conn, one)
        await fail(conn, one)
        failed = await get_mailbox(conn, "anna@example.com")
        until_due = await seconds_until_due(conn)
        await complete_poll(conn, one)
        done = await get_mailbox(conn, "anna@example.com")
    assert failed.cursor == done.cursor == {"uidvalidity": 7, "uid": 42}
    assert (failed.state, failed.consecutive_failures) == ("needs_reauth", 2)
    assert failed.last_error == "NO:  ?"
    assert until_due == pytest.approx(240, abs=1)
    assert failed.last_success_at is None
    assert (done.state, done.consecutive_failures) == ("active", 0)
    assert (done.last_error, done.not_before) == (None, None)
    assert done.last_success_at is not None


async def test_a_failed_mailbox_is_not_due_before_its_delay_ends(db: Database) -> None:
    await add(db, "anna@example.com", poll_interval="interval '1 second'")
    (one,) = await claim(db)
    async with db.transaction() as conn:
        await fail(conn, one)
        await conn.execute("UPDATE email_mailbox_config SET last_polled_at = '2020-01-01'")
    assert await claim(db) == []


@pytest.mark.parametrize(
    ("mailboxes", "seconds"),
    [
        ([], None),
        ([{"enabled": "false"}], None),
        ([{}], 0),
        ([{"last_polled_at": "now() - interval '100 seconds'"}], 20),
        ([{"last_polled_at": "now() - interval '10 minutes'"}], 0),
        ([{"not_before": "now() + interval '30 seconds'"}], 30),
        (
            [
                {
                    "last_polled_at": "now()",
                    "not_before": "now() + interval '30 seconds'",
                }
            ],
            120,
        ),
        (
            [
                {"last_polled_at": "now() - interval '100 seconds'"},
                {"last_polled_at": "now() - interval '50 seconds'"},
                {"enabled": "false"},
            ],
            20,
        ),
    ],
)
async def test_seconds_until_the_earliest_mailbox_is_due(
    db: Database, mailboxes: list[dict[str, str]], seconds: float | None
) -> None:
    for number, columns in enumerate(mailboxes):
        await add(db, f"user{number}@example.com", **columns)
    async with db.connection() as conn:
        found = await seconds_until_due(conn)
    assert found == (seconds if seconds is None else pytest.approx(seconds, abs=1))


@pytest.mark.parametrize(
    ("changes", "keeps_cursor"),
    [
        ({}, True),
        ({"tls": "starttls", "port": 143}, True),
        ({"host": "mail.example.net"}, False),
        ({"username": "bob"}, False),
        ({"folder": "INBOX"}, False),
    ],
)
async def test_a_changed_mailbox_is_tried_at_once_and_never_with_another_folders_cursor(
    db: Database, changes: dict[str, object], keeps_cursor: bool
) -> None:
    await add(
        db,
        "anna@example.com",
        cursor="""'{"uidvalidity": 7, "uid": 41}'""",
        state="'needs_reauth'",
        last_polled_at="now()",
        not_before="now() + interval '1 hour'",
    )
    connection = replace(CONNECTION, **changes)  # type: ignore[arg-type]
    async with db.transaction() as conn:
        await update_mailbox(
            conn, "Anna@Example.com", connection=connection, secret=b"new", poll_interval_seconds=60
        )
    (one,) = await claim(db)
    assert (one.connection, one.secret, one.state) == (connection, b"new", "active")
    assert one.poll_interval_seconds == 60
    assert one.cursor == (ImapCursor(7, 41) if keeps_cursor else None)


async def test_enabling_forgets_back_off_and_refused_credentials(db: Database) -> None:
    await add(
        db,
        "anna@example.com",
        enabled="false",
        state="'needs_reauth'",
        not_before="now() + interval '1 hour'",
    )
    assert await claim(db) == []
    async with db.transaction() as conn:
        await enable_mailbox(conn, "ANNA@example.com", enabled=True)
    (one,) = await claim(db)
    assert one.state == "active"


async def test_a_disabled_mailbox_is_not_claimed_and_keeps_its_state(db: Database) -> None:
    await add(db, "anna@example.com", state="'needs_reauth'")
    async with db.transaction() as conn:
        await enable_mailbox(conn, "anna@example.com", enabled=False)
        assert (await get_mailbox(conn, "anna@example.com")).state == "needs_reauth"
    assert await claim(db) == []


async def test_what_came_from_a_removed_mailbox_stays(db: Database, database_url: str) -> None:
    await add(db, "anna@example.com", "bob@example.com")
    with psycopg.connect(database_url) as conn:
        for mailbox_id in (1, 2):
            conn.execute(
                "INSERT INTO request (source_ref, mailbox_id, content_fingerprint, received_at,"
                " body_text) VALUES (%s, %s, repeat('0', 64), now(), '')",
                (f"<{mailbox_id}@example.com>", mailbox_id),
            )
            conn.execute(
                "INSERT INTO quarantine (mailbox_id, server_ref, stage, error)"
                " VALUES (%s, %s, 'fetch', 'NO')",
                (mailbox_id, json.dumps({"uidvalidity": 1, "uid": 1})),
            )
    async with db.transaction() as conn:
        await delete_mailbox(conn, "ANNA@example.com")
        await delete_mailbox(conn, "bob@example.com")
        assert await list_mailboxes(conn) == []
        assert await conn.fetchval("SELECT count(*) FROM request WHERE mailbox_id IS NULL") == 2
        assert await conn.fetchval("SELECT count(*) FROM quarantine WHERE mailbox_id IS NULL") == 2
