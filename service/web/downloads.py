"""Bytes from strangers on their way to a client: a name that is safe to save under, headers that
keep a browser from running them, and bodies in pieces, so that memory does not grow with them.
"""

import re
import unicodedata
from collections.abc import Awaitable, Iterator, Mapping
from typing import Self
from urllib.parse import quote

from quart import Response

PIECE_BYTES = 256 * 1024
MAX_STEM_CHARS = 120
MAX_SUFFIX_CHARS = 20

_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "sandbox; default-src 'none'",
    "Cache-Control": "private",
}
# What is a separator, a drive, a wildcard or a device to some system, or ends a quoted string.
_UNSAFE = re.compile(r'[/\\:*?"<>|%\s]+')
_NO_TOKEN = re.compile(r"[^A-Za-z0-9._-]")
_EXTENDED = "!#$&+-.^_`|~"  # what RFC 8187 section 3.2.1 lets stand beside letters and digits


def safe_filename(name: str | None, default: str) -> str:
    """The name as one visible part of a path; `default` where nothing of it is left.

    Without controls, bidirectional marks, surrogates and all else that has no look of its own.
    """
    visible = (
        char if unicodedata.category(char)[0] != "C" else " "
        for char in unicodedata.normalize("NFC", name or "")
    )
    words = _UNSAFE.sub("_", "".join(visible).strip()).strip("._ ")
    stem, dot, suffix = words.rpartition(".")
    if not dot or len(suffix) > MAX_SUFFIX_CHARS:
        return words[:MAX_STEM_CHARS] or default
    return f"{stem[:MAX_STEM_CHARS]}.{suffix}"


def content_disposition(filename: str) -> str:
    """The header for a safe name (RFC 6266): in ASCII, and where that says less as it is."""
    letters = unicodedata.normalize("NFKD", filename)
    plain = _NO_TOKEN.sub("_", "".join(c for c in letters if not unicodedata.combining(c)))
    header = f'attachment; filename="{plain}"'
    if plain == filename:
        return header
    return f"{header}; filename*=UTF-8''{quote(filename, safe=_EXTENDED)}"


def streamed(
    pieces: Iterator[Awaitable[bytes]], content_type: str, headers: Mapping[str, str]
) -> Response:
    """An answer of such pieces, however long it takes: each piece has its own time to be sent."""
    response = Response(_SmallPieces(pieces), content_type=content_type, headers=dict(headers))
    response.timeout = None
    return response


def download(pieces: Iterator[Awaitable[bytes]], filename: str, size_bytes: int) -> Response:
    """The answer to save under this safe name; what it is said to be is not believed."""
    headers = {
        **_HEADERS,
        "Content-Length": str(size_bytes),
        "Content-Disposition": content_disposition(filename),
    }
    return streamed(pieces, "application/octet-stream", headers)


class _SmallPieces:
    """The pieces in turn, each asked for once the one before is sent, and cut where it is long."""

    def __init__(self, pieces: Iterator[Awaitable[bytes]]) -> None:
        self._pieces = pieces
        self._piece = b""
        self._sent_bytes = 0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        while self._sent_bytes >= len(self._piece):
            piece = next(self._pieces, None)
            if piece is None:
                raise StopAsyncIteration
            self._piece, self._sent_bytes = await piece, 0
        start, self._sent_bytes = self._sent_bytes, self._sent_bytes + PIECE_BYTES
        return self._piece[start : self._sent_bytes]
