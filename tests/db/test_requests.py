"""Storing requests: each mail exactly once, and the UNIQUE constraint decides."""

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
import trio
from psycopg.rows import dict_row

from service.db.driver_errors import REJECTED_ERRORS
from service.db.pool import Database
from service.db.requests import (
    decide_source_ref,
    find_fingerprints,
    is_stored,
    store_requests,
    suffixed_ref,
)
from service.model import NewAttachment, NewRequest, Verdict
from tests.db.rows import BODY, RECEIVED_AT, fingerprint, new_file, new_request

WAITING = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event_type = 'Lock'
"""
ONE, TWO = "<1@example.com>", "<2@example.com>"


async def store(db: Database, *requests: NewRequest) -> list[str]:
    async with db.transaction() as conn:
        return await store_requests(conn, None, requests)


def select(url: str, statement: str) -> list[dict[str, object]]:
    with psycopg.connect(url, row_factory=dict_row) as conn:
        return conn.execute(statement).fetchall()


def refs_in(url: str) -> list[object]:
    return [row["source_ref"] for row in select(url, "SELECT source_ref FROM request ORDER BY id")]


async def wait_for_blocked(url: str, count: int) -> None:
    """Until so many connections wait for a lock."""
    with trio.fail_after(5), psycopg.connect(url, autocommit=True) as watcher:
        while watcher.execute(WAITING).fetchone() != (count,):  # noqa: ASYNC110
            await trio.sleep(0.01)


async def test_a_request_is_stored_with_all_that_is_known(db: Database, database_url: str) -> None:
    request = replace(new_request(ONE), sent_at=RECEIVED_AT)
    assert await store(db, request) == ["stored"]
    (row,) = select(database_url, "SELECT * FROM request")
    assert row.pop("id")
    assert row.pop("created_at")
    assert row == {
        "source": "email",
        "source_ref": ONE,
        "mailbox_id": None,
        "message_id": ONE,
        "message_id_reused": False,
        "content_fingerprint": fingerprint("hello"),
        "subject": "about hello",
        "sender": "bob@example.org",
        "recipients": [{"kind": "to", "address": "anna@example.com"}],
        "sent_at": RECEIVED_AT,
        "raw_date": "Mon, 2 Mar 2026 04:48:00 +0000",
        "received_at": RECEIVED_AT,
        "body_text": "hello",
    }


async def test_what_is_missing_is_null(db: Database, database_url: str) -> None:
    bare = replace(
        new_request("sha256:0"), message_id=None, subject=None, sender=None, raw_date=None
    )
    assert await store(db, bare) == ["stored"]
    (row,) = select(database_url, "SELECT message_id, subject, sender, raw_date FROM request")
    assert set(row.values()) == {None}


async def test_a_batch_keeps_its_order_and_each_request_its_attachments(
    db: Database, database_url: str
) -> None:
    refs = [f"<{number}@example.com>" for number in (3, 1, 2)]
    batch = [new_request(ref, ref, attachments=(new_file(ref.encode()), BODY)) for ref in refs]
    assert await store(db, *batch) == ["stored"] * 3
    assert refs_in(database_url) == refs
    rows = select(
        database_url,
        "SELECT source_ref, kind, content FROM attachment a JOIN request r ON r.id = request_id"
        " ORDER BY a.id",
    )
    assert [tuple(row.values()) for row in rows] == [
        one for ref in refs for one in ((ref, "file", ref.encode()), (ref, "body", None))
    ]


async def test_no_requests_are_no_work(db: Database) -> None:
    assert await store(db) == []


async def test_the_same_batch_again_is_all_duplicates(db: Database, database_url: str) -> None:
    batch = [new_request(f"<{number}@example.com>") for number in range(5)]
    assert await store(db, *batch) == ["stored"] * 5
    assert await store(db, *batch) == ["duplicate"] * 5
    assert len(refs_in(database_url)) == 5
    assert len(select(database_url, "SELECT id FROM attachment")) == 5


async def test_a_batch_that_holds_a_mail_twice_stores_it_once(
    db: Database, database_url: str
) -> None:
    assert await store(db, new_request(ONE), new_request(TWO), new_request(ONE)) == [
        "stored",
        "stored",
        "duplicate",
    ]
    assert sorted(map(str, refs_in(database_url))) == [ONE, TWO]


@pytest.mark.parametrize("at_once", [True, False])
async def test_another_mail_that_reuses_an_id_is_stored_beside_it(
    db: Database, database_url: str, at_once: bool
) -> None:
    mails = [new_request(ONE, text) for text in ("first", "second", "third")]
    if at_once:
        outcomes = await store(db, *mails)
    else:
        outcomes = [outcome for mail in mails for outcome in await store(db, mail)]
    assert outcomes == ["stored"] * 3
    rows = select(
        database_url,
        "SELECT source_ref, message_id, message_id_reused, body_text FROM request ORDER BY id",
    )
    assert [tuple(row.values()) for row in rows] == [
        (ONE, ONE, False, "first"),
        (f"{ONE}#{fingerprint('second')[:16]}", ONE, True, "second"),
        (f"{ONE}#{fingerprint('third')[:16]}", ONE, True, "third"),
    ]
    assert await store(db, *mails) == ["duplicate"] * 3


async def test_two_replicas_that_store_the_same_mail_the_second_waits_and_loses_only_that(
    db: Database, database_url: str
) -> None:
    others: list[str] = []

    async def second() -> None:
        async with db.transaction() as conn:
            await conn.execute("INSERT INTO rate_limit VALUES ('outer', now())")
            batch = [
                new_request("<a@example.com>"),
                new_request(ONE),
                new_request("<z@example.com>"),
            ]
            others.extend(await store_requests(conn, None, batch))
            await conn.execute("INSERT INTO rate_limit VALUES ('goes on', now())")

    async with trio.open_nursery() as nursery, db.transaction() as conn:
        assert await store_requests(conn, None, [new_request(ONE)]) == ["stored"]
        nursery.start_soon(second)
        await wait_for_blocked(database_url, 1)
        assert others == []
    assert others == ["stored", "duplicate", "stored"]
    assert sorted(map(str, refs_in(database_url))) == [ONE, "<a@example.com>", "<z@example.com>"]
    assert len(select(database_url, "SELECT key FROM rate_limit")) == 2


async def test_the_second_replica_wins_when_the_first_one_dies(
    db: Database, database_url: str
) -> None:
    others: list[str] = []

    async def second() -> None:
        others.extend(await store(db, new_request(TWO), new_request(ONE)))

    async def first(nursery: trio.Nursery) -> None:
        async with db.transaction() as conn:
            assert await store_requests(conn, None, [new_request(ONE)]) == ["stored"]
            nursery.start_soon(second)
            await wait_for_blocked(database_url, 1)
            raise LookupError

    async with trio.open_nursery() as nursery:
        with pytest.raises(LookupError):
            await first(nursery)
    assert others == ["stored", "stored"]
    assert sorted(map(str, refs_in(database_url))) == [ONE, TWO]


async def test_two_mailboxes_that_hold_the_same_mails_in_another_order_do_not_deadlock(
    db: Database, database_url: str
) -> None:
    """Both replicas are stopped in the middle of their batch by a third one, which then dies."""
    batch = [new_request(f"<{letter}@example.com>") for letter in "amz"]
    outcomes: Counter[str] = Counter()

    async def replica(mails: list[NewRequest]) -> None:
        outcomes.update(await store(db, *mails))

    async def third(nursery: trio.Nursery) -> None:
        async with db.transaction() as conn:
            await store_requests(conn, None, [new_request("<m@example.com>")])
            nursery.start_soon(replica, batch)
            nursery.start_soon(replica, batch[::-1])
            await wait_for_blocked(database_url, 2)
            raise LookupError

    async with trio.open_nursery() as nursery:
        with pytest.raises(LookupError):
            await third(nursery)
    assert outcomes == {"stored": 3, "duplicate": 3}


async def test_many_replicas_at_once_store_each_mail_exactly_once(
    db: Database, database_url: str
) -> None:
    mails = [new_request(f"<{number}@example.com>", f"{number}") for number in range(40)]
    mails += [new_request("<reused@example.com>", f"reuse {number}") for number in range(5)]
    outcomes: Counter[str] = Counter()

    async def replica(seed: int) -> None:
        shuffled = random.Random(seed).sample(mails, len(mails))
        for start in range(0, len(shuffled), 15):
            outcomes.update(await store(db, *shuffled[start : start + 15]))

    async with trio.open_nursery() as nursery:
        for seed in range(6):
            nursery.start_soon(replica, seed)
    assert outcomes == {"stored": len(mails), "duplicate": 5 * len(mails)}
    texts = [row["body_text"] for row in select(database_url, "SELECT body_text FROM request")]
    assert sorted(map(str, texts)) == sorted(mail.body_text for mail in mails)


@pytest.mark.parametrize("size_bytes", [998, 2083])
async def test_long_ids_are_stored_and_may_be_reused(
    db: Database, database_url: str, size_bytes: int
) -> None:
    """Random, so that it does not compress: the index takes 2,704 bytes."""
    letters = random.Random(size_bytes).choices(
        "abcdefghijklmnopqrstuvwxyz0123456789", k=size_bytes
    )
    ref = "".join(letters)
    assert await store(db, new_request(ref), new_request(ref, "other")) == ["stored"] * 2
    assert refs_in(database_url) == [ref, f"{ref}#{fingerprint('other')[:16]}"]


REJECTED = [
    replace(new_request(ONE), subject="with \0"),
    replace(new_request(ONE), body_text="with \0"),
    replace(new_request(ONE), recipients=({"kind": "to", "address": "\0"},)),
    replace(new_request(ONE), body_text="half a pair \ud800"),
    replace(new_request(ONE), source_ref=""),
    replace(new_request(ONE), source_ref="x" * 2101),
    replace(new_request(ONE), attachments=(replace(BODY, size_bytes=2**63),)),
    replace(new_request(ONE), attachments=(replace(new_file(b"%PDF-"), content=None),)),
    replace(new_request(ONE), attachments=(replace(new_file(b"%PDF-"), filename="\0.pdf"),)),
]


@pytest.mark.parametrize("request_", REJECTED)
async def test_what_the_database_will_not_have_is_rejected_and_nothing_is_stored(
    db: Database, database_url: str, request_: NewRequest
) -> None:
    with pytest.raises(REJECTED_ERRORS):
        await store(db, new_request(TWO), request_)
    assert refs_in(database_url) == []
    assert await store(db, new_request(TWO)) == ["stored"]


async def test_a_large_content_in_an_open_file_is_stored_byte_for_byte(
    db: Database, database_url: str, tmp_path: Path
) -> None:
    content = random.Random(1).randbytes(5 * 1024 * 1024)
    with (tmp_path / "spool").open("w+b") as spool:
        spool.write(content)  # its position is at the end
        files = (new_file(b"%PDF-small", filename="a.pdf"), new_file(content, stored=spool))
        assert await store(db, new_request(ONE, attachments=files)) == ["stored"]
    rows = select(
        database_url,
        "SELECT filename, content, size_bytes, sha256, status FROM attachment ORDER BY filename",
    )
    assert [row["content"] for row in rows] == [b"%PDF-small", content]
    assert [row["size_bytes"] for row in rows] == [10, len(content)]
    assert [row["sha256"] for row in rows] == [file.sha256 for file in files]
    stored_as = "SELECT encode(sha256(content), 'hex') = sha256 AS same FROM attachment"
    assert select(database_url, stored_as) == [{"same": True}] * 2


async def test_a_large_content_is_read_again_when_the_batch_is_stored_one_by_one(
    db: Database, database_url: str, tmp_path: Path
) -> None:
    await store(db, new_request(TWO))
    with (tmp_path / "spool").open("w+b") as spool:
        spool.write(b"%PDF-in a file")
        large = new_request(ONE, attachments=(new_file(b"%PDF-in a file", stored=spool),))
        assert await store(db, large, new_request(TWO)) == ["stored", "duplicate"]
    contents = select(database_url, "SELECT content FROM attachment WHERE kind = 'file'")
    assert contents == [{"content": b"%PDF-in a file"}]


async def test_what_is_not_wanted_has_a_row_with_its_reason(
    db: Database, database_url: str
) -> None:
    skipped = NewAttachment(
        "file", "3", None, "image/png", 900, Verdict.INLINE_IMAGE, "an inline image under 51200"
    )
    await store(db, new_request(ONE, attachments=(BODY, skipped)))
    rows = select(
        database_url,
        "SELECT kind, part_id, filename, content_type, size_bytes, verdict, verdict_reason, status,"
        " attempts, content, sha256 FROM attachment ORDER BY id",
    )
    assert [tuple(row.values()) for row in rows] == [
        ("body", None, None, "text/plain", 5, "extract", None, "pending", 0, None, None),
        (
            *("file", "3", None, "image/png", 900, "inline_image", "an inline image under 51200"),
            *("skipped", 0, None, None),
        ),
    ]


async def test_what_is_known_of_ids_is_found_in_both_forms(db: Database) -> None:
    await store(db, new_request(ONE, "first"), new_request(ONE, "second"), new_request(TWO))
    identities = [(ONE, fingerprint("second")), ("<none@example.com>", fingerprint("first"))]
    async with db.connection() as conn:
        known = await find_fingerprints(conn, identities)
        assert await find_fingerprints(conn, []) == {}
    assert known == {
        ONE: fingerprint("first"),
        suffixed_ref(ONE, fingerprint("second")): fingerprint("second"),
    }


A, B, C = fingerprint("a"), fingerprint("b"), fingerprint("c")


@pytest.mark.parametrize(
    ("known", "stored", "ref"),
    [
        ({}, False, ONE),
        ({TWO: A}, False, ONE),
        ({ONE: A}, True, f"{ONE}#{A[:16]}"),
        ({ONE: B}, False, f"{ONE}#{A[:16]}"),
        ({ONE: B, f"{ONE}#{B[:16]}": C}, False, f"{ONE}#{A[:16]}"),
        ({f"{ONE}#{A[:16]}": A}, True, ONE),
        ({ONE: B, f"{ONE}#{A[:16]}": A}, True, None),
        ({ONE: B, f"{ONE}#{A[:16]}": C}, False, None),
    ],
)
def test_the_ref_of_a_mail_follows_from_what_is_known(
    known: dict[str, str], stored: bool, ref: str | None
) -> None:
    assert is_stored(ONE, A, known) is stored
    if ref is not None:
        assert decide_source_ref(ONE, A, known) == ref
    else:
        with pytest.raises(ValueError, match="two other mails hold the id"):
            decide_source_ref(ONE, A, known)
