"""Workbooks: cells, sheets, and what is none. Without a child process."""

import json
from collections.abc import Sequence
from io import BytesIO
from typing import Any
from zipfile import ZipFile

import pytest

from service.errors import ReadFailed
from service.extract.document import read_document
from tests.extract.samples import (
    GOOD_XLSX,
    MEGABYTE,
    corners,
    number_cell,
    ole_header,
    row_of,
    text_cell,
    xlsx,
)


def result_of(content: bytes, max_bytes: int = MEGABYTE) -> dict[str, Any]:
    return dict(json.loads(read_document(content, max_bytes)))


def rows_of(*cells: str) -> Any:
    (table,) = result_of(xlsx(row_of(1, *cells)))["tables"]
    return table["rows"]


def archive(**members: str) -> bytes:
    with BytesIO() as file:
        with ZipFile(file, "w") as opened:
            for name, content in members.items():
                opened.writestr(name.replace("__", "/").replace("_", "."), content)
        return file.getvalue()


def ole(name: str) -> bytes:
    """A directory entry of an OLE file, behind its magic."""
    return b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1".ljust(1024, b"\0") + (
        (name + "\0").encode("utf-16-le").ljust(128, b"\0")
    )


@pytest.mark.parametrize(
    ("written", "cell"),
    [
        ("3", 3),
        ("3.0", 3),
        ("-0.5", -0.5),
        ("1e15", 10**15),
        ("123456789012345678", 1.2345678901234568e17),
        ("1e300", 1e300),
        ("NaN", "nan"),
        ("1e999", "inf"),
        ("-1e999", "-inf"),
    ],
)
def test_numbers(written: str, cell: object) -> None:
    ((found,),) = rows_of(number_cell("A1", written))
    assert (found, type(found)) == (cell, type(cell))


def test_other_cells() -> None:
    cells = [
        text_cell("A1", "x &amp; y \U0001f600"),
        '<c r="B1" t="b"><v>1</v></c>',
        '<c r="C1" t="e"><v>#DIV/0!</v></c>',
        '<c r="D1" t="d"><v>2026-03-02T10:00:00</v></c>',
        text_cell("F1", "end"),
        text_cell("G1", ""),
    ]
    assert rows_of(*cells) == [["x & y \U0001f600", True, "", "2026-03-02T10:00:00", "", "end"]]


def test_a_stray_cell_does_not_make_millions() -> None:
    (table,) = result_of(corners("CV5000", last_row=5000))["tables"]
    rows = table["rows"]
    assert len(rows) == 5000
    assert rows[0] == [1]
    assert not any(rows[1:4999])
    assert rows[4999] == [""] * 99 + [2]


def test_rows_before_the_first_filled_one_are_dropped() -> None:
    content = xlsx(row_of(900_000, text_cell("C900000", "x")))
    assert result_of(content)["tables"][0]["rows"] == [["x"]]


def test_hidden_sheets_are_read_and_named() -> None:
    sheets = ['name="One"', 'name="Two" state="hidden"', 'name="Three" state="veryHidden"']
    result = result_of(xlsx(row_of(1, number_cell("A1", 1)), sheets=sheets))
    assert result == {
        "tables": [{"name": name, "rows": [[1]]} for name in ("One", "Two", "Three")],
        "warnings": [
            "sheet 'Two' is hidden in the workbook",
            "sheet 'Three' is hidden in the workbook",
        ],
    }


def test_warnings_are_bounded() -> None:
    sheets = [f'name="{"x" * 1000}{number}" state="hidden"' for number in range(500)]
    result = result_of(xlsx(row_of(1, number_cell("A1", 1)), sheets=sheets))
    assert len(result["tables"]) == 500
    assert len(result["warnings"]) == 51
    assert result["warnings"][-1] == "450 more warnings"
    assert max(map(len, result["warnings"])) <= 300


