"""The CSV file of `enrich import`, read twice: for its SHA-256, then for its addresses.

It may be of any size: each step reads a piece of it and blocks, so it belongs into a thread. What
cannot be an address that is stored is a bad line, with its number and the reason; whether an
address makes sense is for the check to say.
"""

import codecs
import csv
import hashlib
import os
from collections.abc import Iterator, Sequence
from io import TextIOWrapper
from itertools import chain, islice
from typing import BinaryIO, NamedTuple, TextIO

from service.cli.enrich.address_column import find_column
from service.cli.enrich.csv_records import Record, Records
from service.errors import MailroomError
from service.extract.dialect import SAMPLE_CHARS, find_delimiter
from service.mail.sniff import Kind, Sniffer

PIECE_BYTES = 4 * 1024 * 1024
BATCH_RECORDS = 10_000
BATCH_CHARS = 4 * 1024 * 1024
MAX_ADDRESS_CHARS = 16_384
KEPT_BAD_LINES = 20
MAX_UNREADABLE_START = 20

_UTF_16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_POSSIBLE_KINDS = (Kind.TEXT, Kind.EMPTY)


class Fingerprint:
    """SHA-256 and charset of a file that is open: `while one.read_piece(): …`, then they are known.

    UTF-16 is known by its byte order mark, else it is UTF-8. No other charset is guessed: that
    would store wrong addresses where a bad line can be seen.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.size_bytes, self._changed_at = _state(file)
        self._sha256 = hashlib.sha256()
        self._sniffer = Sniffer()

    def read_piece(self) -> bool:
        """False at the end of the file. MailroomError, if it is a workbook or the like."""
        piece = self.file.read(PIECE_BYTES)
        self._sha256.update(piece)
        self._sniffer.feed(piece)
        is_decided = self._sniffer.settled or not piece
        if is_decided and self._sniffer.kind not in _POSSIBLE_KINDS:
            raise MailroomError(f"the file is {self._sniffer.description} and no CSV")
        return bool(piece)

    @property
    def position(self) -> int:
        """How many bytes were read; not to be asked for while a thread reads."""
        return self.file.tell()

    @property
    def sha256(self) -> bytes:
        return self._sha256.digest()

    @property
    def encoding(self) -> str:
        """The codec's name."""
        return "utf-16" if self._sniffer.head.startswith(_UTF_16_MARKS) else "utf-8-sig"

    def refuse_changed(self) -> None:
        """MailroomError, if somebody has written to the file since it was opened."""
        if _state(self.file) != (self.size_bytes, self._changed_at):
            raise MailroomError(
                "the file was changed while it was read", hint="import it when it is complete"
            )


class BadLines:
    """Counts bad lines, keeps the first of them and writes all into a CSV file, where given."""

    def __init__(self, file: TextIO | None) -> None:
        self.count = 0
        self.kept: list[tuple[int, str]] = []
        self._writer = csv.writer(file) if file is not None else None

    def begin(self, header: Sequence[str]) -> None:
        if self._writer is not None:
            self._writer.writerow(["line", "reason", *header])

    def add(self, record: Record, reason: str) -> None:
        self.count += 1
        if len(self.kept) < KEPT_BAD_LINES:
            self.kept.append((record.first_line, reason))
        if self._writer is not None:
            self._writer.writerow([record.first_line, reason, *record.cells])


class Batch(NamedTuple):
    """Addresses, each with the last line of its record, and the last line of them all."""

    rows: Sequence[tuple[int, str]]
    last_line: int
    is_last: bool


class AddressReader:
    """The addresses of a file whose fingerprint is known. MailroomError, if it has no such column.

    `column` is a name or a number; it and the delimiter are found out where None.
    """

    def __init__(
        self,
        fingerprint: Fingerprint,
        bad_lines: BadLines,
        *,
        column: str | None,
        delimiter: str | None,
    ) -> None:
        self._fingerprint = fingerprint
        self._bad_lines = bad_lines
        self._last_line = 0
        fingerprint.file.seek(0)
        # Kept, because it closes the file when it goes.
        self._text = TextIOWrapper(fingerprint.file, fingerprint.encoding, "replace", newline="")
        records = Records(self._text, delimiter or _find_delimiter(self._text))
        start = list(islice(_until_readable(records), MAX_UNREADABLE_START))
        if not start:
            raise MailroomError("the file holds no rows")
        if start[-1].problem is not None:
            raise MailroomError(f"the file begins with lines that are {start[0].problem}")
        first_row = start[-1].cells
        self.column = find_column(first_row, column)
        has_header = self.column.name is not None
        bad_lines.begin(first_row if has_header else [])
        self._records = chain(start[:-1] if has_header else start, records)

    def read_batch(self) -> Batch:
        """The next records. MailroomError, if the file was changed in the meantime."""
        rows: list[tuple[int, str]] = []
        chars = 0
        is_last = True
        for count, record in enumerate(self._records, start=1):
            self._last_line = record.last_line
            address = record.cells[self.column.index : self.column.index + 1]
            reason = record.problem or _reason_against(address, record)
            if reason is None:
                rows.append((record.last_line, address[0].strip()))
                chars += len(address[0])
            else:
                self._bad_lines.add(record, reason)
            if count == BATCH_RECORDS or chars >= BATCH_CHARS:
                is_last = False
                break
        self._fingerprint.refuse_changed()
        return Batch(rows, self._last_line, is_last)


def _find_delimiter(text: TextIO) -> str:
    sample = text.read(SAMPLE_CHARS + 1)
    text.seek(0)
    return find_delimiter(sample.replace("\r\n", "\n").replace("\r", "\n"))


def _until_readable(records: Iterator[Record]) -> Iterator[Record]:
    for record in records:
        yield record
        if record.problem is None:
            return


def _reason_against(address: Sequence[str], record: Record) -> str | None:
    if not address:
        return f"there are only {len(record.cells)} cells"
    (text,) = address
    if not text or text.isspace():
        return "there is no address"
    if "\0" in text:
        return "the address holds NUL"
    if "\ufffd" in text:
        return "the address holds bytes that are no Unicode text"
    if len(text) > MAX_ADDRESS_CHARS:
        return f"the address has more than {MAX_ADDRESS_CHARS} characters"
    return None


def _state(file: BinaryIO) -> tuple[int, int]:
    status = os.fstat(file.fileno())
    return status.st_size, status.st_mtime_ns
