"""The pipeline's queue: a row is claimed by one, written under its stamp, retried on demand."""

from datetime import timedelta
from typing import Any

import psycopg
import pytest
import trio
from psycopg.rows import dict_row
from trio_util import AsyncValue

from service.db.attachments import (
    Claim,
    Outcome,
    claim_attachments,
    load_content,
    recover_stuck_attachments,
    retry_attachment,
    retry_failed,
    write_outcomes,
)
from service.db.notifications import ATTACHMENT_CHANNEL, listen, notify
from service.db.pool import Database
from service.db.requests import store_requests
from service.errors import ClaimLost
from service.model import NewAttachment, Verdict
from tests.db.rows import BODY, new_file, new_request

LOGO = NewAttachment("file", "3", "logo.png", "image/png", 90, Verdict.INLINE_IMAGE, "an image")


async def store(db: Database, ref: str, *attachments: NewAttachment) -> None:
    async with db.transaction() as conn:
        await store_requests(conn, None, [new_request(ref, attachments=attachments)])


async def claim(db: Database, *, limit: int = 10, with_texts: bool = True) -> list[Claim]:
    return await claim_attachments(db, limit=limit, inline_bytes=1000, with_texts=with_texts)


def rows_in(url: str) -> list[dict[str, Any]]:
    with psycopg.connect(url, row_factory=dict_row) as conn:
        return conn.execute("SELECT * FROM attachment ORDER BY id").fetchall()


def execute(url: str, statement: str) -> None:
    with psycopg.connect(url) as conn:
        conn.execute(statement)  # type: ignore[call-overload]


async def test_a_claim_brings_what_the_work_needs(db: Database, database_url: str) -> None:
    await store(db, "<1@example.com>", new_file(b"small"), new_file(b"x" * 1001), LOGO)
    await store(db, "<2@example.com>", BODY)
    small, large, body = await claim(db)
    assert (small.kind, small.content, small.filename) == ("file", b"small", "invoice.pdf")
    assert (large.content, await load_content(db, large)) == (None, b"x" * 1001)
    assert (body.kind, body.content, body.body_text) == ("body", None, "hello")
    assert small.body_text == large.body_text == "hello"
    assert [row["status"] for row in rows_in(database_url)] == [
        "processing",
        "processing",
        "skipped",
        "processing",
    ]
    assert await claim(db) == []


async def test_a_file_comes_without_its_mail_where_nobody_asks_for_it(db: Database) -> None:
    await store(db, "<1@example.com>", new_file(b"small"))
    await store(db, "<2@example.com>", BODY)
    assert [one.body_text for one in await claim(db, with_texts=False)] == [None, "hello"]


async def test_the_first_file_that_can_be_read_gives_the_lines_of_its_mail(
    db: Database, database_url: str
) -> None:
    await store(db, "<1@example.com>", LOGO, new_file(b"a"), new_file(b"b"))
    await store(db, "<2@example.com>", new_file(b"c"), new_file(b"d"))
    execute(
        database_url,
        "UPDATE attachment SET status = 'failed', error = 'damaged: x', finished_at = now()"
        " WHERE content = 'c'",
    )
    claims = await claim(db)
    assert {one.content: one.gives_context_rows for one in claims} == {
        b"a": True,
        b"b": False,
        b"d": True,
    }


async def test_ten_claimers_at_once_never_get_the_same_row(db: Database) -> None:
    for number in range(60):
        await store(db, f"<{number}@example.com>", BODY)
    claimed: list[int] = []

    async def work() -> None:
        while claims := await claim(db, limit=3):
            claimed.extend(one.id for one in claims)

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(work)
    assert len(claimed) == len(set(claimed)) == 60


async def test_a_result_is_written_under_its_stamp(db: Database, database_url: str) -> None:
    await store(db, "<1@example.com>", BODY)
    (one,) = await claim(db)
    assert await write_outcomes(db, [Outcome(one, "done", '{"text": "hello"}')])
    (row,) = rows_in(database_url)
    assert (row["status"], row["result"], row["attempts"]) == ("done", {"text": "hello"}, 0)
    assert row["finished_at"] is not None
    assert not await write_outcomes(db, [Outcome(one, "failed", error="twice")])
    assert rows_in(database_url) == [row]


async def test_the_late_write_of_a_worker_that_lost_its_claim_is_refused(
    db: Database, database_url: str
) -> None:
    """Stuck, given back, claimed and finished by another; then the first one wakes up."""
    await store(db, "<1@example.com>", new_file(b"x" * 2000))
    (late,) = await claim(db)
    async with db.transaction() as conn:
        await recover_stuck_attachments(conn, stuck_after_seconds=0, max_attempts=5)
    with pytest.raises(ClaimLost):
        await load_content(db, late)
    assert not await write_outcomes(db, [Outcome(late, "done", '{"late": 1}')])
    (second,) = await claim(db)
    assert second.stamp > late.stamp
    assert not await write_outcomes(db, [Outcome(late, "done", '{"late": 2}')])
    assert await write_outcomes(db, [Outcome(second, "done", '{"late": 0}')])
    assert not await write_outcomes(db, [Outcome(late, "pending")])
    (row,) = rows_in(database_url)
    assert (row["status"], row["result"], row["attempts"]) == ("done", {"late": 0}, 1)


