"""The MIME entities of a raw message, found as a mail server finds them.

The standard library's parser is no use here: it keeps no octets of message/* parts, and on nested
ones it recurses and takes quadratic time. This one goes once over the delimiter lines. Only a
message deeper or wider than any honest mail is an error, a ValueError.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from service.mail.header import parse_fields
from service.mail.parameters import split_parameters

MAX_DEPTH = 100
MAX_PARTS = 50_000
MESSAGE_TYPE = "message/rfc822"

_NAMES = frozenset({
    b"content-type", b"content-transfer-encoding", b"content-disposition", b"content-id",
})  # fmt: skip
_TYPE = re.compile(rb"([\w!#$&.+^-]+)[ \t]*/[ \t]*([\w!#$&.+^-]+)[ \t]*(?:;|\Z)")


@dataclass(slots=True)
class Entity:
    """One entity; its body is the message's octets from `start` to `end`."""

    content_type: str
    fields: Mapping[str, bytes]
    start: int
    end: int = 0
    delimiter: bytes = b""
    children: list["Entity"] = field(default_factory=list)


def read_entities(raw: bytes) -> Entity:
    """The tree of a message with CRLF line ends (RFC 2046 section 5.1)."""
    return _Reader(raw).read()


def refuse_excess(depth: int, parts: int) -> None:
    """ValueError for a tree that no honest mail has."""
    if depth > MAX_DEPTH:
        raise ValueError(f"the parts are nested more than {MAX_DEPTH} levels deep")
    if parts > MAX_PARTS:
        raise ValueError(f"the message has more than {MAX_PARTS} parts")


@dataclass(frozen=True, slots=True)
class _Delimiter:
    """A delimiter line from `start` to `end`, and the level of the multipart that it belongs to."""

    start: int
    end: int
    level: int
    is_last: bool


class _Reader:
    """Keeps the open entities on a stack, the innermost last; has read all before `_at`."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._open: list[Entity] = []
        self._at = 0
        self._parts = 0

    def read(self) -> Entity:
        self._begin(0)
        root = self._open[0]
        while delimiter := self._next_delimiter(self._at):
            self._close(delimiter.level + 1, delimiter.start - 2)
            self._at = min(delimiter.end + 2, len(self._raw))
            if delimiter.is_last:
                self._open[-1].delimiter = b""
            else:
                self._begin(self._at)
        self._close(0, len(self._raw))
        return root

    def _begin(self, at: int) -> None:
        """Open the entity at `at`, and the message in it if it is one."""
        following = self._next_delimiter(at)
        stop = following.start if following else len(self._raw)
        while True:
            entity = self._read_header(at, stop)
            self._at = entity.start
            if self._open:
                self._open[-1].children.append(entity)
            self._open.append(entity)
            self._parts += 1
            refuse_excess(len(self._open), self._parts)
            if entity.content_type != MESSAGE_TYPE:
                return
            at = entity.start

    def _read_header(self, at: int, stop: int) -> Entity:
        if self._raw.startswith(b"\r\n", at):
            start = at + 2
        else:
            blank = self._raw.find(b"\r\n\r\n", at, stop)
            start = blank + 4 if blank >= 0 else stop
        fields: dict[str, bytes] = {}
        for name, value in parse_fields(self._raw[at:start], _NAMES):
            fields.setdefault(name, value)
        content_type = self._content_type(fields.get("content-type"))
        entity = Entity(content_type, fields, start)
        if content_type.startswith("multipart/"):
            entity.delimiter = _delimiter_of(fields["content-type"])
        return entity

    def _content_type(self, value: bytes | None) -> str:
        if value is None and self._open and self._open[-1].content_type == "multipart/digest":
            return MESSAGE_TYPE
        read = _TYPE.match(value or b"")
        # RFC 2045 section 5.2: what cannot be read is text/plain.
        return b"/".join(read.groups()).decode("latin-1").lower() if read else "text/plain"

    def _next_delimiter(self, at: int) -> _Delimiter | None:
        """The first delimiter line at `at`, the start of a line, or behind it."""
        delimiters = tuple(entity.delimiter for entity in self._open if entity.delimiter)
        newline = self._raw.find(b"\n--", max(at - 1, 0)) if delimiters else -1
        while newline >= 0 and not self._raw.startswith(delimiters, newline + 1):
            newline = self._raw.find(b"\n--", newline + 1)
        return self._delimiter(newline + 1) if newline >= 0 else None

    def _delimiter(self, start: int) -> _Delimiter:
        """Like Dovecot: the innermost boundary that fits exactly, else the longest that begins."""
        newline = self._raw.find(b"\r\n", start)
        end = newline if newline >= 0 else len(self._raw)
        line = self._raw[start:end].rstrip()
        best = (0, 0)
        for level in range(len(self._open) - 1, -1, -1):
            delimiter = self._open[level].delimiter
            if delimiter and line.startswith(delimiter) and len(delimiter) > best[0]:
                best = (len(delimiter), level)
                if line in (delimiter, delimiter + b"--"):
                    break
        return _Delimiter(start, end, best[1], line.startswith(b"--", best[0]))

    def _close(self, level: int, end: int) -> None:
        """A delimiter owns the line end before it, unless that ends a header or a delimiter."""
        end = max(end, self._at)
        for entity in self._open[level:]:
            entity.end = end
        del self._open[level:]


def _delimiter_of(content_type: bytes) -> bytes:
    for name, value in split_parameters(content_type):
        if name.lower() == b"boundary":
            return b"--" + value.rstrip()
    return b""
