"""Table `enrich_import`: how far a CSV file has got into `job_advertisement`.

A file is known by its SHA-256. Its rows and the line that they reach to are written in one
transaction, so that an import which is broken off goes on where it was, and several of one file at
once store each row once.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Self

from service.db.pool import Connection


@dataclass(frozen=True, slots=True)
class Import:
    """A row; `lines_done` lines of the file are stored, or were passed by as bad."""

    lines_done: int
    rows_stored: int
    started_at: datetime
    finished_at: datetime | None


_COLUMNS = "lines_done, rows_stored, started_at, finished_at"

_BEGIN = "INSERT INTO enrich_import (file_sha256) VALUES ($1) ON CONFLICT DO NOTHING"
_BEGIN_AGAIN = """
    INSERT INTO enrich_import (file_sha256) VALUES ($1)
    ON CONFLICT (file_sha256) DO UPDATE
    SET lines_done = 0, rows_stored = 0, started_at = now(), finished_at = NULL
"""
_GET = f"SELECT {_COLUMNS} FROM enrich_import WHERE file_sha256 = $1"

# Invariant: of several that read the same lines, one moves the count; the others wait for its
# lock, find it moved, and store nothing.
_ADVANCE = """
    UPDATE enrich_import
    SET lines_done = $3, rows_stored = rows_stored + $4,
        finished_at = CASE WHEN $5 THEN now() END
    WHERE file_sha256 = $1 AND lines_done = $2 AND finished_at IS NULL
"""

_COPY_HEAD = b"PGCOPY\n\xff\r\n\0" + struct.pack("!ii", 0, 0)
_COPY_END = struct.pack("!h", -1)
_COPY_ROW = struct.Struct("!hi")  # number of columns, length of the first


async def begin_import(conn: Connection, file_sha256: bytes, *, again: bool) -> Import:
    """Where the import of this file is; `again` starts it anew, also if it is finished."""
    await conn.execute(_BEGIN_AGAIN if again else _BEGIN, file_sha256)
    return await get_import(conn, file_sha256)


async def get_import(conn: Connection, file_sha256: bytes) -> Import:
    """The row, which has to be there."""
    return Import(**await conn.fetchrow(_GET, file_sha256))


async def store_addresses(
    conn: Connection,
    file_sha256: bytes,
    addresses: Sequence[str],
    *,
    lines_before: int,
    lines_done: int,
    is_last: bool,
) -> bool:
    """Insert the addresses of the lines behind `lines_before`, and note that they are done.

    False, and nothing is changed, if another import of the file is further, finished or began
    anew. To be called in a transaction of its own.
    """
    moved = await conn.execute(
        _ADVANCE, file_sha256, lines_before, lines_done, len(addresses), is_last
    )
    if moved == "UPDATE 0":
        return False
    if addresses:
        await conn.copy_to_table(
            "job_advertisement",
            source=_OnePiece(_as_copy(addresses)),
            columns=["email"],
            format="binary",
        )
    return True


def _as_copy(addresses: Sequence[str]) -> bytes:
    """PostgreSQL's binary COPY format, of one text column."""
    pieces = [_COPY_HEAD]
    for address in addresses:
        octets = address.encode()
        pieces += (_COPY_ROW.pack(1, len(octets)), octets)
    return b"".join([*pieces, _COPY_END])


class _OnePiece:
    """A source for COPY that is in memory."""

    def __init__(self, piece: bytes) -> None:
        self._pieces = iter([piece])

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        piece = next(self._pieces, None)
        if piece is None:
            raise StopAsyncIteration
        return piece
