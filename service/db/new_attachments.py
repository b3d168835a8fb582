"""Table `attachment`: its new rows, as the intake makes them. `attachments.py` works on them."""

import os
import struct
from collections.abc import Iterator, Sequence
from typing import BinaryIO, Self

from service.db.notifications import ATTACHMENT_CHANNEL, notify
from service.db.pool import Connection
from service.model import NewAttachment, Verdict

_COLUMNS = """
    request_id, kind, part_id, filename, content_type, size_bytes, sha256, verdict,
    verdict_reason, status, content
"""

_INSERT_MANY = f"""
    INSERT INTO attachment ({_COLUMNS})
    SELECT * FROM unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::text[],
                         $6::bigint[], $7::text[], $8::text[], $9::text[], $10::text[],
                         $11::bytea[])
"""

PIECE_BYTES = 256 * 1024


async def insert_attachments(
    conn: Connection, attachments: Sequence[tuple[int, NewAttachment]]
) -> None:
    """Insert (request id, attachment) pairs, and hint at those that are work for the pipeline.

    Content kept in a file is streamed: as a parameter it would be in memory four times.
    """
    in_memory = [pair for pair in attachments if isinstance(pair[1].content, bytes | None)]
    if in_memory:
        rows = [_row(request_id, one, one.content) for request_id, one in in_memory]
        await conn.execute(_INSERT_MANY, *map(list, zip(*rows, strict=True)))
    for request_id, one in attachments:
        if one.content is not None and not isinstance(one.content, bytes):
            await conn.copy_to_table(
                "attachment",
                source=_BinaryCopy(_row(request_id, one, None)[:-1], one.content),
                columns=[name.strip() for name in _COLUMNS.split(",")],
                format="binary",
            )
    if any(one.verdict is Verdict.EXTRACT for _, one in attachments):
        await notify(conn, ATTACHMENT_CHANNEL)


class _BinaryCopy:
    """One row in PostgreSQL's binary COPY format, its last column read from a file in pieces."""

    def __init__(self, row: Sequence[object], content: BinaryIO) -> None:
        self._pieces = _binary_pieces(row, content)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        piece = next(self._pieces, None)
        if piece is None:
            raise StopAsyncIteration
        return piece


def _binary_pieces(row: Sequence[object], content: BinaryIO) -> Iterator[bytes]:
    size_bytes = content.seek(0, os.SEEK_END)
    content.seek(0)
    yield b"PGCOPY\n\xff\r\n\0" + struct.pack("!iih", 0, 0, len(row) + 1)
    yield b"".join(map(_binary_field, row)) + struct.pack("!i", size_bytes)
    while piece := content.read(PIECE_BYTES):
        yield piece
    yield struct.pack("!h", -1)


def _binary_field(value: object) -> bytes:
    """A text or bigint column: its length, -1 for null, then the value."""
    if value is None:
        return struct.pack("!i", -1)
    octets = struct.pack("!q", value) if isinstance(value, int) else str(value).encode()
    return struct.pack("!i", len(octets)) + octets


def _row(request_id: int, one: NewAttachment, content: object) -> tuple[object, ...]:
    status = "pending" if one.verdict is Verdict.EXTRACT else "skipped"
    return (
        request_id,
        one.kind,
        one.part_id,
        one.filename,
        one.content_type,
        one.size_bytes,
        one.sha256,
        one.verdict.value,
        one.verdict_reason,
        status,
        content,
    )
