"""Rows to check: each goes to one batch, and is decided under its claim, on its address alone."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import trio

from service.db.advertisements import (
    MAX_EMAIL_CHARS,
    Batch,
    Decision,
    claim_batch,
    release_rows,
    write_decisions,
)
from service.db.pool import Database
from service.model import AddressVerdict

VALID = AddressVerdict("valid", "mx", "takes mail", {"mx": ["10 mx.example.com"]})
INVALID = AddressVerdict("invalid", "null_mx", "takes no mail")
UNKNOWN = AddressVerdict("unknown", "dns_timeout", "no answer within 5 s", retry_after_seconds=3600)
EXPIRES_AFTER_SECONDS = 900


async def insert(db: Database, *emails: str | None) -> list[int]:
    rows = await db.fetch(
        "INSERT INTO job_advertisement (email)"
        " SELECT one FROM unnest($1::text[]) WITH ORDINALITY AS t(one, n) ORDER BY n RETURNING id",
        list(emails),
    )
    return [row["id"] for row in rows]


async def claim(db: Database, limit: int = 10) -> Batch:
    batch = await claim_batch(db, limit, expires_after_seconds=EXPIRES_AFTER_SECONDS)
    assert batch is not None
    return batch


async def is_nothing_due(db: Database) -> bool:
    return await claim_batch(db, 10, expires_after_seconds=EXPIRES_AFTER_SECONDS) is None


async def row_of(db: Database, row_id: int) -> Any:
    (row,) = await db.fetch("SELECT * FROM job_advertisement WHERE id = $1", row_id)
    return row


async def test_each_verdict_is_stored_with_its_evidence(db: Database) -> None:
    good, bad, open_ = await insert(db, "a@example.com", None, "c@example.com")
    batch = await claim(db)
    assert batch.emails == {good: "a@example.com", bad: None, open_: "c@example.com"}
    decisions = [Decision(good, VALID), Decision(bad, INVALID), Decision(open_, UNKNOWN)]
    assert await write_decisions(db, batch, decisions) == decisions
    checks = {}
    for row_id, verified in ((good, True), (bad, False), (open_, None)):
        row = await row_of(db, row_id)
        assert (row["email_verified"], row["email_check_claimed_at"]) == (verified, None)
        checks[row_id] = json.loads(row["email_check"])
        age = datetime.now(UTC) - datetime.fromisoformat(checks[row_id].pop("checked_at"))
        assert timedelta(0) <= age < timedelta(minutes=1)
    assert checks[good] == {
        "verdict": "valid",
        "reason": "mx",
        "detail": "takes mail",
        "evidence": {"mx": ["10 mx.example.com"]},
        "retry_at": None,
    }
    assert (checks[bad]["verdict"], checks[bad]["retry_at"]) == ("invalid", None)
    until_retry = datetime.fromisoformat(checks[open_]["retry_at"]) - datetime.now(UTC)
    assert timedelta(minutes=59) < until_retry < timedelta(minutes=61)
    assert await is_nothing_due(db)


async def test_an_unknown_row_is_due_again_after_its_delay(db: Database) -> None:
    (row_id,) = await insert(db, "a@example.com")
    batch = await claim(db)
    await write_decisions(db, batch, [Decision(row_id, UNKNOWN)])
    assert await is_nothing_due(db)
    await db.fetch(
        "UPDATE job_advertisement"
        " SET email_check_not_before = email_check_not_before - interval '1 hour'"
    )
    assert list((await claim(db)).emails) == [row_id]


async def test_of_rows_that_ask_anew_the_verdict_is_replaced(db: Database) -> None:
    (row_id,) = await insert(db, "a@example.com")
    await write_decisions(db, await claim(db), [Decision(row_id, UNKNOWN)])
    await db.fetch("UPDATE job_advertisement SET email_check_not_before = '-infinity'")
    await write_decisions(db, await claim(db), [Decision(row_id, VALID)])
    assert (await row_of(db, row_id))["email_verified"] is True
    await db.fetch("UPDATE job_advertisement SET email_verified = NULL")
    await write_decisions(db, await claim(db), [Decision(row_id, INVALID)])
    assert (await row_of(db, row_id))["email_verified"] is False


async def test_many_that_claim_at_once_share_the_rows(db: Database) -> None:
    ids = await insert(db, *(f"user{number}@example.com" for number in range(100)))
    batches: list[Batch] = []

    async def take() -> None:
        batches.append(await claim(db, 10))

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(take)
    claimed = [row_id for batch in batches for row_id in batch.emails]
    assert sorted(claimed) == ids
    assert await is_nothing_due(db)


async def test_the_longest_waiting_come_first(db: Database) -> None:
    first, second, third = await insert(db, "1@example.com", "2@example.com", "3@example.com")
    await db.fetch(
        "UPDATE job_advertisement SET email_check_not_before = now() - interval '1 hour'"
        " WHERE id = $1",
        first,
    )
    assert list((await claim(db, 2)).emails) == [second, third]


async def test_rows_of_one_domain_come_together(db: Database) -> None:
    domains = ["b.example.com", "A.example.com", "B.example.com", "a.example.com"]
    ids = await insert(db, *(f"user{n}@{one}" for n, one in enumerate(domains)))
    batches = [set((await claim(db, 2)).emails) for _ in range(2)]
    assert batches == [{ids[1], ids[3]}, {ids[0], ids[2]}]


async def test_a_claim_that_is_too_old_is_due_again_and_its_late_verdict_changes_nothing(
    db: Database,
) -> None:
    (row_id,) = await insert(db, "a@example.com")
    dead = await claim(db)
    assert await is_nothing_due(db)
    await db.fetch("UPDATE job_advertisement SET email_check_claimed_at = now() - interval '1 day'")
    late = Batch((await row_of(db, row_id))["email_check_claimed_at"], dead.emails)
    heir = await claim(db)
    for lost in (dead, late):
        assert await write_decisions(db, lost, [Decision(row_id, INVALID)]) == []
        assert (await row_of(db, row_id))["email_check_claimed_at"] == heir.stamp
    assert await write_decisions(db, heir, [Decision(row_id, VALID)]) == [Decision(row_id, VALID)]
    assert (await row_of(db, row_id))["email_verified"] is True


@pytest.mark.parametrize(
    ("change", "verified"),
    [
        ("email = 'other@example.com'", None),
        ("email = NULL", None),
        ("email_verified = true", True),  # by hand
    ],
)
async def test_a_row_that_was_changed_meanwhile_is_given_back_undecided(
    db: Database, change: str, verified: bool | None
) -> None:
    row_id, neighbour = await insert(db, "a@example.com", "b@example.com")
    batch = await claim(db)
    await db.fetch(f"UPDATE job_advertisement SET {change} WHERE id = $1", row_id)
    decisions = [Decision(row_id, INVALID), Decision(neighbour, VALID)]
    assert await write_decisions(db, batch, decisions) == decisions[1:]
    row = await row_of(db, row_id)
    assert (row["email_verified"], row["email_check"]) == (verified, None)
    assert row["email_check_claimed_at"] is None


async def test_a_batch_can_be_given_back_whole(db: Database) -> None:
    ids = await insert(db, "a@example.com", "b@example.com")
    batch = await claim(db)
    assert list(batch.emails) == ids
    await release_rows(db, batch, batch.emails)
    assert list((await claim(db)).emails) == ids


ODD = ["", "  ", "ä@münchen.example", "x" * 10_240, "a\r\nb@example.com", '"a b"@example.com', "😀"]


async def test_any_address_that_text_can_hold_survives_the_way(db: Database) -> None:
    ids = await insert(db, *ODD)
    batch = await claim(db)
    assert [batch.emails[row_id] for row_id in ids] == [one[:MAX_EMAIL_CHARS] for one in ODD]
    detail = "said \u2028 \\u0000 '\" 😀"
    verdict = AddressVerdict("invalid", "syntax", detail, {"said": [detail]})
    written = await write_decisions(db, batch, [Decision(row_id, verdict) for row_id in ids])
    assert len(written) == len(ODD)
    check = json.loads((await row_of(db, ids[0]))["email_check"])
    assert (check["detail"], check["evidence"]) == (detail, {"said": [detail]})


async def test_a_claim_reads_an_index_however_many_rows_wait(db: Database) -> None:
    await db.fetch(
        "INSERT INTO job_advertisement (email, email_check_not_before)"
        " SELECT 'user@example.com', now() + interval '1 day' FROM generate_series(1, 20000)"
    )
    await db.fetch("ANALYZE job_advertisement")
    ids = await insert(db, "due@example.com")
    assert list((await claim(db)).emails) == ids
    plan = await db.fetch(
        "EXPLAIN SELECT id FROM job_advertisement"
        " WHERE email_verified IS NULL AND email_check_not_before <= now()"
        " ORDER BY email_check_not_before, left(lower(split_part(email, '@', -1)), 255), id"
        " LIMIT 200"
    )
    text = " ".join(line[0] for line in plan)
    assert "job_advertisement_due" in text
    assert "Sort" not in text
