"""CSV: charset, delimiter, quotation marks, and what is too much. Without a child process."""

import json
import time
from collections.abc import Sequence
from typing import Any

import pytest

from service.errors import ReadFailed
from service.extract.dialect import MAX_LINE_CHARS
from service.extract.document import read_document
from tests.extract.samples import GOOD_CSV, GOOD_ROWS, MEGABYTE

MANY_BYTES = 4 * MEGABYTE


def result_of(content: bytes, max_bytes: int = MANY_BYTES) -> dict[str, Any]:
    return dict(json.loads(read_document(content, max_bytes)))


def rows_of(content: bytes | str) -> Any:
    """The rows of a file that is read without any warning."""
    result = result_of(content.encode() if isinstance(content, str) else content)
    assert result["warnings"] == []
    (table,) = result["tables"]
    assert table["name"] == ""
    return table["rows"]


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        pytest.param("a,b\n1,2\n", [["a", "b"], ["1", "2"]], id="comma"),
        pytest.param("a;b\n1;2\n", [["a", "b"], ["1", "2"]], id="semicolon"),
        pytest.param("a\tb c\n1\t2, 3\n", [["a", "b c"], ["1", "2, 3"]], id="tab"),
        pytest.param("a|b\n1|2\n", [["a", "b"], ["1", "2"]], id="pipe"),
        pytest.param("1,5;2,5\n1,6;2,7\n", [["1,5", "2,5"], ["1,6", "2,7"]], id="decimal commas"),
        pytest.param(
            'x;"a, b, c"\ny;"d, e"\n', [["x", "a, b, c"], ["y", "d, e"]], id="commas in text"
        ),
        pytest.param(
            "t;v\n2020-01-01 10:00:00;1\n", [["t", "v"], ["2020-01-01 10:00:00", "1"]], id="times"
        ),
        pytest.param("Prices\n\na,b\n1,2\n", [["Prices"], ["a", "b"], ["1", "2"]], id="a title"),
        pytest.param("name\nalice\nbob\n", [["name"], ["alice"], ["bob"]], id="one column"),
        pytest.param('a, "b, c"\nd, e\n', [["a", "b, c"], ["d", "e"]], id="spaces"),
        pytest.param('n,s\n5" pipe,2\n', [["n", "s"], ['5" pipe', "2"]], id="inches"),
        pytest.param("n,s\nit's,don't\n", [["n", "s"], ["it's", "don't"]], id="apostrophes"),
        pytest.param('a,b\n"x\r\ny",2', [["a", "b"], ["x\ny", "2"]], id="a line in a cell"),
        pytest.param("a,b\r1,2\r", [["a", "b"], ["1", "2"]], id="CR alone"),
        pytest.param("a,b\n1,2,3\n\n4\n", [["a", "b"], ["1", "2", "3"], ["4"]], id="ragged"),
    ],
)
def test_dialects(text: str, rows: Sequence[Sequence[str]]) -> None:
    assert rows_of(text) == rows


WESTERN = "name,city\nJosé,Málaga\nFrançois,Besançon\nJürgen,Köln\nÉlise,Orléans\n"
CYRILLIC = "имя,город\nИван,Москва\nОльга,Тверь\n"  # noqa: RUF001
CHINESE = "名称,数量\n螺丝,三\n螺母,五\n"


@pytest.mark.parametrize("text", [WESTERN, CYRILLIC, CHINESE, CHINESE.replace("\n", "\r\n")])
@pytest.mark.parametrize(
    "codec", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"]
)
def test_unicode_with_and_without_a_mark(text: str, codec: str) -> None:
    expected = [line.split(",") for line in text.split()]
    assert rows_of(text.encode(codec)) == expected


@pytest.mark.parametrize(
    ("text", "codec"), [(WESTERN, "latin-1"), (CYRILLIC * 3, "cp1251"), (CHINESE * 3, "gb18030")]
)
def test_old_charsets(text: str, codec: str) -> None:
    assert rows_of(text.encode(codec)) == [line.split(",") for line in text.split()]


def test_what_cannot_be_decoded_is_counted() -> None:
    result = result_of((WESTERN * 20).encode() + b"broken \xff here,\xfe\n")
    assert result["warnings"] == ["2 characters could not be decoded"]
    assert result["tables"][0]["rows"][-1] == ["broken \ufffd here", "\ufffd"]


def test_nul_and_lone_surrogates_do_not_come_out() -> None:
    content = "a\0,b\n\ud800,x\\u0000\n".encode("utf-8", "surrogatepass") + GOOD_CSV * 10
    encoded = read_document(content, MANY_BYTES)
    assert "\0" not in json.loads(encoded)["tables"][0]["rows"][0][0]
    assert json.loads(encoded)["tables"][0]["rows"][1][1] == "x\\u0000"
    json.loads(encoded.decode("utf-8"))["tables"][0]["rows"][1][0].encode("utf-8")


def test_an_open_quotation_mark_swallows_nothing() -> None:
    result = result_of(b'a,b\n"x, y",1\n"open,2\n3,4\n')
    assert result["tables"][0]["rows"] == [["a", "b"], ["x, y", "1"], ['"open', "2"], ["3", "4"]]
    (warning,) = result["warnings"]
    assert warning.startswith("from row 3 on quotation marks are read as they stand")


def test_an_open_quotation_mark_before_more_than_a_cell_holds() -> None:
    lines = MAX_LINE_CHARS // 1000 + 10
    result = result_of(b'a,b\n"open,2\n' + (b"x" * 998 + b",y\n") * lines, 100 * MEGABYTE)
    rows = result["tables"][0]["rows"]
    assert len(rows) == lines + 2
    assert rows[1:3] == [['"open', "2"], ["x" * 998, "y"]]


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "empty"),
        (b" \r\n\t\n ", "empty"),
        (b"\xef\xbb\xbf", "empty"),
        (b"\xff\xfe", "empty"),
        (" \n".encode("utf-16"), "empty"),
        (bytes(range(256)) * 40, "damaged"),
        (b"\0" * 500, "damaged"),
        (b"\x89PNG\r\n\x1a\n" + bytes(500), "unsupported"),
        (b"a" * (MAX_LINE_CHARS + 1), "too_large"),
        (b"a,b\n" + b"1," * MAX_LINE_CHARS, "too_large"),
    ],
)
def test_refusals(content: bytes, code: str) -> None:
    with pytest.raises(ReadFailed) as caught:
        read_document(content, MANY_BYTES)
    assert caught.value.code == code
    assert len(str(caught.value)) > 20


def test_rows_beyond_the_limit_are_counted() -> None:
    result = result_of(GOOD_CSV * 40_000, 100_000)
    rows = result["tables"][0]["rows"]
    assert rows[:3] == GOOD_ROWS
    assert result["warnings"] == [
        f"only the first {len(rows)} rows of 120000 lines fit into the limit of 0.0954 MiB"
    ]
    assert 95_000 < len(json.dumps(rows, separators=(",", ":"))) <= 100_002


def test_not_one_row_fits() -> None:
    result = result_of(GOOD_CSV, 5)
    assert result["tables"][0]["rows"] == []
    assert len(result["warnings"]) == 1


@pytest.mark.parametrize("piece", [',"', '\n"', ',"a', '"', ",\";'", ', "', '\n"a,"', ",;\t|\n"])
def test_time_stays_linear(piece: str) -> None:
    content = (piece * MEGABYTE)[:MEGABYTE].encode()
    started = time.process_time()
    result_of(content)
    assert time.process_time() - started < 5
