"""Table `enrich_import`: rows and the line that they reach to move together, also for several."""

import hashlib
from typing import Any

import pytest
import trio

from service.db.imports import Import, begin_import, get_import, store_addresses
from service.db.pool import Database

FILE = hashlib.sha256(b"a file").digest()
ODD = ["", "a\tb\\n\n", '"quoted"@example.com', "anna@🦄.example.com", "x" * 10_240, "\\N"]


async def begin(db: Database, *, again: bool = False) -> Import:
    async with db.transaction() as conn:
        return await begin_import(conn, FILE, again=again)


async def store(
    db: Database, addresses: list[str], lines_before: int, lines_done: int, *, is_last: bool = False
) -> bool:
    async with db.transaction() as conn:
        return await store_addresses(
            conn,
            FILE,
            addresses,
            lines_before=lines_before,
            lines_done=lines_done,
            is_last=is_last,
        )


async def state(db: Database) -> Import:
    async with db.connection() as conn:
        return await get_import(conn, FILE)


async def rows(db: Database) -> list[Any]:
    return list(await db.fetch("SELECT * FROM job_advertisement ORDER BY id"))


async def emails(db: Database) -> list[str]:
    return [row["email"] for row in await rows(db)]


async def test_addresses_are_stored_as_they_are_and_due_at_once(db: Database) -> None:
    await begin(db)
    assert await store(db, ODD, 0, 6)
    assert await emails(db) == ODD
    due = "SELECT count(*) FROM job_advertisement WHERE email_check_not_before <= now()"
    assert (await db.fetch(due))[0]["count"] == len(ODD)
    assert {row["email_verified"] for row in await rows(db)} == {None}
    now = await state(db)
    assert (now.lines_done, now.rows_stored, now.finished_at) == (6, 6, None)


async def test_what_is_done_is_not_stored_again(db: Database) -> None:
    await begin(db)
    assert await store(db, ["a@example.com"], 0, 1)
    assert not await store(db, ["a@example.com"], 0, 1)
    assert not await store(db, ["a@example.com", "b@example.com"], 0, 2)
    assert await store(db, ["b@example.com"], 1, 2)
    assert await emails(db) == ["a@example.com", "b@example.com"]
    assert (await begin(db)).lines_done == 2


async def test_the_last_batch_finishes_it_and_again_starts_anew(db: Database) -> None:
    await begin(db)
    assert await store(db, ["a@example.com"], 0, 1)
    assert await store(db, [], 1, 9, is_last=True)
    finished = await begin(db)
    assert (finished.lines_done, finished.rows_stored) == (9, 1)
    assert finished.finished_at is not None
    assert not await store(db, ["b@example.com"], 9, 10)
    anew = await begin(db, again=True)
    assert (anew.lines_done, anew.rows_stored, anew.finished_at) == (0, 0, None)
    assert await store(db, ["a@example.com"], 0, 1, is_last=True)
    assert await emails(db) == ["a@example.com"] * 2


async def test_a_batch_that_is_rolled_back_leaves_nothing(db: Database) -> None:
    async def store_and_fail() -> None:
        async with db.transaction() as conn:
            await store_addresses(
                conn, FILE, ["a@example.com"], lines_before=0, lines_done=1, is_last=True
            )
            raise RuntimeError

    before = await begin(db)
    with pytest.raises(RuntimeError):
        await store_and_fail()
    assert await state(db) == before
    assert await emails(db) == []


async def test_of_several_at_once_one_stores_each_batch(db: Database) -> None:
    stored: list[int] = []

    async def run() -> None:
        await begin(db)
        for line in range(20):
            if await store(db, [f"{line}@example.com"], line, line + 1):
                stored.append(line)

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            for _ in range(6):
                nursery.start_soon(run)
    assert sorted(stored) == list(range(20))
    assert await emails(db) == [f"{line}@example.com" for line in range(20)]
    assert (await state(db)).rows_stored == 20
