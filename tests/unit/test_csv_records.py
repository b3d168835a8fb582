"""The records of a CSV file: their lines, and what is no CSV costs one line."""

import io

import pytest

from service.cli.enrich.csv_records import MAX_RECORD_LINES, Record, Records
from service.extract.dialect import MAX_LINE_CHARS
from tests.bounds import at_most

LONG = "x" * MAX_LINE_CHARS


def records_of(text: str, delimiter: str = ",") -> list[Record]:
    return list(Records(io.StringIO(text, newline=""), delimiter))


def good(*rows: list[str], line: int = 1) -> list[Record]:
    """Rows of one line each, from this line on."""
    return [Record(number, number, row) for number, row in enumerate(rows, line)]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_every_kind_of_line_end(end: str) -> None:
    assert records_of(end.join(["a,b", "1,2", "3"])) == good(["a", "b"], ["1", "2"], ["3"])


def test_a_record_of_several_lines_knows_them_and_blank_lines_are_none() -> None:
    assert records_of('a\n\n"1\r\n2",3\n\n4\n') == [
        Record(1, 1, ["a"]),
        Record(3, 4, ["1\r\n2", "3"]),
        Record(6, 6, ["4"]),
    ]


def test_quotes_nul_and_spaces_are_kept() -> None:
    assert records_of('"""a b""@x;y",1\nd"e"f, "g"\n\0,h\n') == good(
        ['"a b"@x;y', "1"], ['d"e"f', "g"], ["\0", "h"]
    )


@pytest.mark.parametrize(
    "broken",
    ['"never closed,1', '1,"never closed', '"closed" too early,1', f"{LONG}y", f'"{LONG}"'],
    ids=["first", "last", "early", "long line", "long cell"],
)
@pytest.mark.parametrize("behind", ["2,b\n3,c\n", '2,b\n"3",c\n', ""])
def test_what_is_no_csv_costs_one_line(broken: str, behind: str) -> None:
    first, bad, *rest = records_of(f"1,a\n{broken}\n{behind}")
    assert first == Record(1, 1, ["1", "a"])
    assert (bad.first_line, bad.last_line) == (2, 2)
    assert bad.problem is not None
    assert bad.problem.startswith("not readable as CSV: ")
    assert bad.cells[0][:MAX_LINE_CHARS] == broken[:MAX_LINE_CHARS]
    assert rest == (good(["2", "b"], ["3", "c"], line=3) if behind else [])


def test_a_quotation_mark_that_is_never_closed_swallows_no_more_than_it_may() -> None:
    line = "b" * 1000
    lines = MAX_LINE_CHARS // 1000 + 100
    bad, *rest = records_of(f'"a\n{line}\n' + f"{line}\n" * lines)
    assert (bad.cells, bad.first_line) == (['"a'], 1)
    assert rest == good(*[[line]] * (lines + 1), line=2)


def test_of_a_line_without_end_only_the_beginning_is_kept() -> None:
    bad, after = records_of(LONG * 3 + "\nc\n")
    assert (len(bad.cells[0]), bad.last_line) == (MAX_LINE_CHARS + 1, 1)
    assert after == Record(2, 2, ["c"])


def test_quotation_marks_that_nothing_closes_do_not_make_it_slow() -> None:
    """Each line of these is open whether it is read by itself or inside another's quotes."""
    with at_most(20):
        found = records_of('x","\n' * 20_000)
    assert [record.first_line for record in found if record.problem] == [
        one.first_line for one in found
    ]


def test_a_row_of_several_cells_swallows_no_more_than_one_does() -> None:
    line = f'x","{"y" * (MAX_LINE_CHARS // 4)}'
    bad, *rest = records_of(f"{line}\n" * 6)
    assert (bad.first_line, bad.last_line, bad.cells) == (1, 1, [line])
    assert bad.problem == f"not readable as CSV: the row has more than {MAX_LINE_CHARS} characters"
    assert len(rest) == 5


def test_a_cell_may_have_many_lines() -> None:
    text = "line\n" * (MAX_RECORD_LINES - 1)
    assert records_of(f'"{text}",1\n2,3\n') == [
        Record(1, MAX_RECORD_LINES, [text, "1"]),
        Record(MAX_RECORD_LINES + 1, MAX_RECORD_LINES + 1, ["2", "3"]),
    ]
