"""The file of `enrich import`: charset, delimiter, bad lines, batches, a file that changes."""

import csv
import gzip
import hashlib
import io
from pathlib import Path

import pytest

from service.cli.enrich.address_file import (
    BATCH_CHARS,
    BATCH_RECORDS,
    KEPT_BAD_LINES,
    MAX_ADDRESS_CHARS,
    PIECE_BYTES,
    AddressReader,
    BadLines,
    Fingerprint,
)
from service.errors import MailroomError


def read(
    folder: Path,
    content: bytes | str,
    bad_lines: BadLines | None = None,
    *,
    column: str | None = None,
    delimiter: str | None = None,
) -> list[str]:
    """All addresses of a file with this content."""
    path = folder / "file.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with path.open("rb") as file:
        fingerprint = Fingerprint(file)
        while fingerprint.read_piece():
            pass
        assert fingerprint.sha256 == hashlib.sha256(path.read_bytes()).digest()
        reader = AddressReader(
            fingerprint, bad_lines or BadLines(None), column=column, delimiter=delimiter
        )
        addresses: list[str] = []
        is_last = False
        while not is_last:
            rows, _, is_last = reader.read_batch()
            addresses += [address for _, address in rows]
        assert fingerprint.position == fingerprint.size_bytes
    return addresses


ADDRESSES = ["jörg@example.com", "anna@exämple.com"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_charset_delimiter_and_line_ends_are_found_out(
    tmp_path: Path, encoding: str, delimiter: str, end: str
) -> None:
    rows = [["id", "E-Mail", "note"], ["1", ADDRESSES[0], "a, b"], ["2", ADDRESSES[1], "c"]]
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, lineterminator=end).writerows(rows)
    assert read(tmp_path, text.getvalue().encode(encoding)) == ADDRESSES


def test_a_file_of_one_column_needs_no_header(tmp_path: Path) -> None:
    assert read(tmp_path, "a@example.com\nb@example.com") == ["a@example.com", "b@example.com"]


def test_a_delimiter_that_is_given_is_taken(tmp_path: Path) -> None:
    content = "email:note\na@example.com:1,5\nb@example.com:2,5\n"
    assert read(tmp_path, content, delimiter=":") == ["a@example.com", "b@example.com"]


ODD = [
    "a b@example.com",
    '"john doe"@example.com',
    "anna@例え.テスト",
    "anna@🦄.example.com",
    "anna@[192.0.2.1]",
    "anna\r\nRCPT TO:<eve@example.net>@example.com",
    "no address at all",
    f"{'a' * 10_240}@example.com",
    "a;b,c\t@example.com",
]


def test_whatever_can_be_stored_is_imported_for_the_check_to_judge(tmp_path: Path) -> None:
    text = io.StringIO()
    csv.writer(text).writerows([["email", "id"], *([address, "1"] for address in ODD)])
    bad_lines = BadLines(None)
    assert read(tmp_path, text.getvalue(), bad_lines) == ODD
    assert bad_lines.count == 0


def test_white_space_around_an_address_is_no_part_of_it(tmp_path: Path) -> None:
    content = 'id,email\n1, a@example.com \n2,"b@example.com\r\n"\n'
    assert read(tmp_path, content) == ["a@example.com", "b@example.com"]


BAD = b"""\
id,email
1,a@example.com
2
3,
4,"  "
5,nul\0@example.com
6,\xff@example.com
7,b\xc3\xb6b@example.com
8,%(long)b@example.com
9,"never closed@example.com

10,\xe2\x82\xac@example.com
"""
REASONS = {
    3: "there are only 1 cells",
    4: "there is no address",
    5: "there is no address",
    6: "the address holds NUL",
    7: "the address holds bytes that are no Unicode text",
    9: f"the address has more than {MAX_ADDRESS_CHARS} characters",
    10: "not readable as CSV: unexpected end of data",
}


def test_bad_lines_have_their_number_and_reason_and_harm_no_other(tmp_path: Path) -> None:
    written = io.StringIO(newline="")
    bad_lines = BadLines(written)
    found = read(tmp_path, BAD % {b"long": b"x" * MAX_ADDRESS_CHARS}, bad_lines)
    assert found == ["a@example.com", "böb@example.com", "€@example.com"]
    assert dict(bad_lines.kept) == REASONS
    assert bad_lines.count == len(REASONS)
    header, *rows = csv.reader(io.StringIO(written.getvalue(), newline=""))
    assert header == ["line", "reason", "id", "email"]
    assert {int(row[0]): row[1] for row in rows} == REASONS
    assert rows[3][2:] == ["5", "nul\0@example.com"]
    assert rows[-1][2:] == ['9,"never closed@example.com']


