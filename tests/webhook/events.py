"""Events in the outbox, made as the pipeline makes them, and a look at what became of them."""

from dataclasses import replace
from typing import Any

from service.db.outbox import Event, announce_completed, list_events
from service.db.pool import Database
from service.db.requests import store_requests
from service.model import NewAttachment
from tests.db.rows import BODY, new_request

SECRET = "whsec_" + "bWFpbHJvb20gd2ViaG9vayB0ZXN0IHNlY3JldA=="


async def add_request(
    db: Database,
    *attachments: NewAttachment,
    mailbox_id: int | None = None,
    **changes: Any,
) -> tuple[int, list[int]]:
    """The ids of a new request and of its attachments, by default its text alone."""
    async with db.transaction() as conn:
        number = await conn.fetchval("SELECT count(*) FROM request")
        request = new_request(f"<{number}@example.com>", attachments=attachments or (BODY,))
        await store_requests(conn, mailbox_id, [replace(request, **changes)])
        request_id = await conn.fetchval("SELECT max(id) FROM request")
        rows = await conn.fetch(
            "SELECT id FROM attachment WHERE request_id = $1 ORDER BY id", request_id
        )
    return request_id, [row["id"] for row in rows]


async def end_attachment(
    db: Database, attachment_id: int, *, error: str | None = None, locks_first: bool = True
) -> None:
    """What a worker does at the end of its work, in either order of the lock and the write."""
    lock = (
        "SELECT 1 FROM request WHERE id = (SELECT request_id FROM attachment WHERE id = $1)"
        " FOR NO KEY UPDATE"
    )
    write = (
        "UPDATE attachment SET finished_at = now(), error = $2,"
        " status = CASE WHEN $2::text IS NULL THEN 'done' ELSE 'failed' END,"
        " result = CASE WHEN $2::text IS NULL THEN '{}'::jsonb END WHERE id = $1"
    )
    async with db.transaction() as conn:
        if locks_first:
            await conn.execute(lock, attachment_id)
        await conn.execute(write, attachment_id, error)
        if not locks_first:
            await conn.execute(lock, attachment_id)
        request_id = await conn.fetchval(
            "SELECT request_id FROM attachment WHERE id = $1", attachment_id
        )
        await announce_completed(conn, [request_id])


async def add_event(db: Database, **changes: Any) -> Event:
    """A new event that is due."""
    _, (attachment_id,) = await add_request(db, **changes)
    await end_attachment(db, attachment_id)
    return (await events(db))[-1]


async def events(db: Database) -> list[Event]:
    async with db.connection() as conn:
        return await list_events(conn, include_delivered=True)


async def payloads(db: Database) -> list[str]:
    async with db.connection() as conn:
        rows = await conn.fetch("SELECT payload FROM webhook_outbox ORDER BY id")
    return [row["payload"] for row in rows]


async def make_due(db: Database) -> None:
    """As if the time until the next attempt, or until the end of a claim, had passed."""
    async with db.connection() as conn:
        await conn.execute(
            "UPDATE webhook_outbox SET next_attempt_at = now(),"
            " claimed_at = claimed_at - interval '1 hour'"
        )
