"""From a claim to its outcome: real PostgreSQL, a real reading process, an LLM over real HTTP."""

import gc
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
import trio
from psycopg.rows import dict_row

from service.db.attachments import Claim, Outcome, claim_attachments, recover_stuck_attachments
from service.db.pool import Database, open_database
from service.db.requests import store_requests
from service.errors import DatabaseUnreachable, ReadFailed, TryLater
from service.extract.llm import open_llm
from service.extract.prompt import Document
from service.extract.readers import open_readers
from service.model import NewAttachment
from service.processing import (
    FIRST_DELAY_SECONDS,
    MAX_DELAY_SECONDS,
    UNCOUNTED_DELAY_SECONDS,
    Processor,
    decide_failure,
)
from service.settings import Settings
from tests.db.rows import BODY, new_file, new_request
from tests.llm.endpoint import HASTY, MODEL, OUTPUT, completion, failure
from tests.scripted_http import Hang, ScriptedHttp
from tests.servers import PostgresCluster

CSV = b"a;b\n1;2\n"
TABLE = {"tables": [{"name": "", "rows": [["a", "b"], ["1", "2"]]}], "warnings": []}


def a_claim(attempts: int = 0) -> Claim:
    stamp = datetime(2026, 3, 2, tzinfo=UTC)
    return Claim(1, 1, "file", "a.csv", attempts, stamp, CSV, None, True)


def decide(error: Exception, attempts: int = 0, result: bytes | None = None) -> Outcome:
    return decide_failure(a_claim(attempts), error, result, max_attempts=5)


def test_a_files_own_fault_is_final() -> None:
    outcome = decide(ReadFailed("no_text", "it is a scan"))
    assert (outcome.status, outcome.error) == ("failed", "no_text: it is a scan")
    assert (outcome.result, outcome.counted) == (None, 0)
    assert decide(ReadFailed("llm_invalid", "x"), 3, b"{}").result == "{}"


@pytest.mark.parametrize(("attempts", "factor"), [(0, 1), (1, 2), (2, 4), (3, 8)])
def test_other_trouble_is_tried_again_after_ever_longer_delays(attempts: int, factor: int) -> None:
    outcome = decide(TryLater("it is away"), attempts)
    assert (outcome.status, outcome.error, outcome.counted) == ("pending", "it is away", 1)
    assert outcome.delay_seconds == FIRST_DELAY_SECONDS * factor


def test_a_longer_delay_that_was_asked_for_is_kept_up_to_an_hour() -> None:
    assert decide(TryLater("", retry_after_seconds=100)).delay_seconds == 100
    assert decide(TryLater("", retry_after_seconds=1)).delay_seconds == FIRST_DELAY_SECONDS
    assert decide(TryLater("", retry_after_seconds=1e9)).delay_seconds == MAX_DELAY_SECONDS


@pytest.mark.parametrize("error", [TryLater("it is away"), KeyError("x")])
def test_the_last_attempt_fails_with_what_was_read(error: Exception) -> None:
    outcome = decide(error, 4, b'{"text": "kept"}')
    assert (outcome.status, outcome.result) == ("failed", '{"text": "kept"}')
    assert str(outcome.error).startswith("unavailable: ")
    assert str(outcome.error).endswith(", attempt 5 of 5")


def test_a_machine_in_trouble_counts_no_attempt() -> None:
    outcome = decide(TryLater("no process could be started", counts=False), 4)
    assert (outcome.status, outcome.counted) == ("pending", 0)
    assert outcome.delay_seconds == UNCOUNTED_DELAY_SECONDS


def test_a_database_that_is_away_counts_no_attempt() -> None:
    outcome = decide(DatabaseUnreachable("gone"), 4)
    assert (outcome.status, outcome.counted, outcome.delay_seconds) == ("pending", 0, 0)