def test_what_is_no_unicode_costs_a_row_only_where_it_is_its_address(tmp_path: Path) -> None:
    content = (
        "name,email,city\nMüller,a@example.com,Köln\né,jörg@example.com,é\nà,b@example.com,ù\n"
    )
    bad_lines = BadLines(None)
    assert read(tmp_path, content.encode("cp1252"), bad_lines) == ["a@example.com", "b@example.com"]
    assert bad_lines.kept == [(3, "the address holds bytes that are no Unicode text")]


def test_bad_lines_before_the_first_row_are_counted(tmp_path: Path) -> None:
    bad_lines = BadLines(None)
    assert read(tmp_path, '"x"y,\nemail,id\na@example.com,1\n', bad_lines) == ["a@example.com"]
    assert [line for line, _ in bad_lines.kept] == [1]


def test_only_the_first_bad_lines_are_kept(tmp_path: Path) -> None:
    bad_lines = BadLines(None)
    assert read(tmp_path, "email,id\n" + ",1\n" * 100, bad_lines) == []
    assert [line for line, _ in bad_lines.kept] == list(range(2, 2 + KEPT_BAD_LINES))
    assert bad_lines.count == 100


def test_batches_say_how_far_they_reach(tmp_path: Path) -> None:
    path = tmp_path / "file.csv"
    path.write_text("email\n" + "a@example.com\n\n" * (2 * BATCH_RECORDS))
    with path.open("rb") as file:
        fingerprint = Fingerprint(file)
        reader = AddressReader(fingerprint, BadLines(None), column=None, delimiter=None)
        batches = [reader.read_batch() for _ in range(3)]
    assert [len(batch.rows) for batch in batches] == [BATCH_RECORDS, BATCH_RECORDS, 0]
    assert [batch.last_line for batch in batches] == [20_000, 40_000, 40_000]
    assert [batch.is_last for batch in batches] == [False, False, True]
    assert batches[0].rows[1] == (4, "a@example.com")


def test_a_batch_of_long_addresses_ends_early(tmp_path: Path) -> None:
    path = tmp_path / "file.csv"
    path.write_text("email\n" + f"{'x' * 16_000}@example.com\n" * 300)
    with path.open("rb") as file:
        fingerprint = Fingerprint(file)
        reader = AddressReader(fingerprint, BadLines(None), column=None, delimiter=None)
        batches = [reader.read_batch() for _ in range(2)]
    assert sum(len(address) for _, address in batches[0].rows) < BATCH_CHARS + 20_000
    assert [batch.is_last for batch in batches] == [False, True]
    assert sum(len(batch.rows) for batch in batches) == 300


def test_a_character_that_lies_across_two_pieces_is_whole(tmp_path: Path) -> None:
    padding = "x" * (PIECE_BYTES - len("email,note\n,") - 1)
    content = f"email,note\n,{padding}ö\nö@example.com,\n"
    assert content.encode()[PIECE_BYTES - 1 : PIECE_BYTES + 1] == "ö".encode()
    assert read(tmp_path, content) == ["ö@example.com"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file holds no rows"),
        (b"\xef\xbb\xbf\r\n\r\n", "the file holds no rows"),
        (b'"', "the file begins with lines that are not readable as CSV: unexpected end of data"),
        (b'x","\n' * 500, "the file begins with lines that are not readable as CSV: a quotation"),
        (b"%PDF-1.7\n1 0 obj", "the file is PDF and no CSV"),
        (gzip.compress(b"email\na@example.com\n" * 100), "and no CSV"),
        (b"PK\x03\x04" + b"\0" * 26 + b"_rels/.rels", "an Office file without a workbook and no"),
        (b"name,contact\n", "no column is called email"),
    ],
)
def test_a_file_that_cannot_be_used_says_why(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(MailroomError) as caught:
        read(tmp_path, content)
    assert message in str(caught.value)


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file.csv"
    path.write_text("email\na@example.com\n")
    with path.open("rb") as file:
        fingerprint = Fingerprint(file)
        reader = AddressReader(fingerprint, BadLines(None), column=None, delimiter=None)
        with path.open("a") as other:
            other.write("b@example.com\n")
        with pytest.raises(MailroomError) as caught:
            reader.read_batch()
    assert str(caught.value) == "the file was changed while it was read"
