"""The real files of the shared cases through a child process, each with its outcome."""

from collections.abc import Iterator, Sequence
from email import message_from_bytes
from pathlib import Path
from typing import Any

import pytest

from service.extract.readers import open_readers
from tests.extract.pool import CODES, LIMITS, Refused, outcome, reading_processes

CASES = Path(__file__).parents[3] / "shared" / "cases"
FOLDER = CASES / "files"

# A code; the number of pages; or the rows of each table.
OUTCOMES: dict[str, str | int | Sequence[int]] = {
    "WARN-Report-for-7-1-2015-to-03-25-2016.pdf": 16,
    "any_sheets.xls": [5, 0, 0],
    "bad.csv": [4],
    "base.ods": [1, 0, 0],
    "base.xls": [1, 0, 0],
    "base.xlsb": [1, 0, 3, 0],
    "base.xlsx": [1, 0, 3, 0],
    "cupertino_usd_4-6-16.pdf": 1,
    "empty.pdf": "empty",
    "empty_file.xlsx": "empty",
    "federal-register-2020-17221.pdf": 15,
    "hello_structure.pdf": 2,
    "issue-140-example.pdf": 1,
    "issue-297-example.pdf": "no_text",
    "issue-33-lorem-ipsum.pdf": 2,
    "ks_1033_data.csv": [1576],
    "la-precinct-bulletin-2014-p1.pdf": 1,
    "mac_newlines.csv": [3],
    "malformed-from-issue-932.pdf": 1,
    "ne_1033_data.xlsx": [1037],
    "nics-background-checks-2015-11.pdf": 1,
    "no_header_row.csv": [1],
    "null_byte.csv": [2],
    "optional_quote_characters.csv": [2],
    "password.xlsx": "password_required",
    "table-curves-example.pdf": 1,
    "table-multiple.xlsx": [5, 5, 11],
    "test_header_newline.csv": [2],
    "test_latin1.csv": [3],
    "test_locale.csv": [2],
    "test_utf16_big.csv": [3],
    "test_utf16_little.csv": [3],
    "test_utf8_bom.csv": [3],
    "word365_structure.pdf": 1,
}
WARNINGS = {
    "any_sheets.xls": [
        "sheet 'Hidden' is hidden in the workbook",
        "sheet 'VeryHidden' is hidden in the workbook",
    ],
}
LAST_ROWS = {
    "base.xlsx": [
        "String", 1, 1.1, True, False, "2010-10-10", "2010-10-10T10:10:10", "10:10:10",
        "PT10H10M10.1S", "PT255H10M10S",
    ],
    "mac_newlines.csv": ["Once upon\na time", "5", "6"],
    "null_byte.csv": ["", "2", "3"],
    "test_latin1.csv": ["4", "5", "\u00a9"],
    "test_locale.csv": ["1,7", "200.000.000", ""],
    "test_utf16_big.csv": ["4", "5", "\u02a4"],
    "test_utf16_little.csv": ["4", "5", "\u02a4"],
    "test_utf8_bom.csv": ["4", "5", "\u02a4"],
}  # fmt: skip

pytestmark = pytest.mark.skipif(
    not FOLDER.is_dir(), reason="the shared files ../shared/cases/files are not there"
)


def summary(found: dict[str, Any] | Refused) -> str | int | list[int]:
    if isinstance(found, Refused):
        return found.code
    if "pages" in found:
        assert found["text"] == "\n\n".join(found["pages"])
        return len(found["pages"])
    return [len(table["rows"]) for table in found["tables"]]


async def test_every_file_has_its_outcome() -> None:
    found = {}
    async with open_readers(1, LIMITS) as readers:
        for path in sorted(FOLDER.iterdir()):
            found[path.name] = await outcome(readers, path.read_bytes())
    assert {name: summary(result) for name, result in found.items()} == OUTCOMES
    results = {name: result for name, result in found.items() if isinstance(result, dict)}
    warned = {name: result["warnings"] for name, result in results.items() if result["warnings"]}
    assert warned == WARNINGS
    for name, row in LAST_ROWS.items():
        assert results[name]["tables"][0]["rows"][-1] == row
    assert "existing FAA-approved MEL" in results["federal-register-2020-17221.pdf"]["text"]


def corpus_parts() -> Iterator[bytes]:
    """What every part of every mail holds, whatever it is."""
    for path in sorted(CASES.glob("corpus/*.eml")):
        for part in message_from_bytes(path.read_bytes()).walk():
            content = part.get_payload(decode=True)
            if isinstance(content, bytes):
                yield content


async def test_every_part_of_the_corpus_has_a_result_or_a_reason() -> None:
    codes = set()
    async with open_readers(1, LIMITS) as readers:
        for content in corpus_parts():
            found = await outcome(readers, content)
            codes.add(found.code if isinstance(found, Refused) else "done")
        assert len(reading_processes()) == 1
    assert "done" in codes
    assert codes <= {"done", *CODES} - {"reader_crashed", "memory_limit", "time_limit"}
