"""The quarantine: each failed message is one visible row, tried again a bounded number of times."""

import pytest

from service.db.mailboxes import delete_mailbox, insert_mailbox
from service.db.pool import Database
from service.db.quarantine import (
    MAX_ATTEMPTS,
    Quarantined,
    get_quarantined,
    insert_quarantined,
    list_quarantine,
    list_retryable,
    load_raw,
    resolve_message,
    resolve_row,
)
from service.errors import MailroomError
from service.model import FailedMessage, ImapConnection

FAILED = FailedMessage("41", "fetch", "NO System Error (Failure)")


@pytest.fixture
async def mailbox_id(db: Database) -> int:
    async with db.transaction() as conn:
        return await insert_mailbox(
            conn,
            address="anna@example.com",
            connection=ImapConnection("mail.example.com", 993, "implicit", "anna"),
            secret=b"token",
            poll_interval_seconds=120,
            ingest_all=True,
            ingest_since=None,
        )


async def put(db: Database, mailbox_id: int, *failed: FailedMessage, uidvalidity: int = 7) -> None:
    async with db.transaction() as conn:
        for one in failed:
            await insert_quarantined(conn, mailbox_id, server_ref(uidvalidity, int(one.ref)), one)


def server_ref(uidvalidity: int, uid: int) -> dict[str, str | int]:
    return {"uidvalidity": uidvalidity, "uid": uid}


async def shown(db: Database, *, include_resolved: bool = True) -> list[Quarantined]:
    async with db.connection() as conn:
        return await list_quarantine(conn, include_resolved=include_resolved)


async def retryable(db: Database, mailbox_id: int, uidvalidity: int = 7) -> list[object]:
    scope = {"uidvalidity": uidvalidity}
    async with db.connection() as conn:
        refs = await list_retryable(conn, mailbox_id, scope=scope, limit=3)
    return [ref["uid"] for ref in refs]


async def test_a_failed_message_is_visible_with_its_reason(db: Database, mailbox_id: int) -> None:
    await put(db, mailbox_id, FailedMessage("41", "parse", "it makes no sense", b"raw \0 bytes"))
    (row,) = await shown(db)
    assert (row.address, row.server_ref) == ("anna@example.com", server_ref(7, 41))
    assert (row.stage, row.error, row.attempts) == ("parse", "it makes no sense", 1)
    assert (row.has_raw, row.resolved_at, row.status) == (True, None, "retrying")
    async with db.connection() as conn:
        assert await get_quarantined(conn, row.id) == row
        assert await load_raw(conn, row.id) == (mailbox_id, b"raw \0 bytes")


async def test_the_reason_is_kept_whatever_characters_it_has(db: Database, mailbox_id: int) -> None:
    await put(db, mailbox_id, FailedMessage("41", "store", "NUL \0, half \ud800, ü"))
    (row,) = await shown(db)
    assert row.error == "NUL , half ?, ü"


async def test_a_message_that_fails_again_is_the_same_row_with_one_attempt_more(
    db: Database, mailbox_id: int
) -> None:
    await put(db, mailbox_id, FailedMessage("41", "parse", "first", b"raw"))
    await put(db, mailbox_id, FailedMessage("41", "fetch", "second"))
    (row,) = await shown(db)
    assert (row.stage, row.error, row.attempts) == ("fetch", "second", 2)
    async with db.connection() as conn:
        assert await load_raw(conn, row.id) == (mailbox_id, b"raw"), "bytes once had are kept"


async def test_the_same_uid_under_another_uidvalidity_is_another_message(
    db: Database, mailbox_id: int
) -> None:
    await put(db, mailbox_id, FAILED)
    await put(db, mailbox_id, FAILED, uidvalidity=8)
    assert [row.server_ref for row in await shown(db)] == [server_ref(7, 41), server_ref(8, 41)]


async def test_attempts_are_bounded_and_then_it_waits_for_a_replay(
    db: Database, mailbox_id: int
) -> None:
    for _ in range(MAX_ATTEMPTS - 1):
        await put(db, mailbox_id, FAILED)
        assert await retryable(db, mailbox_id) == [41]
    await put(db, mailbox_id, FAILED)
    assert await retryable(db, mailbox_id) == []
    assert [row.status for row in await shown(db, include_resolved=False)] == ["failed"]


async def test_the_oldest_messages_of_this_folder_are_tried_again(
    db: Database, mailbox_id: int
) -> None:
    uids = [9, 5, 7, 6]
    await put(db, mailbox_id, *[FailedMessage(str(uid), "fetch", "NO") for uid in uids])
    await put(db, mailbox_id, FAILED, uidvalidity=8)
    assert await retryable(db, mailbox_id) == [9, 5, 7]
    assert await retryable(db, mailbox_id, uidvalidity=8) == [41]
    assert await retryable(db, mailbox_id + 1) == []


async def test_a_message_that_was_taken_after_all_is_resolved(
    db: Database, mailbox_id: int
) -> None:
    await put(db, mailbox_id, FAILED, FailedMessage("42", "fetch", "NO"))
    async with db.transaction() as conn:
        await resolve_message(conn, mailbox_id, server_ref(7, 41))
        await resolve_message(conn, mailbox_id, server_ref(7, 4711))
    assert await retryable(db, mailbox_id) == [42]
    assert [row.status for row in await shown(db)] == ["resolved", "retrying"]
    assert [row.message for row in await shown(db, include_resolved=False)] == ["42"]


async def test_a_row_that_was_taken_from_its_raw_bytes_is_resolved(
    db: Database, mailbox_id: int
) -> None:
    await put(db, mailbox_id, FAILED)
    (row,) = await shown(db)
    async with db.transaction() as conn:
        await resolve_row(conn, row.id)
    (resolved,) = await shown(db)
    assert resolved.status == "resolved"
    assert resolved.resolved_at is not None
    assert resolved.resolved_at > row.created_at
    assert await retryable(db, mailbox_id) == []


async def test_a_resolved_message_that_fails_again_is_open_again(
    db: Database, mailbox_id: int
) -> None:
    await put(db, mailbox_id, FAILED)
    async with db.transaction() as conn:
        await resolve_message(conn, mailbox_id, server_ref(7, 41))
    await put(db, mailbox_id, FAILED)
    (row,) = await shown(db, include_resolved=False)
    assert (row.attempts, row.status) == (2, "retrying")


async def test_it_outlives_its_mailbox(db: Database, mailbox_id: int) -> None:
    await put(db, mailbox_id, FAILED)
    async with db.transaction() as conn:
        await delete_mailbox(conn, "anna@example.com")
    (row,) = await shown(db)
    assert (row.address, row.error) == (None, FAILED.error)
    async with db.connection() as conn:
        assert await load_raw(conn, row.id) == (None, None)


async def test_an_unknown_row_is_said_to_be_unknown(db: Database) -> None:
    async with db.connection() as conn:
        with pytest.raises(MailroomError, match="no quarantine row 4711"):
            await get_quarantined(conn, 4711)
