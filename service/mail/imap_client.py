"""IMAPClient on a socket of our own, bounded in what it takes from a server.

The only importer of imapclient. Blocking; its errors are imaplib's, and FetchRefused for an answer
to FETCH that makes no sense.
"""

import imaplib
import logging
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from imapclient import IMAPClient
from imapclient.datetime_util import parse_to_datetime
from imapclient.exceptions import LoginError
from imapclient.response_parser import parse_response

from service.errors import FetchRefused
from service.mail.search import uid_set

__all__ = [
    "ImapClient",
    "LoginError",
    "Rows",
    "cut",
    "number",
    "parse_to_datetime",
    "records_bytes",
]

log = logging.getLogger(__name__)

Rows = dict[int, dict[bytes, Any]]
"""What FETCH gave, by UID and upper-case item."""

LITERAL_MAX_BYTES = 4 * 1024 * 1024
LINE_MAX_BYTES = 16 * 1024 * 1024  # a SEARCH that names two million messages
ANSWER_MAX_BYTES = 128 * 1024 * 1024
# A line turns into objects of several times its size, however short it is, and counts as such.
LINE_COST_FACTOR = 8
LINE_COST_BYTES = 512
# What one message's answer may hold beside its literals; 1 MiB takes a second or two to read.
STRUCTURE_MAX_BYTES = 4 * 1024 * 1024
WORDS_MAX_CHARS = 300
MAX_UID = 2**32 - 1

# Names are case-insensitive (RFC 3501 section 9), and some servers have no words after "OK";
# imaplib knows names in upper case with a space behind.
_NUMBER = re.compile(rb"-?\d+")
_NUMBERS = re.compile(rb"[-\d ]*")
_RESPONSE_NAME = re.compile(rb"(?:\* (?:\d+ )?|[A-Z]{4}\d+ )[A-Za-z-]+(?=[ \r])")

# imaplib's own limit of 1,000,000 bytes is below the BODYSTRUCTURE of a mail with many parts.
imaplib._MAXLINE = LINE_MAX_BYTES  # type: ignore[attr-defined]


class BoundedImap4(imaplib.IMAP4):
    """imaplib on a socket that is connected already, with a bound on what the server may send."""

    def __init__(self, sock: socket.socket, host: str) -> None:
        self._connected = sock
        self.bytes_left = ANSWER_MAX_BYTES
        super().__init__(host)

    def _create_socket(self, _timeout: float | None) -> socket.socket:
        return self._connected

    def read(self, size: int) -> bytes:
        if size > LITERAL_MAX_BYTES:
            raise self.abort(f"the server sent a literal of {size} bytes, far more than asked for")
        data = super().read(size)
        if len(data) < size:
            raise self.abort("the connection ended in the middle of a literal")
        self._count(size)
        return data

    def readline(self) -> bytes:
        try:
            line = super().readline()
        except self.error as error:  # too long: what follows is in the middle of it
            raise self.abort(str(error)) from None
        if not line:
            bye: Any = self.untagged_responses.get("BYE", [b"the server closed the connection"])
            raise self.abort(str(bye[-1], "ascii", "replace"))
        self._count(LINE_COST_BYTES + LINE_COST_FACTOR * len(line))
        name = _RESPONSE_NAME.match(line)
        if name is None:
            return line
        rest = line[name.end() :]
        return name[0].upper() + (b" \r\n" if rest == b"\r\n" else rest)

    def _count(self, size: int) -> None:
        self.bytes_left -= size
        if self.bytes_left < 0:
            raise self.abort("the server sent far more than one command asks for")

    def _log(self, _line: str) -> None:
        """imaplib keeps the last lines of both sides, with the password among them."""


