"""The webhook's outbox: one event per completed request, claimed by one replica at a time."""

import json
from datetime import UTC, datetime, timedelta

import pytest
import trio

from service.db.mailboxes import insert_mailbox
from service.db.outbox import (
    CLAIM_EXPIRES_AFTER_SECONDS,
    MAX_ATTACHMENTS,
    EventClaim,
    announce_completed,
    claim_due,
    complete_delivery,
    fail_delivery,
    list_events,
    release_delivery,
    retry_event,
    retry_given_up,
)
from service.db.pool import Database
from service.errors import ClaimLost, MailroomError
from service.model import ImapConnection, NewAttachment, Verdict
from tests.db.rows import new_file
from tests.webhook.events import (
    add_event,
    add_request,
    end_attachment,
    events,
    make_due,
    payloads,
)

ROUNDS = 40
FILE = new_file(b"%PDF-1.7")
LOGO = NewAttachment("file", "3", "logo.png", "image/png", 9, Verdict.INLINE_IMAGE, "an image")


async def claim(db: Database, limit: int = 10) -> list[EventClaim]:
    async with db.connection() as conn:
        return await claim_due(conn, limit)


async def give_up(db: Database) -> None:
    for one in await claim(db):
        async with db.connection() as conn:
            await fail_delivery(conn, one, "answered with 500", delay_seconds=None)


async def test_an_event_says_what_became_of_the_request(db: Database) -> None:
    async with db.transaction() as conn:
        mailbox_id = await insert_mailbox(
            conn,
            address="anna@example.com",
            connection=ImapConnection("mail.example.com", 993, "implicit", "anna"),
            secret=b"token",
            poll_interval_seconds=120,
            ingest_all=True,
            ingest_since=None,
        )
    request_id, (done, failed, skipped) = await add_request(
        db, FILE, new_file(b"PK", filename="äöü \u2028.xlsx"), LOGO, mailbox_id=mailbox_id
    )
    await end_attachment(db, done)
    await end_attachment(db, failed, error="damaged: it makes no sense")
    (payload,) = await payloads(db)
    event = json.loads(payload)
    age = datetime.now(UTC) - datetime.fromisoformat(event.pop("timestamp"))
    assert timedelta(0) <= age < timedelta(minutes=1)
    common = {"kind": "file", "content_type": "application/pdf", "verdict": "extract"}
    assert event == {
        "type": "request.completed",
        "data": {
            "request_id": request_id,
            "mailbox": "anna@example.com",
            "message_id": "<0@example.com>",
            "subject": "about hello",
            "sender": "bob@example.org",
            "received_at": "2026-03-02T04:48:00Z",
            "status": "failed",
            "attachments_count": 3,
            "attachments": [
                {**common, "id": done, "filename": "invoice.pdf", "status": "done", "error": None},
                {
                    **common,
                    "id": failed,
                    "filename": "äöü \u2028.xlsx",
                    "status": "failed",
                    "error": "damaged: it makes no sense",
                },
                {
                    "id": skipped,
                    "kind": "file",
                    "filename": "logo.png",
                    "content_type": "image/png",
                    "verdict": "inline_image",
                    "status": "skipped",
                    "error": None,
                },
            ],
        },
    }


async def test_there_is_no_event_while_an_attachment_is_open(db: Database) -> None:
    request_id, (first, second) = await add_request(db, FILE, FILE)
    await end_attachment(db, first)
    async with db.transaction() as conn:
        await conn.execute(
            "UPDATE attachment SET status = 'processing', processing_started_at = now()"
            " WHERE id = $1",
            second,
        )
        await announce_completed(conn, [request_id])
    assert await events(db) == []


async def test_there_is_no_event_of_a_transaction_that_came_to_nothing(db: Database) -> None:
    request_id, (attachment_id,) = await add_request(db)

    async def crash() -> None:
        async with db.transaction() as conn:
            await conn.execute(
                "UPDATE attachment SET status = 'failed', error = 'x', finished_at = now()"
            )
            await announce_completed(conn, [request_id])
            raise RuntimeError("crash")

    with pytest.raises(RuntimeError, match="crash"):
        await crash()
    assert await events(db) == []
    await end_attachment(db, attachment_id)
    assert len(await events(db)) == 1


