"""`python -m service attachment`: what failed and why, what was read, and another try."""

import json

import psycopg
import pytest

from service.db.attachments import Outcome, claim_attachments, write_outcomes
from service.db.pool import Database
from service.db.requests import store_requests
from service.model import NewAttachment, Verdict
from tests.db.rows import BODY, new_file, new_request
from tests.system.test_cli import failure, run, run_all, succeed

LOGO = NewAttachment("file", "3", "logo.png", "image/png", 90, Verdict.INLINE_IMAGE, "an image")
RESULT = {"text": "Total \x1b[2J 94.80", "pages": [], "warnings": []}


@pytest.fixture
async def ids(db: Database) -> list[int]:
    """One that failed, one that is done, one skipped, one pending."""
    async with db.transaction() as conn:
        files = (new_file(b"a"), new_file(b"b", filename="done.pdf"), LOGO)
        await store_requests(conn, None, [new_request("<1@example.com>", attachments=files)])
    failed, done = await claim_attachments(db, limit=5, inline_bytes=10, with_texts=False)
    await write_outcomes(db, [Outcome(failed, "failed", error="damaged: \x1b[2J", counted=1)])
    await write_outcomes(db, [Outcome(done, "done", json.dumps(RESULT))])
    async with db.transaction() as conn:
        await store_requests(conn, None, [new_request("<2@example.com>", attachments=(BODY,))])
        rows = await conn.fetch("SELECT id FROM attachment ORDER BY id")
    return [row["id"] for row in rows]


def statuses(url: str) -> list[str]:
    with psycopg.connect(url) as conn:
        return [row[0] for row in conn.execute("SELECT status FROM attachment ORDER BY id")]


async def test_it_shows_what_failed_and_everything(database_url: str, ids: list[int]) -> None:
    listing = ["attachment", "list"]
    results = run_all(
        [
            [*listing, "--json"],
            [*listing, "--status", "all", "--json"],
            [*listing, "--status", "all", "--limit", "1", "--json"],
            listing,
        ],
        DATABASE_URL=database_url,
    )
    assert [(result.returncode, result.stderr) for result in results] == [(0, "")] * 4
    failed, everything, newest = (json.loads(result.stdout) for result in results[:3])
    assert [(row["id"], row["status"]) for row in failed] == [(ids[0], "failed")]
    assert [row["status"] for row in everything] == ["failed", "done", "skipped", "pending"]
    assert [row["id"] for row in newest] == [ids[3]]
    assert "damaged: " in results[3].stdout
    assert "\x1b" not in results[3].stdout


async def test_it_shows_what_was_read(database_url: str, ids: list[int]) -> None:
    show = ["attachment", "show", str(ids[1])]
    as_json = json.loads(succeed(*show, "--json", DATABASE_URL=database_url))
    assert (as_json["filename"], as_json["status"]) == ("done.pdf", "done")
    assert as_json["result"] == RESULT
    lines = succeed(*show, DATABASE_URL=database_url)
    assert '"text": "Total \\u001b[2J 94.80"' in lines
    assert "\x1b" not in lines
    pending = succeed("attachment", "show", str(ids[3]), "--json", DATABASE_URL=database_url)
    assert json.loads(pending)["result"] is None


async def test_a_retry_makes_pending_what_has_ended(database_url: str, ids: list[int]) -> None:
    assert succeed("attachment", "retry", "--all", DATABASE_URL=database_url) == "1 pending again\n"
    assert statuses(database_url) == ["pending", "done", "skipped", "pending"]
    done = str(ids[1])
    assert succeed("attachment", "retry", done, DATABASE_URL=database_url) == "1 pending again\n"
    assert statuses(database_url) == ["pending", "pending", "skipped", "pending"]


async def test_of_several_all_are_retried_or_none(database_url: str, ids: list[int]) -> None:
    before = statuses(database_url)
    skipped = run("attachment", "retry", *map(str, ids[1:3]), DATABASE_URL=database_url)
    assert "was skipped" in failure(skipped)
    pending = run("attachment", "retry", str(ids[3]), DATABASE_URL=database_url)
    assert "waits for its turn already" in failure(pending)
    assert statuses(database_url) == before