def test_sheets_beyond_the_limit_are_left_out() -> None:
    names = [f'name="Sheet {number} {"x" * 20}"' for number in range(100)]
    result = result_of(xlsx(row_of(1, text_cell("A1", "x")), sheets=names), 1_000)
    assert 10 < len(result["tables"]) < 30
    assert result["warnings"][-1] == (
        f"only the first {len(result['tables'])} worksheets fit into the limit of 0.000954 MiB"
    )


def test_rows_beyond_the_limit_are_counted() -> None:
    rows = "".join(row_of(number, text_cell(f"A{number}", "x" * 90)) for number in range(1, 101))
    result = result_of(xlsx(rows, sheets=('name="First"', 'name="Second"')), 1_000)
    first, second = result["tables"]
    assert len(first["rows"]) == 10
    assert second["rows"] == []
    assert result["warnings"] == [
        "only the first 10 of 100 rows of sheet 'First' fit into the limit of 0.000954 MiB",
        "only the first 0 of 100 rows of sheet 'Second' fit into the limit of 0.000954 MiB",
    ]


@pytest.mark.parametrize(
    ("content", "code"),
    [
        pytest.param(xlsx(""), "empty", id="no cell"),
        pytest.param(xlsx("", sheets=()), "empty", id="no sheet"),
        pytest.param(GOOD_XLSX[: len(GOOD_XLSX) // 2], "damaged", id="cut"),
        pytest.param(GOOD_XLSX[:100], "damaged", id="cut at once"),
        pytest.param(xlsx('<row r="1"><c r="A1"><v>1'), "damaged", id="broken XML"),
        pytest.param(xlsx('<row r="0"><c r="A0"><v>1</v></c></row>'), "damaged", id="row 0"),
        pytest.param(archive(note_txt="text"), "unsupported", id="ZIP"),
        pytest.param(archive(word__document_xml="<w/>"), "unsupported", id="DOCX"),
        pytest.param(b"PK\x05\x06" + bytes(18), "damaged", id="ZIP of nothing"),
        pytest.param(ole("EncryptedPackage"), "password_required", id="encrypted XLSX"),
        pytest.param(ole("WordDocument"), "unsupported", id="DOC"),
        pytest.param(ole("Workbook"), "damaged", id="broken XLS"),
        pytest.param(ole_header(), "damaged", id="XLS that makes the reader panic"),
        pytest.param(ole(""), "damaged", id="OLE of nothing"),
    ],
)
def test_refusals(content: bytes, code: str) -> None:
    with pytest.raises(ReadFailed) as caught:
        read_document(content, MEGABYTE)
    assert caught.value.code == code
    assert len(str(caught.value)) > 20


@pytest.mark.parametrize("sheets", [["damaged", "good"], ["good", "damaged"]])
def test_a_damaged_sheet_costs_itself_alone(sheets: Sequence[str]) -> None:
    attributes = [f'name="{name}"' for name in sheets]
    content = xlsx(row_of(1, number_cell("A1", 1)), sheets=attributes)
    position = sheets.index("damaged") + 1
    result = result_of(_point_nowhere(content, position))
    assert [table["name"] for table in result["tables"]] == ["good"]
    (warning,) = result["warnings"]
    assert warning.startswith("sheet 'damaged' is damaged and left out")


def _point_nowhere(content: bytes, sheet: int) -> bytes:
    """The workbook with the relationship of this sheet leading to a part that is not there."""
    with BytesIO() as file:
        with ZipFile(BytesIO(content)) as old, ZipFile(file, "w") as new:
            for name in old.namelist():
                text = old.read(name).decode()
                text = text.replace(
                    f'sheetId="{sheet}" r:id="worksheet"', f'sheetId="{sheet}" r:id="gone"'
                )
                text = text.replace(
                    "</Relationships>",
                    '<Relationship Id="gone" Type="http://schemas.openxmlformats.org/officeDocument'
                    '/2006/relationships/worksheet" Target="gone.xml"/></Relationships>',
                )
                new.writestr(name, text)
        return file.getvalue()
