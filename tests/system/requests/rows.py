"""Rows of requests as the intake and the pipeline leave them, and how to read an answer."""

import hashlib
import itertools
import json
from datetime import UTC, datetime
from typing import Any

import httpx
import psycopg

from tests.system.api import Api

RECEIVED_AT = datetime(2026, 3, 2, 4, 48, tzinfo=UTC)
FAR_AWAY = datetime(2100, 1, 1, tzinfo=UTC)
DIGEST = "0" * 64
_numbers = itertools.count(1)
_MANY = """
    WITH stored AS (
        INSERT INTO request (source_ref, mailbox_id, content_fingerprint, received_at, body_text)
        SELECT gen_random_uuid(), %s, %s, now(), 'Hello' FROM generate_series(1, %s)
        RETURNING id, content_fingerprint),
    files AS (
        INSERT INTO attachment (request_id, kind, part_id, content_type, size_bytes, sha256,
                                verdict, content, status, result, finished_at)
        SELECT id, 'file', '2', 'text/csv', 0, content_fingerprint, 'extract', '', 'done', '{}',
               now() FROM stored)
    SELECT id FROM stored ORDER BY id
"""


class Rows:
    """Requests of one mailbox."""

    def __init__(self, api: Api, address: str, mailbox_id: int | None) -> None:
        self.address = address
        self.api = api
        self._mailbox_id = mailbox_id

    def request(self, *statuses: str, **columns: object) -> int:
        """A request with an attachment of each of these statuses."""
        number = next(_numbers)
        values = {
            "source_ref": f"<{number}@example.org>",
            "mailbox_id": self._mailbox_id,
            "message_id": f"<{number}@example.org>",
            "content_fingerprint": DIGEST,
            "subject": f"Subject {number}",
            "sender": "Bob <bob@example.org>",
            "received_at": RECEIVED_AT,
            "body_text": "Hello",
        }
        request_id = self.api.insert("request", **(values | columns))
        for status in statuses:
            self.file(request_id, status)
        return request_id

    def file(
        self,
        request_id: int,
        status: str = "done",
        content: bytes | None = b"%PDF-",
        **columns: object,
    ) -> int:
        """A file that the pipeline has read, or will, but not during the test."""
        values: dict[str, object] = {
            "request_id": request_id,
            "kind": "file",
            "part_id": "2",
            "filename": "invoice.pdf",
            "content_type": "application/pdf",
            "size_bytes": len(content or b""),
            "sha256": hashlib.sha256(content or b"").hexdigest(),
            "verdict": "extract",
            "content": content,
            "status": status,
        }
        return self.api.insert("attachment", **(values | _of_status(status) | columns))

    def body(self, request_id: int) -> int:
        """The text of the mail in place of a file."""
        columns = {"kind": "body", "part_id": None, "filename": None, "sha256": None}
        return self.file(request_id, "done", None, **columns)

    def many(self, count: int) -> list[int]:
        """So many requests at once, each with a file that was read."""
        with psycopg.connect(self.api.database_url) as conn:
            return [row[0] for row in conn.execute(_MANY, [self._mailbox_id, DIGEST, count])]


def _of_status(status: str) -> dict[str, object]:
    """What the constraints want, and what keeps the pipeline and the watchdog away."""
    now = datetime.now(UTC)
    columns: dict[str, dict[str, object]] = {
        "pending": {"not_before": FAR_AWAY},
        "processing": {"processing_started_at": now},
        "done": {"finished_at": now, "result": json.dumps({"text": "x"})},
        "failed": {"finished_at": now, "error": "damaged: it is broken"},
        "skipped": {"verdict": "unsupported", "verdict_reason": "an .exe"},
    }
    return columns[status]


def found(response: httpx.Response, status: int = 200) -> list[Any]:
    """The collection of an answer."""
    assert response.status_code == status, response.text
    assert response.headers["Content-Type"] == "application/json"
    collection: list[Any] = response.json()["data"]["collection"]
    return collection


def problem(response: httpx.Response) -> tuple[int, str]:
    """Status and slug of a problem document."""
    assert response.headers["Content-Type"] == "application/problem+json"
    document = response.json()
    assert document["status"] == response.status_code
    assert document["detail"]
    return response.status_code, document["type"].rpartition("/")[2]
