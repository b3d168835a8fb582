"""The release of attachments that got stuck in `processing`."""

import logging

import psycopg
import pytest
from prometheus_client import REGISTRY
from psycopg.rows import dict_row

from service.db.attachments import recover_stuck_attachments
from service.db.pool import Database
from service.db.requests import store_requests
from service.recovery import recover_stuck_requests as recover
from service.settings import Settings
from tests.db.rows import new_request

STUCK = "now() - interval '901 seconds'"


async def add(db: Database, *, started_at: str | None = STUCK, attempts: int = 0) -> int:
    """An attachment in `processing` since the SQL expression `started_at`, else pending."""
    async with db.transaction() as conn:
        number = await conn.fetchval("SELECT count(*) FROM request")
        await store_requests(conn, None, [new_request(f"<{number}@example.com>")])
        attachment_id: int = await conn.fetchval("SELECT max(id) FROM attachment")
        if started_at is not None:
            await conn.execute(
                f"UPDATE attachment SET status = 'processing', attempts = $2,"
                f" processing_started_at = {started_at} WHERE id = $1",
                attachment_id,
                attempts,
            )
    return attachment_id


async def recover_ids(db: Database) -> list[int]:
    async with db.transaction() as conn:
        rows = await recover_stuck_attachments(conn, stuck_after_seconds=900, max_attempts=5)
    return sorted(row["id"] for row in rows)


def rows_in(url: str) -> list[dict[str, object]]:
    with psycopg.connect(url, row_factory=dict_row) as conn:
        return conn.execute(
            "SELECT id, status, attempts, processing_started_at AS stamp, error, finished_at"
            " FROM attachment ORDER BY id"
        ).fetchall()


async def test_only_what_is_stuck_for_too_long_is_given_back(
    db: Database, database_url: str
) -> None:
    await add(db, started_at=None)
    await add(db, started_at="now() - interval '890 seconds'")
    stuck = [await add(db), await add(db, started_at="now() - interval '1 day'")]
    assert await recover_ids(db) == stuck
    statuses = [row["status"] for row in rows_in(database_url)]
    assert statuses == ["pending", "processing", "pending", "pending"]
    assert await recover_ids(db) == []


async def test_a_given_back_attachment_has_one_attempt_more_and_no_stamp(
    db: Database, database_url: str
) -> None:
    await add(db, attempts=2)
    await recover_ids(db)
    (row,) = rows_in(database_url)
    assert (row["status"], row["attempts"]) == ("pending", 3)
    assert (row["stamp"], row["finished_at"]) == (None, None)
    assert str(row["error"]).startswith("stuck: in processing since ")
    assert str(row["error"]).endswith(", attempt 3 of 5")


@pytest.mark.parametrize("attempts", [4, 7])
async def test_after_the_last_attempt_it_fails_with_a_reason(
    db: Database, database_url: str, attempts: int
) -> None:
    await add(db, attempts=attempts)
    await recover_ids(db)
    (row,) = rows_in(database_url)
    assert (row["status"], row["attempts"]) == ("failed", attempts + 1)
    assert (row["stamp"], row["finished_at"] is None) == (None, False)
    assert f"attempt {attempts + 1} of 5" in str(row["error"])


async def test_what_another_replica_has_locked_is_skipped_without_waiting(db: Database) -> None:
    locked, free = await add(db), await add(db)
    async with db.transaction() as conn:
        await conn.execute("SELECT 1 FROM attachment WHERE id = $1 FOR UPDATE", locked)
        assert await recover_ids(db) == [free]
    assert await recover_ids(db) == [locked]


async def test_every_release_is_counted_and_logged(
    db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    released = "mailroom_attachments_released_total"
    before = REGISTRY.get_sample_value(released) or 0
    pending, failed = await add(db), await add(db, attempts=4)
    settings = Settings.load()
    assert await recover(db, settings) == 2
    assert await recover(db, settings) == 0
    assert REGISTRY.get_sample_value(released) == before + 2
    warnings = {record.getMessage() for record in caplog.records}
    assert all(record.levelno == logging.WARNING for record in caplog.records)
    assert len(warnings) == 2
    assert any(line.startswith(f"attachment {pending} is pending: stuck") for line in warnings)
    assert any(line.startswith(f"attachment {failed} is failed: stuck") for line in warnings)
