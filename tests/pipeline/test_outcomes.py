"""The writer of outcomes beside locks, deadlocks and statements that are cut off."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psycopg
import pytest
import trio

from service.db.attachments import Claim, Outcome, claim_attachments
from service.db.pool import LOCK_TIMEOUT, Database
from service.db.requests import store_requests
from service.outcomes import OutcomeWriter
from tests.db.rows import BODY, new_request
from tests.servers import wait_until

LOCK_TIMEOUT_SECONDS = int(LOCK_TIMEOUT.removesuffix("s"))


async def claims(db: Database, count: int) -> Sequence[Claim]:
    for number in range(count):
        async with db.transaction() as conn:
            await store_requests(
                conn, None, [new_request(f"<{number}@example.com>", attachments=(BODY,))]
            )
    return await claim_attachments(db, limit=count, inline_bytes=1000, with_texts=False)


def statuses(url: str) -> list[str]:
    with psycopg.connect(url) as conn:
        return [row[0] for row in conn.execute("SELECT status FROM attachment ORDER BY id")]


async def write_all(writer: OutcomeWriter, found: Sequence[Claim]) -> None:
    async with trio.open_nursery() as nursery:
        for claim in found:
            nursery.start_soon(writer.write, Outcome(claim, "done", "{}"))


@contextmanager
def locked(url: str, statement: str) -> Iterator[None]:
    """Somebody else holds what the statement locks."""
    with psycopg.connect(url) as conn:
        conn.execute("SET idle_in_transaction_session_timeout = 0")
        conn.execute(statement)  # type: ignore[call-overload]
        yield
        conn.rollback()


@pytest.mark.parametrize(
    ("announces", "statement"),
    [
        (False, "SELECT FROM attachment ORDER BY id LIMIT 1 FOR UPDATE"),
        (True, "SELECT FROM request ORDER BY id LIMIT 1 FOR UPDATE"),
    ],
)
async def test_a_locked_row_keeps_nobody_else_waiting(
    db: Database, database_url: str, announces: bool, statement: str
) -> None:
    writer = OutcomeWriter(db, announces=announces)
    found = await claims(db, 5)
    with trio.fail_after(6 * LOCK_TIMEOUT_SECONDS):
        async with trio.open_nursery() as nursery:
            with locked(database_url, statement):
                nursery.start_soon(write_all, writer, found)
                await trio.to_thread.run_sync(
                    lambda: wait_until(
                        lambda: statuses(database_url) == ["processing", *["done"] * 4],
                        seconds=5 * LOCK_TIMEOUT_SECONDS,
                    )
                )
    assert statuses(database_url) == ["done"] * 5


PASSING = """
    CREATE SEQUENCE tries;
    CREATE FUNCTION fail_first() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF nextval('tries') = 1 THEN
            RAISE EXCEPTION 'not now' USING ERRCODE = '{}';
        END IF;
        RETURN NEW;
    END $$;
    CREATE TRIGGER fail_first BEFORE UPDATE ON attachment FOR EACH ROW
        WHEN (NEW.status = 'done') EXECUTE FUNCTION fail_first();
"""


@pytest.mark.parametrize("code", ["40P01", "40001", "53100", "53200", "55P03", "57014"])
async def test_what_passes_is_written_a_moment_later(
    db: Database, database_url: str, code: str
) -> None:
    found = await claims(db, 3)
    with psycopg.connect(database_url) as conn:
        conn.execute(PASSING.format(code))  # type: ignore[call-overload]
    with trio.fail_after(10):
        await write_all(OutcomeWriter(db, announces=False), found)
    assert statuses(database_url) == ["done"] * 3


@pytest.mark.expects_errors
async def test_what_nobody_expected_costs_itself_alone(
    db: Database, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    found = await claims(db, 3)
    with psycopg.connect(database_url) as conn:
        conn.execute(
            "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " RAISE EXCEPTION 'never'; END $$"
        )
        conn.execute(
            "CREATE TRIGGER fail BEFORE UPDATE ON attachment FOR EACH ROW"
            f" WHEN (NEW.id = {found[1].id}) EXECUTE FUNCTION fail()"  # type: ignore[arg-type]
        )
    writer = OutcomeWriter(db, announces=False)
    ours: dict[int, bool] = {}

    async def write(claim: Claim) -> None:
        ours[claim.id] = await writer.write(Outcome(claim, "done", "{}"))

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            for claim in found:
                nursery.start_soon(write, claim)
    assert statuses(database_url) == ["done", "processing", "done"]
    assert [ours[claim.id] for claim in found] == [True, False, True]
    assert f"attachment {found[1].id}: cannot be written" in caplog.text
