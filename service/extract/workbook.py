"""XLSX, XLSB, XLS and ODS: the rows of the worksheets, through python-calamine.

Chart and macro sheets are left out, hidden worksheets are read and named in a warning. Empty rows
before the first filled one and empty cells behind the last one of a row are dropped: one stray cell
far outside would otherwise make millions of them.
"""

import math
from collections.abc import Callable, Iterator
from datetime import date, datetime, time, timedelta
from io import BytesIO
from itertools import islice
from types import TracebackType
from typing import Any

from python_calamine import (
    CalamineError,
    CalamineSheet,
    CalamineWorkbook,
    PasswordError,
    SheetMetadata,
    SheetTypeEnum,
    SheetVisibleEnum,
)

from service.errors import ReadFailed
from service.extract.result import Cell, Output, Rows, clean_text, encode_json
from service.mail.sniff import Kind, sniff

MAX_NAME_CHARS = 255
MAX_ROWS = 2**20  # of a sheet, in every format; counting up to a false number takes minutes
# Beyond it a whole float is not exact any more, and its digits would be made up.
MAX_WHOLE_FLOAT = 2**53

_MAGIC = (b"PK\x03\x04", b"PK\x05\x06", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1")
_TABLE = b'{"name":%b,"rows":%b}'
_NO_WORKBOOK = frozenset({Kind.OFFICE, Kind.ARCHIVE})


def is_workbook(content: bytes) -> bool:
    """Whether the bytes begin as a ZIP or OLE container."""
    return content.startswith(_MAGIC)


def read_workbook(content: bytes, output: Output) -> bytes:
    """The result's JSON. ReadFailed."""
    with _open(content) as workbook:
        tables = list(_read_sheets(workbook, output))
    return output.close([b'"tables":[%b]' % b",".join(tables)])


def _open(content: bytes) -> CalamineWorkbook:
    try:
        with _Damage():
            return CalamineWorkbook.from_filelike(BytesIO(content))
    except PasswordError:
        raise _password_required() from None
    except CalamineError as error:
        raise _why_not(content, error) from None


class _Damage:
    """What calamine lets through on damaged files as `CalamineError`: its panics and I/O errors."""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # The class of a panic has no address to import it from.
        if isinstance(error, OSError) or (kind and kind.__name__ == "PanicException"):
            raise CalamineError(str(error)) from error


def _password_required() -> ReadFailed:
    return ReadFailed("password_required", "the workbook opens with a password only")


def _why_not(content: bytes, error: CalamineError) -> ReadFailed:
    """Calamine knows only that it is no workbook; the names in the bytes know more."""
    kind = sniff(content)
    if kind is Kind.ENCRYPTED_OFFICE:
        return _password_required()
    if kind in _NO_WORKBOOK:
        return ReadFailed("unsupported", f"the file is {kind}, not a workbook")
    return ReadFailed("damaged", f"the workbook is damaged: {str(error)[:200]}")


def _read_sheets(workbook: CalamineWorkbook, output: Output) -> Iterator[bytes]:
    """The tables, each as JSON. ReadFailed when none has a filled cell."""
    found = damaged = filled = 0
    for index, sheet in enumerate(workbook.sheets_metadata):
        if sheet.typ is not SheetTypeEnum.WorkSheet:
            continue
        if output.left_bytes <= 0:
            output.warn(f"only the first {found} worksheets fit into {output.limit}")
            break
        found += 1
        try:
            with _Damage():
                content = workbook.get_sheet_by_index(index)
                table = _read_sheet(sheet, content, output)
        except CalamineError as error:
            damaged += 1
            output.warn(f"sheet {sheet.name!r} is damaged and left out: {error}")
            continue
        filled += content.start is not None
        yield table
    if found and damaged == found:
        raise ReadFailed("damaged", "the workbook is damaged: none of its sheets can be read")
    if not filled:
        raise ReadFailed("empty", "the workbook is empty: no worksheet has a filled cell")


def _read_sheet(sheet: SheetMetadata, content: CalamineSheet, output: Output) -> bytes:
    name = encode_json(clean_text(sheet.name)[:MAX_NAME_CHARS])
    output.left_bytes -= len(name) + len(_TABLE)
    rows = Rows(output)
    first = content.start[0] if content.start else 0
    if first >= MAX_ROWS:
        raise CalamineError(f"its first filled row is number {first + 1}")
    for row in islice(content.iter_rows(), first, None):
        rows.add(_cells(row))
        if rows.is_full:
            break
    table = _TABLE % (name, rows.close())
    if sheet.visible is not SheetVisibleEnum.Visible:
        output.warn(f"sheet {sheet.name!r} is hidden in the workbook")
    if rows.is_full:
        output.warn(
            f"only the first {rows.kept} of {content.height} rows of sheet {sheet.name!r}"
            f" fit into {output.limit}"
        )
    return table


def _cells(row: list[Any]) -> list[Cell]:
    while row and row[-1] == "":
        row.pop()
    return [_AS_CELL[type(value)](value) for value in row]


def _number(value: float) -> Cell:
    if value.is_integer() and abs(value) <= MAX_WHOLE_FLOAT:
        return int(value)
    return value if math.isfinite(value) else str(value)


def _iso_duration(value: timedelta) -> str:
    """ISO 8601 in hours, as ODS writes it: PT255H10M10S."""
    seconds, microseconds = divmod(abs(value) // timedelta(microseconds=1), 1_000_000)
    fraction = f".{microseconds:06}".rstrip("0") if microseconds else ""
    sign = "-" if value < timedelta(0) else ""
    return f"{sign}PT{seconds // 3600}H{seconds // 60 % 60}M{seconds % 60}{fraction}S"


def _itself(value: Cell) -> Cell:
    return value


_AS_CELL: dict[type, Callable[[Any], Cell]] = {
    str: clean_text,
    float: _number,
    int: _itself,
    bool: _itself,
    date: date.isoformat,
    datetime: datetime.isoformat,
    time: time.isoformat,
    timedelta: _iso_duration,
}
