"""Values to store: requests and attachments as the intake makes them."""

import hashlib
from datetime import UTC, datetime
from typing import BinaryIO

from service.model import NewAttachment, NewRequest, Verdict

RECEIVED_AT = datetime(2026, 3, 2, 4, 48, tzinfo=UTC)
BODY = NewAttachment("body", None, None, "text/plain", 5, Verdict.EXTRACT)


def fingerprint(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def new_request(
    ref: str, text: str = "hello", *, attachments: tuple[NewAttachment, ...] = (BODY,)
) -> NewRequest:
    """A mail with this id and text; mails that differ in the text differ in the fingerprint."""
    return NewRequest(
        ref="1",
        source_ref=ref,
        message_id=ref,
        content_fingerprint=fingerprint(text),
        subject=f"about {text}",
        sender="bob@example.org",
        recipients=({"kind": "to", "address": "anna@example.com"},),
        sent_at=None,
        raw_date="Mon, 2 Mar 2026 04:48:00 +0000",
        received_at=RECEIVED_AT,
        body_text=text,
        attachments=attachments,
    )


def new_file(
    content: bytes, *, stored: BinaryIO | None = None, filename: str = "invoice.pdf"
) -> NewAttachment:
    """A file to extract; `stored` is the open file that holds its content."""
    return NewAttachment(
        kind="file",
        part_id="2",
        filename=filename,
        content_type="application/pdf",
        size_bytes=len(content),
        verdict=Verdict.EXTRACT,
        sha256=hashlib.sha256(content).hexdigest(),
        content=content if stored is None else stored,
    )