@asynccontextmanager
async def open_processor(
    db: Database, server: ScriptedHttp | None = None, **settings: Any
) -> AsyncIterator[Processor]:
    if server is not None:
        settings |= {"llm_base_url": f"{server.url}/v1", "llm_model": MODEL}
    loaded = Settings.load(**settings)
    async with (
        open_llm(loaded, HASTY) as llm,
        open_readers(loaded.pipeline_concurrency, loaded.read_limits) as readers,
    ):
        yield Processor(db, loaded, readers, llm)


async def claims_of(db: Database, *attachments: NewAttachment) -> list[Claim]:
    async with db.transaction() as conn:
        await store_requests(conn, None, [new_request("<1@example.com>", attachments=attachments)])
    return await claim_attachments(db, limit=10, inline_bytes=1000, with_texts=True)


def rows_in(url: str) -> list[dict[str, Any]]:
    with psycopg.connect(url, row_factory=dict_row) as conn:
        return conn.execute("SELECT * FROM attachment ORDER BY id").fetchall()


async def processed(
    db: Database, processor: Processor, *attachments: NewAttachment
) -> Sequence[Outcome | None]:
    """The outcomes of all of these, one after the other."""
    return [await processor.process(claim) for claim in await claims_of(db, *attachments)]


async def test_files_and_texts_become_results(db: Database, database_url: str) -> None:
    large = b"a;b\n" + b"1;2\n" * 1000
    async with open_processor(db) as processor:
        await processed(db, processor, new_file(CSV), new_file(large), new_file(b"%PDF-1.4\nx"))
    small_row, large_row, damaged = rows_in(database_url)
    assert (small_row["status"], small_row["result"]) == ("done", TABLE)
    assert len(large_row["result"]["tables"][0]["rows"]) == 1001
    assert (damaged["status"], damaged["result"], damaged["attempts"]) == ("failed", None, 0)
    assert damaged["error"].startswith("damaged: ")


async def test_a_body_is_its_own_result(db: Database, database_url: str) -> None:
    async with open_processor(db) as processor:
        await processed(db, processor, BODY)
    (row,) = rows_in(database_url)
    assert row["result"] == {"text": "hello", "pages": [], "warnings": []}


async def test_the_llm_gets_document_and_text_in_one_call(db: Database, database_url: str) -> None:
    with ScriptedHttp(completion()) as server:
        async with open_processor(db, server) as processor:
            await processed(db, processor, new_file(CSV, filename="orders.csv"), new_file(CSV))
    first, second = rows_in(database_url)
    assert {**first["result"], "llm": None} == {**TABLE, "llm": None}
    assert first["result"]["llm"]["output"] == OUTPUT
    assert first["result"]["llm"]["usage"] == {"prompt_tokens": 100, "completion_tokens": 20}
    assert second["status"] == "done"
    bodies = [one.body.decode() for one in server.requests]
    assert len(bodies) == 2
    for body, name in zip(bodies, ("orders.csv", "invoice.pdf"), strict=True):
        assert name in body, "the file"
        assert "hello" in body, "its mail's text"


async def test_what_was_read_is_kept_when_the_llm_gives_nothing(
    db: Database, database_url: str
) -> None:
    with ScriptedHttp(failure(400, "too long")) as server:
        async with open_processor(db, server) as processor:
            await processed(db, processor, new_file(CSV))
    (row,) = rows_in(database_url)
    assert (row["status"], row["result"]) == ("failed", TABLE)
    assert row["error"].startswith("llm_refused: ")


async def test_a_refused_document_is_not_kept_in_memory(db: Database) -> None:
    """As it would be by a cycle of an exception and its traceback, until garbage is collected."""

    def kept() -> int:
        return sum(isinstance(one, Document) for one in gc.get_objects())

    with ScriptedHttp(failure(400, "no")) as server:
        async with open_processor(db, server) as processor:
            claims = await claims_of(db, *[new_file(CSV)] * 3)
            gc.collect()
            gc.disable()
            try:
                for claim in claims:
                    await processor.process(claim)
                    assert kept() == 0
            finally:
                gc.enable()