class ImapClient(IMAPClient):  # type: ignore[misc]
    """IMAPClient on a connected socket, with a FETCH that can be trusted on UIDs."""

    def __init__(self, sock: socket.socket, host: str) -> None:
        self._connected = sock
        self._is_abandoned = False
        super().__init__(host, ssl=False)
        # IMAPClient has imaplib format every response for a log line, literals included.
        self._imap.debug = 0

    def _create_IMAP4(self) -> BoundedImap4:  # noqa: N802
        return BoundedImap4(self._connected, self.host)

    def _set_read_timeout(self) -> None:
        """The socket came with its time-out."""

    def allow_next_answer(self) -> None:
        """Before each step: room for its answers, and nothing left of what nobody asked for."""
        self._imap.bytes_left = ANSWER_MAX_BYTES
        self._imap.untagged_responses.clear()

    def abandon(self) -> None:
        """Nobody waits for this step any more."""
        self._is_abandoned = True

    def _process_select_response(self, responses: Mapping[str, Any]) -> dict[str, int | None]:
        """What EXAMINE said in numbers; IMAPClient's own raises on what is none."""
        return {name: number(values[-1]) for name, values in responses.items()}

    def uid_search(self, criteria: str) -> list[int]:
        """Ascending UIDs, also when the server answers in several SEARCH lines."""
        typ, data = self._imap.uid("SEARCH", criteria)
        self._checkok("SEARCH", typ, data)
        uids = {uid for line in data if line is not None for uid in _numbers(line)}
        possible = sorted(uid for uid in uids if 0 < uid <= MAX_UID)
        if len(possible) < len(uids):
            log.warning("%s: SEARCH named UIDs that no message can have", self.host)
        return possible

    def uid_fetch(self, uids: Sequence[int], items: Sequence[str]) -> list[Any]:
        """FETCH by UID: imaplib's records, for `parse_fetch`."""
        typ, data = self._imap.uid("FETCH", uid_set(uids), f"({' '.join(items)})")
        self._checkok("FETCH", typ, data)
        return list(data)

    def parse_fetch(
        self, records: Sequence[Any], rows: Rows, uids: Sequence[int]
    ) -> Iterator[None]:
        """Put what came of these messages into `rows`, an answer at a time. FetchRefused.

        IMAPClient's own merges by sequence number, which may mean another message by now, and
        gives up all answers for one that makes no sense, be it about a message not asked for.
        """
        asked = set(uids)
        nonsense: str | None = None
        for answer in _answers(records):
            if self._is_abandoned:
                raise self._imap.abort("nobody waits for this answer any more")
            try:
                uid, row = _parse_answer(answer)
            except (imaplib.IMAP4.error, ValueError, RecursionError) as error:
                nonsense = f"the answer to FETCH makes no sense: {error}"
            else:
                if uid is not None and uid in asked:
                    rows.setdefault(uid, {}).update(row)
            yield
        for uid in [uid for uid, row in rows.items() if not _has_body(row)]:
            del rows[uid]
        if nonsense is not None and len(rows) < len(asked):
            raise FetchRefused(cut(nonsense))


def _numbers(line: bytes) -> Iterator[int]:
    """The numbers of a SEARCH line. ValueError for one that holds anything else."""
    if not _NUMBERS.fullmatch(line):
        raise ValueError(f"SEARCH gave {line[:80]!r}")
    return (int(word[0][:19]) for word in _NUMBER.finditer(line))


def records_bytes(records: Sequence[Any]) -> int:
    """The size of imaplib's records, literals included."""
    return sum(sum(map(len, one)) if isinstance(one, tuple) else len(one or b"") for one in records)


def number(value: object) -> int | None:
    """A number of a response, also in quotes or as a literal; None for anything else."""
    digits = value if isinstance(value, bytes) else str(value).encode()
    return int(digits) if digits.isdigit() and len(digits) < 20 else None


def _answers(data: Sequence[Any]) -> Iterator[list[Any]]:
    """imaplib's records of one FETCH response after the other; only its last line is bare bytes."""
    records: list[Any] = []
    for record in data:
        records.append(record)
        if isinstance(record, bytes):
            yield records
            records = []


def _parse_answer(records: Sequence[Any]) -> tuple[int | None, dict[bytes, Any]]:
    """UID and items of one FETCH response. No UID is fine for what comes unasked, such as flags.

    ValueError, RecursionError or imapclient's ProtocolError when it makes no sense.
    """
    size = sum(len(record if isinstance(record, bytes) else record[0]) for record in records)
    if size > STRUCTURE_MAX_BYTES:
        raise ValueError(f"{size} bytes for the structure of one message")
    _, *values = parse_response(records)
    if len(values) != 1 or not isinstance(values[0], tuple) or len(values[0]) % 2:
        raise ValueError("it is not one list of items and values")
    pairs = zip(values[0][::2], values[0][1::2], strict=True)
    row = {name.upper(): value for name, value in pairs if isinstance(name, bytes)}
    uid = number(row.get(b"UID"))
    if uid is None and _has_body(row):
        raise ValueError("the server answered without UID")
    return uid, row


def _has_body(row: Mapping[bytes, Any]) -> bool:
    """Whether there is something of the message itself in it, as in each FETCH of ours."""
    return any(name.startswith(b"BODY") for name in row)


def cut(text: str) -> str:
    """The text at a length that fits into a log line."""
    return text if len(text) <= WORDS_MAX_CHARS else text[:WORDS_MAX_CHARS] + "…"