async def test_after_a_retry_there_is_another_event(db: Database) -> None:
    request_id, (first, second) = await add_request(db, FILE, FILE)
    await end_attachment(db, first)
    await end_attachment(db, second, error="damaged: no")
    async with db.transaction() as conn:
        await conn.execute(
            "UPDATE attachment SET status = 'pending', finished_at = NULL WHERE id = $1", second
        )
    assert len(await events(db)) == 1
    await end_attachment(db, second)
    assert [event.request_id for event in await events(db)] == [request_id] * 2
    assert len({event.event_id for event in await events(db)}) == 2
    statuses = [json.loads(payload)["data"]["status"] for payload in await payloads(db)]
    assert statuses == ["failed", "done"]


@pytest.mark.parametrize("locks_first", [True, False])
async def test_attachments_that_end_at_once_make_one_event(db: Database, locks_first: bool) -> None:
    expected = []
    for _ in range(ROUNDS):
        request_id, attachment_ids = await add_request(db, FILE, FILE, FILE)
        async with trio.open_nursery() as nursery:
            for attachment_id in attachment_ids:
                nursery.start_soon(
                    lambda one: end_attachment(db, one, locks_first=locks_first), attachment_id
                )
        expected.append(request_id)
        assert [event.request_id for event in await events(db)] == expected


async def test_several_requests_are_announced_in_one_call(db: Database) -> None:
    ready, open_, other = [(await add_request(db))[0] for _ in range(3)]
    async with db.transaction() as conn:
        await conn.execute("SELECT 1 FROM request ORDER BY id FOR NO KEY UPDATE")
        await conn.execute(
            "UPDATE attachment SET status = 'failed', error = 'stuck: so long', finished_at = now()"
            " WHERE request_id <> $1",
            open_,
        )
        await announce_completed(conn, [ready, open_, other, 4711])
        await announce_completed(conn, [])
    assert [event.request_id for event in await events(db)] == [ready, other]


async def test_odd_characters_of_a_mail_do_no_harm(db: Database) -> None:
    odd = '"quotes", \\u0000, \\ud800, \x01 \x1b[2J \x7f, \u2028, \ufffe, 😀'
    await add_event(db, subject=odd)
    (payload,) = await payloads(db)
    assert json.loads(payload)["data"]["subject"] == odd


async def test_an_event_is_small_whatever_the_mail_is(db: Database) -> None:
    files = [new_file(b"%PDF", filename="\x01" * 5000)] * (MAX_ATTACHMENTS + 10)
    _, ids = await add_request(db, *files, subject="😀" * 100_000, sender="x" * 100_000)
    for one in ids:
        await end_attachment(db, one, error="damaged: " + "x" * 100_000)
    (payload,) = await payloads(db)
    data = json.loads(payload)["data"]
    assert [one["id"] for one in data["attachments"]] == ids[:MAX_ATTACHMENTS]
    assert (data["attachments_count"], data["status"]) == (len(ids), "failed")
    assert len(payload.encode()) < 256 * 1024


async def test_a_due_event_is_claimed_by_one(db: Database) -> None:
    made = [await add_event(db) for _ in range(12)]
    found: list[EventClaim] = []
    async with trio.open_nursery() as nursery:
        for _ in range(6):

            async def take() -> None:
                found.extend(await claim(db, 3))

            nursery.start_soon(take)
    found += await claim(db)
    assert sorted(one.event_id for one in found) == sorted(event.event_id for event in made)
    assert all(one.attempts == 0 for one in found)
    assert {event.state for event in await events(db)} == {"sending"}


async def test_what_has_waited_longest_comes_first(db: Database) -> None:
    made = [await add_event(db) for _ in range(4)]
    async with db.connection() as conn:
        await conn.execute(
            "UPDATE webhook_outbox SET next_attempt_at = now() - make_interval(mins => id::int)"
        )
    assert {one.id for one in await claim(db, 2)} == {made[3].id, made[2].id}