async def test_what_is_given_back_waits_for_its_delay(db: Database, database_url: str) -> None:
    await store(db, "<1@example.com>", BODY)
    (one,) = await claim(db)
    again = Outcome(one, "pending", error="the endpoint is away", counted=1, delay_seconds=60)
    assert await write_outcomes(db, [again])
    (row,) = rows_in(database_url)
    assert (row["status"], row["attempts"], row["error"]) == ("pending", 1, "the endpoint is away")
    assert await claim(db) == []
    execute(database_url, "UPDATE attachment SET not_before = now()")
    (second,) = await claim(db)
    assert second.attempts == 1
    assert await write_outcomes(db, [Outcome(second, "done", "{}")])
    assert rows_in(database_url)[0]["not_before"] is None


async def test_a_text_with_nul_and_surrogates_is_an_error_that_can_be_stored(
    db: Database, database_url: str
) -> None:
    await store(db, "<1@example.com>", BODY)
    (one,) = await claim(db)
    assert await write_outcomes(db, [Outcome(one, "failed", error="bad\0 \udc80 name")])
    assert rows_in(database_url)[0]["error"] == "bad ? name"


async def test_what_waits_for_its_next_attempt_is_due_at_a_retry(db: Database) -> None:
    await store(db, "<1@example.com>", BODY)
    for retried in range(2):
        (one,) = await claim(db)
        await write_outcomes(db, [Outcome(one, "pending", error="away", delay_seconds=600)])
        async with db.connection() as conn:
            if retried:
                assert await retry_failed(conn) == 1
            else:
                assert await retry_attachment(conn, one.id, mailboxes=None) == "waiting"
    assert len(await claim(db)) == 1


@pytest.mark.parametrize("status", ["done", "failed"])
async def test_a_retry_begins_anew(db: Database, database_url: str, status: Any) -> None:
    await store(db, "<1@example.com>", BODY)
    (one,) = await claim(db)
    error = "damaged: x" if status == "failed" else None
    await write_outcomes(db, [Outcome(one, status, "{}", error, counted=1)])
    async with db.connection() as conn:
        assert await retry_attachment(conn, one.id, mailboxes=None) == status
        assert await retry_attachment(conn, one.id, mailboxes=None) == "pending"
    (row,) = rows_in(database_url)
    assert (row["status"], row["attempts"]) == ("pending", 0)
    assert (row["result"], row["error"], row["finished_at"]) == (None, None, None)


async def test_only_what_has_ended_is_retried(db: Database, database_url: str) -> None:
    await store(db, "<1@example.com>", new_file(b"x"), LOGO)
    await claim(db)
    before = rows_in(database_url)
    async with db.connection() as conn:
        statuses = [await retry_attachment(conn, row["id"], mailboxes=None) for row in before]
        assert statuses == ["processing", "skipped"]
        assert await retry_attachment(conn, 4711, mailboxes=None) is None
        assert await retry_attachment(conn, before[0]["id"], mailboxes=["a@example.com"]) is None
    assert rows_in(database_url) == before


IS_LISTENING = """
    SELECT count(*) FROM pg_stat_activity
    WHERE query ILIKE 'listen%' AND state = 'idle' AND datname = current_database()
"""
END_LISTENERS = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE query ILIKE 'listen%' AND datname = current_database()
"""


async def wait_until_listening(db: Database) -> None:
    while True:
        async with db.connection() as conn:
            if await conn.fetchval(IS_LISTENING):
                return
        await trio.sleep(0.05)


class Hints:
    """Counts them."""

    def __init__(self) -> None:
        self.count = AsyncValue(0)

    def add(self) -> None:
        self.count.value += 1

    async def reach(self, count: int) -> None:
        await self.count.wait_value(lambda value: value >= count)


async def test_new_rows_and_retries_are_told_at_once(db: Database) -> None:
    hints = Hints()
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(listen, db, ATTACHMENT_CHANNEL, hints.add)
            await wait_until_listening(db)
            await store(db, "<1@example.com>", LOGO)
            await store(db, "<2@example.com>", BODY)
            await hints.reach(1)
            (one,) = await claim(db)
            await write_outcomes(db, [Outcome(one, "done", "{}")])
            async with db.connection() as conn:
                await retry_attachment(conn, one.id, mailboxes=None)
            await hints.reach(2)
            nursery.cancel_scope.cancel()
    assert hints.count.value == 2


async def test_a_listener_that_lost_its_connection_comes_back(
    db: Database, database_url: str
) -> None:
    hints = Hints()
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(listen, db, ATTACHMENT_CHANNEL, hints.add)
            for number in (1, 2):
                await wait_until_listening(db)
                async with db.connection() as conn:
                    await notify(conn, ATTACHMENT_CHANNEL)
                await hints.reach(number)
                execute(database_url, END_LISTENERS)
            nursery.cancel_scope.cancel()


async def test_a_stamp_is_the_databases_time(db: Database, database_url: str) -> None:
    await store(db, "<1@example.com>", BODY)
    (one,) = await claim(db)
    with psycopg.connect(database_url) as conn:
        row = conn.execute("SELECT now()").fetchone()
    assert row is not None
    assert timedelta(0) <= row[0] - one.stamp < timedelta(seconds=10)