async def test_an_llm_that_is_away_is_asked_again_later(db: Database, database_url: str) -> None:
    with ScriptedHttp(failure(503)) as server:
        async with open_processor(db, server) as processor:
            await processed(db, processor, new_file(CSV))
    (row,) = rows_in(database_url)
    assert (row["status"], row["attempts"], row["result"]) == ("pending", 1, None)
    assert "503" in row["error"]
    assert row["not_before"] is not None


async def test_a_claim_ends_before_it_counts_as_stuck(db: Database, database_url: str) -> None:
    with ScriptedHttp(Hang()) as server:
        async with open_processor(db, server, watchdog_stuck_after_seconds=0.5) as processor:
            await processed(db, processor, new_file(CSV))
    (row,) = rows_in(database_url)
    assert (row["status"], row["attempts"]) == ("pending", 1)
    assert "not done within" in row["error"]


async def test_waiting_for_the_llm_counts_no_attempt(db: Database, database_url: str) -> None:
    with ScriptedHttp(Hang()) as server:
        async with open_processor(
            db, server, llm_concurrency=1, watchdog_stuck_after_seconds=1
        ) as processor:
            claims = await claims_of(db, *[new_file(CSV)] * 5)
            async with trio.open_nursery() as nursery:
                for claim in claims:
                    nursery.start_soon(processor.process, claim)
    # The first one was not answered, the second one began too late.
    assert sorted(row["attempts"] for row in rows_in(database_url)) == [0, 0, 0, 1, 1]
    assert {row["status"] for row in rows_in(database_url)} == {"pending"}


async def test_a_cancelled_claim_is_given_back_at_once(db: Database, database_url: str) -> None:
    with ScriptedHttp(Hang()) as server:
        async with open_processor(db, server) as processor:
            (claim,) = await claims_of(db, new_file(CSV))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(processor.process, claim)
                with trio.fail_after(10):
                    while not server.requests:  # noqa: ASYNC110 - filled by a thread
                        await trio.sleep(0.01)
                nursery.cancel_scope.cancel()
    (row,) = rows_in(database_url)
    assert (row["status"], row["attempts"]) == ("pending", 0)
    assert len(await claim_attachments(db, limit=1, inline_bytes=1, with_texts=False)) == 1


async def test_the_result_of_a_lost_claim_is_dropped(
    db: Database, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_processor(db) as processor:
        small, large = await claims_of(db, new_file(CSV), new_file(CSV * 500))
        async with db.transaction() as conn:
            await recover_stuck_attachments(conn, stuck_after_seconds=0, max_attempts=5)
        assert await processor.process(small) is None
        assert await processor.process(large) is None
    assert [row["status"] for row in rows_in(database_url)] == ["pending", "pending"]
    assert caplog.text.count("the claim was lost") == 2


async def test_a_result_that_postgresql_will_not_have_is_a_failure(
    db: Database, database_url: str
) -> None:
    """As of a reader that is out of its mind: its JSON is passed on unread."""

    class Mad:
        async def read(self, _content: bytes) -> bytes:
            return b'{"text": "\\u0000"}'

    processor = Processor(db, Settings.load(), Mad(), None)  # type: ignore[arg-type]
    await processed(db, processor, new_file(CSV))
    (row,) = rows_in(database_url)
    assert (row["status"], row["result"]) == ("failed", None)
    assert row["error"].startswith("damaged: what was read from it cannot be stored")


async def test_an_outcome_waits_for_a_database_that_is_away(
    caplog: pytest.LogCaptureFixture, migrated_url: tuple[PostgresCluster, str]
) -> None:
    cluster, url = migrated_url
    async with open_database(url) as db:
        await db.connect()
        async with open_processor(db) as processor:
            (claim,) = await claims_of(db, new_file(CSV))
            await trio.to_thread.run_sync(cluster.stop)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(processor.process, claim)
                with trio.fail_after(20):
                    while "trying again" not in caplog.text:  # noqa: ASYNC110
                        await trio.sleep(0.05)
                await trio.to_thread.run_sync(cluster.start)
    (row,) = rows_in(url)
    assert (row["status"], row["attempts"]) == ("done", 0)