async def test_a_claim_whose_replica_died_is_due_again_and_its_late_write_is_refused(
    db: Database,
) -> None:
    event = await add_event(db)
    (lost,) = await claim(db)
    assert await claim(db) == []
    async with db.connection() as conn:
        await conn.execute(
            "UPDATE webhook_outbox SET claimed_at = claimed_at - make_interval(secs => $1)",
            CLAIM_EXPIRES_AFTER_SECONDS,
        )
    (again,) = await claim(db)
    assert (again.event_id, again.payload) == (lost.event_id, lost.payload)
    assert again.stamp != lost.stamp
    async with db.connection() as conn:
        with pytest.raises(ClaimLost, match=event.event_id):
            await complete_delivery(conn, lost)
        with pytest.raises(ClaimLost):
            await fail_delivery(conn, lost, "late", delay_seconds=None)
        with pytest.raises(ClaimLost):
            await release_delivery(conn, lost)
        await complete_delivery(conn, again)
        with pytest.raises(ClaimLost):
            await complete_delivery(conn, again)
    (row,) = await events(db)
    assert (row.state, row.attempts, row.last_error) == ("delivered", 1, None)


async def test_a_failed_delivery_is_due_again_after_its_delay(db: Database) -> None:
    await add_event(db)
    (one,) = await claim(db)
    async with db.connection() as conn:
        await fail_delivery(conn, one, "NUL \0, half \ud800 " + "x" * 9999, delay_seconds=60)
    (row,) = await events(db)
    assert (row.state, row.attempts, row.claimed_at) == ("retrying", 1, None)
    assert timedelta(seconds=60) <= row.next_attempt_at - one.stamp < timedelta(seconds=70)
    assert row.last_error is not None
    assert row.last_error.startswith("NUL , half ? xxx")
    assert len(row.last_error) == 500
    assert await claim(db) == []
    await make_due(db)
    (two,) = await claim(db)
    assert two.attempts == 1
    async with db.connection() as conn:
        await complete_delivery(conn, two)
    (row,) = await events(db)
    assert (row.state, row.attempts, row.last_error) == ("delivered", 2, None)
    await make_due(db)
    assert await claim(db) == []


async def test_a_released_event_is_due_at_once_without_an_attempt_counted(db: Database) -> None:
    await add_event(db)
    (one,) = await claim(db)
    async with db.connection() as conn:
        await release_delivery(conn, one)
    (row,) = await events(db)
    assert (row.state, row.attempts) == ("waiting", 0)
    assert [two.event_id for two in await claim(db)] == [one.event_id]


async def test_what_was_given_up_rests_until_it_is_retried(db: Database) -> None:
    first, second, third = [await add_event(db) for _ in range(3)]
    await give_up(db)
    await make_due(db)
    assert await claim(db) == []
    async with db.connection() as conn:
        assert {row.state for row in await list_events(conn, include_delivered=False)} == {
            "given up"
        }
        await retry_event(conn, first.id)
    (one,) = await claim(db)
    assert (one.event_id, one.attempts) == (first.event_id, 0)
    async with db.connection() as conn:
        await complete_delivery(conn, one)
        assert await retry_given_up(conn) == 2
        assert await retry_given_up(conn) == 0
        with pytest.raises(MailroomError, match=f"no undelivered event {first.id}"):
            await retry_event(conn, first.id)
        with pytest.raises(MailroomError, match="no undelivered event 4711"):
            await retry_event(conn, 4711)
        open_ = await list_events(conn, include_delivered=False)
    assert [row.event_id for row in open_] == [second.event_id, third.event_id]
    assert {one.event_id for one in await claim(db)} == {second.event_id, third.event_id}


async def test_what_waits_for_an_attempt_can_be_hurried(db: Database) -> None:
    event = await add_event(db)
    (one,) = await claim(db)
    async with db.connection() as conn:
        await fail_delivery(conn, one, "answered with 500", delay_seconds=86_400)
        await retry_event(conn, event.id)
    assert [two.event_id for two in await claim(db)] == [event.event_id]


async def test_an_event_goes_with_its_request(db: Database) -> None:
    await add_event(db)
    (one,) = await claim(db)
    async with db.connection() as conn:
        await conn.execute("DELETE FROM request")
        with pytest.raises(ClaimLost):
            await complete_delivery(conn, one)
    assert await events(db) == []
