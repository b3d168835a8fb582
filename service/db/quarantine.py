"""Table `quarantine`: messages that could not become a request, visible and replayable."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from service.db.pool import Connection, storable_text
from service.errors import MailroomError
from service.model import FailedMessage

MAX_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A row; `address` is None when the mailbox was removed. `raw` is only loaded by `load_raw`."""

    id: int
    address: str | None
    server_ref: Mapping[str, str | int]
    stage: str
    error: str
    attempts: int
    has_raw: bool
    created_at: datetime
    resolved_at: datetime | None

    @property
    def message(self) -> str:
        """The message's name on its server: its UID, or the provider's id."""
        return str(self.server_ref.get("uid", self.server_ref.get("id", "")))

    @property
    def status(self) -> str:
        """resolved; retrying: tried again at the next polls; failed: waits for a replay."""
        if self.resolved_at is not None:
            return "resolved"
        return "retrying" if self.attempts < MAX_ATTEMPTS else "failed"


_SHOWN = """
    q.id, m.address, q.server_ref, q.stage, q.error, q.attempts, q.raw IS NOT NULL AS has_raw,
    q.created_at, q.resolved_at
    FROM quarantine q LEFT JOIN email_mailbox_config m ON m.id = q.mailbox_id
"""

# A message that fails again is the same row with one attempt more.
_INSERT = """
    INSERT INTO quarantine (mailbox_id, server_ref, stage, error, raw)
    VALUES ($1, $2::jsonb, $3, $4, $5)
    ON CONFLICT (mailbox_id, server_ref) DO UPDATE SET
        stage = EXCLUDED.stage, error = EXCLUDED.error, resolved_at = NULL,
        attempts = quarantine.attempts + 1, raw = coalesce(EXCLUDED.raw, quarantine.raw)
"""


async def insert_quarantined(
    conn: Connection, mailbox_id: int, server_ref: Mapping[str, str | int], failed: FailedMessage
) -> None:
    """Record a message that failed, or one attempt more on it."""
    await conn.execute(
        _INSERT,
        mailbox_id,
        json.dumps(server_ref),
        failed.stage,
        storable_text(failed.error),
        failed.raw,
    )


async def list_retryable(
    conn: Connection, mailbox_id: int, *, scope: Mapping[str, str | int], limit: int
) -> list[dict[str, str | int]]:
    """The messages that have all of `scope` in their names and are to be tried again, oldest
    first."""
    rows = await conn.fetch(
        "SELECT server_ref FROM quarantine WHERE mailbox_id = $1 AND resolved_at IS NULL"
        " AND attempts < $2 AND server_ref @> $3::jsonb ORDER BY id LIMIT $4",
        mailbox_id,
        MAX_ATTEMPTS,
        json.dumps(scope),
        limit,
    )
    return [json.loads(row["server_ref"]) for row in rows]


async def resolve_message(
    conn: Connection, mailbox_id: int, server_ref: Mapping[str, str | int]
) -> None:
    """The message was taken after all."""
    await conn.execute(
        "UPDATE quarantine SET resolved_at = now()"
        " WHERE mailbox_id = $1 AND server_ref = $2::jsonb AND resolved_at IS NULL",
        mailbox_id,
        json.dumps(server_ref),
    )


async def resolve_row(conn: Connection, quarantine_id: int) -> None:
    """The message was taken from its raw bytes."""
    await conn.execute("UPDATE quarantine SET resolved_at = now() WHERE id = $1", quarantine_id)


async def list_quarantine(conn: Connection, *, include_resolved: bool) -> list[Quarantined]:
    """Rows, newest last."""
    where = "" if include_resolved else "WHERE q.resolved_at IS NULL"
    return [_row(row) for row in await conn.fetch(f"SELECT {_SHOWN} {where} ORDER BY q.id")]


async def get_quarantined(conn: Connection, quarantine_id: int) -> Quarantined:
    """One row. MailroomError if there is none."""
    row = await conn.fetchrow(f"SELECT {_SHOWN} WHERE q.id = $1", quarantine_id)
    if row is None:
        raise MailroomError(f"there is no quarantine row {quarantine_id}", hint="quarantine list")
    return _row(row)


async def load_raw(conn: Connection, quarantine_id: int) -> tuple[int | None, bytes | None]:
    """(mailbox id, the whole message) of a row that exists."""
    row: Sequence[Any] = await conn.fetchrow(
        "SELECT mailbox_id, raw FROM quarantine WHERE id = $1", quarantine_id
    )
    return row[0], row[1]


def _row(row: Mapping[str, Any]) -> Quarantined:
    values = dict(row)
    values["server_ref"] = json.loads(values["server_ref"])
    return Quarantined(**values)
