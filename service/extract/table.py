"""CSV and its relatives: the charset found out, rows through the standard library.

A quotation mark that nothing closes costs the marks behind it their meaning, never the rows.
"""

import codecs
import csv
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain

from service.errors import ReadFailed
from service.extract.dialect import DELIMITERS, MAX_LINE_CHARS, find_delimiter
from service.extract.result import MEGABYTE, Output, Rows, clean_text
from service.mail.sniff import Kind, Sniffer
from service.mail.text import decode_charset

SAMPLE_BYTES = 65_536

_SEPARATORS = "\r\n" + DELIMITERS
_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
# Follows the last line. NUL was taken out of the text, so that no cell of it holds one.
_END = "\0"


def read_table(content: bytes, output: Output) -> bytes:
    """The result's JSON, with one table that has no name. ReadFailed."""
    text = _decode(content)
    if undecodable := text.count("\ufffd"):
        output.warn(f"{undecodable} characters could not be decoded")
    rows = _read_rows(text, output)
    table = rows.close()
    if rows.is_full:
        lines = text.rstrip("\n").count("\n") + 1
        output.warn(f"only the first {rows.kept} rows of {lines} lines fit into {output.limit}")
    return output.close([b'"tables":[{"name":"","rows":%b}]' % table])


def _decode(content: bytes) -> str:
    """The text with "\\n" for every end of a line. ReadFailed when it is none, or empty."""
    codec = _utf_16(content)
    if codec is None:
        _refuse_binary(content)
    text = content.decode(codec, "replace") if codec else decode_charset(content, None)
    text = clean_text(text).replace("\r\n", "\n").replace("\r", "\n")
    if not text or text.isspace():
        raise ReadFailed("empty", "the file is empty: there is nothing but white space in it")
    return text


def _utf_16(content: bytes) -> str | None:
    """The codec, if it is UTF-16.

    Without a mark it shows in the separators: in UTF-16 nearly all of their bytes are characters
    of their own. A share of NUL would show it in Western languages alone.
    """
    if content.startswith(_MARKS):
        return "utf-16"
    sample = content[:SAMPLE_BYTES]
    if 0 not in sample:
        return None
    octets = sum(map(sample.count, _SEPARATORS.encode()))
    for codec in ("utf-16-le", "utf-16-be"):
        characters = sum(map(sample.decode(codec, "ignore").count, _SEPARATORS))
        if characters * 2 > octets:
            return codec
    return None


def _refuse_binary(content: bytes) -> None:
    sniffer = Sniffer()
    sniffer.feed(content)
    if sniffer.kind is not Kind.OTHER:
        return
    if sniffer.is_unknown:
        raise ReadFailed("damaged", "the bytes are no PDF, no workbook and no text")
    raise ReadFailed("unsupported", f"the file is {sniffer.description}, which is not read")


def _read_rows(text: str, output: Output) -> Rows:
    """A quotation mark that nothing closes would swallow all behind it: there, marks are text."""
    rows = Rows(output)
    delimiter = find_delimiter(text)
    unread = _add_rows(rows, text, 0, delimiter)
    if unread < len(text):
        output.warn(
            f"from row {rows.added + 1} on quotation marks are read as they stand:"
            " one of them is never closed"
        )
        _add_rows(rows, text, unread, delimiter, with_quotes=False)
    return rows


def _add_rows(
    rows: Rows, text: str, start: int, delimiter: str, *, with_quotes: bool = True
) -> int:
    """Add the rows from `start` on; where a row begins that never ends, else the text's end."""
    lines = _Lines(text, start)
    reader = csv.reader(
        chain(lines, [_END]),
        delimiter=delimiter,
        quoting=csv.QUOTE_MINIMAL if with_quotes else csv.QUOTE_NONE,
        skipinitialspace=True,
    )
    with suppress(csv.Error):  # a cell beyond the limit: it has swallowed the lines behind it
        for row in reader:
            if row and row[-1].endswith(_END):
                break
            if row:
                rows.add(row)
            start = lines.position
            if rows.is_full:
                return len(text)
    return start


class _Lines:
    """The lines of a text from a position on; `position` is behind the last one given."""

    def __init__(self, text: str, position: int) -> None:
        self._text = text
        self.position = position

    def __iter__(self) -> Iterator[str]:
        while self.position < len(self._text):
            start = self.position
            self.position = self._text.find("\n", start) + 1 or len(self._text)
            if self.position - start > MAX_LINE_CHARS:
                limit = f"{MAX_LINE_CHARS / MEGABYTE:g} Mi characters"
                raise ReadFailed("too_large", f"a line is longer than {limit}")
            yield self._text[start : self.position]
