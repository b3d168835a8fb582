"""The records of a CSV file of any size, one at a time, each with the lines that it stands on.

What is no CSV costs one line and never what follows: a quotation mark that nothing closes would
swallow the rest of the file, and the memory with it.
"""

import csv
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TextIO

from service.extract.dialect import MAX_LINE_CHARS

# What an opened quotation mark may swallow, and is read anew when nothing closes it.
MAX_RECORD_LINES = 200


class Record(NamedTuple):
    """A row, or with a `problem` a line that is none, as it stands."""

    first_line: int
    last_line: int
    cells: Sequence[str]
    problem: str | None = None


class Records:
    """The rows of an open file; blank lines are left out, quotes are taken strictly.

    The file has to be opened with `newline=""`.
    """

    def __init__(self, file: TextIO, delimiter: str) -> None:
        self._lines = _Lines(file)
        self._reader = csv.reader(
            self._lines, delimiter=delimiter, skipinitialspace=True, strict=True
        )

    def __iter__(self) -> Iterator[Record]:
        return self

    def __next__(self) -> Record:
        cells: Sequence[str] = ()
        while not cells:
            first_line = self._lines.begin_record()
            try:
                cells = next(self._reader)
            except csv.Error as error:
                line = self._lines.keep_first()
                return Record(first_line, first_line, [line], f"not readable as CSV: {error}")
        return Record(first_line, self._lines.number, cells)


class _Lines:
    """The lines of a file; those behind the first one of a record can be given back.

    `number` is that of the last line given out.
    """

    def __init__(self, file: TextIO) -> None:
        self.number = 0
        self._file = file
        self._of_record: list[str] = []
        self._chars_of_record = 0
        self._given_back: deque[str] = deque()

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._given_back.popleft() if self._given_back else self._read()
        if not line:
            raise StopIteration
        self.number += 1
        self._of_record.append(line)
        self._chars_of_record += len(line)
        if len(self._of_record) > MAX_RECORD_LINES:
            raise csv.Error(f"a quotation mark is open for more than {MAX_RECORD_LINES} lines")
        if self._chars_of_record > MAX_LINE_CHARS:
            raise csv.Error(f"the row has more than {MAX_LINE_CHARS} characters")
        return line

    def begin_record(self) -> int:
        """The number of its first line."""
        self._of_record.clear()
        self._chars_of_record = 0
        return self.number + 1

    def keep_first(self) -> str:
        """Give back all lines of the record but the first one, which is returned."""
        first, *rest = self._of_record
        self._given_back.extendleft(reversed(rest))
        self.number -= len(rest)
        return first.rstrip("\r\n")

    def _read(self) -> str:
        """A line, or of one that is too long a beginning that shows it."""
        line = piece = self._file.readline(MAX_LINE_CHARS + 1)
        while len(piece) > MAX_LINE_CHARS and not piece.endswith(("\n", "\r")):
            piece = self._file.readline(MAX_LINE_CHARS + 1)
        return line
