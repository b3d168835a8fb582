"""What files are by their bytes, whole and by their first piece."""

import io
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.mail.sniff import DOCUMENTS, Kind, Sniffer, is_markup, sniff


def zipped(*names: str, compression: int = zipfile.ZIP_DEFLATED, content: bytes = b"x") -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name in names:
            archive.writestr(name, content)
    return file.getvalue()


def ole(*names: str, padding: int = 512) -> bytes:
    """A compound file as far as anybody looks: directory entries of 128 bytes with their names."""
    entries = [name.encode("utf-16-le").ljust(128, b"\0") for name in names]
    return b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1".ljust(padding, b"\0") + b"".join(entries)


XLSX = zipped("[Content_Types].xml", "_rels/.rels", "xl/workbook.xml", "xl/worksheets/sheet1.xml")
XLSB = zipped("[Content_Types].xml", "_rels/.rels", "xl/workbook.bin")
DOCX = zipped("[Content_Types].xml", "_rels/.rels", "word/document.xml")
ODS_TYPE = b"application/vnd.oasis.opendocument.spreadsheet"
ODS = zipped("mimetype", "content.xml", compression=zipfile.ZIP_STORED, content=ODS_TYPE)
ODT = zipped("mimetype", compression=0, content=b"application/vnd.oasis.opendocument.text")
PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\1\0\0\0\1\x08\x06\0\0\0\x1f\x15\xc4\x89"


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"", Kind.EMPTY),
        (b"%PDF-1.4\n", Kind.PDF),
        (b"\r\nHTTP/1.1 200 OK\r\n\r\n%PDF-1.4\n\0\0\0", Kind.PDF),
        (b"x" * 1020 + b"%PDF-1.4", Kind.TEXT),
        (XLSX, Kind.XLSX),
        (XLSB, Kind.XLSB),
        (zipped("xl/drawings/a.xml", "xl/workbook.xml", "[Content_Types].xml"), Kind.XLSX),
        (zipped("_rels/.rels", "xl\\workbook22.xml"), Kind.XLSX),
        (zipped("xl/worksheets/sheet1.xml", compression=0, content=XLSX), Kind.XLSX),
        (DOCX, Kind.OFFICE),
        (zipped("_rels/.rels", "ppt/presentation.xml"), Kind.OFFICE),
        (zipped("word/document.xml", compression=0, content=XLSX), Kind.OFFICE),
        (zipped("_rels/.rels"), Kind.OOXML),
        (ODS, Kind.ODS),
        (ODT, Kind.ARCHIVE),
        (zipped("report.xlsx", compression=0, content=XLSX), Kind.ARCHIVE),
        (zipped("folder/xl/workbook.xml"), Kind.ARCHIVE),
        (zipped("note.txt"), Kind.ARCHIVE),
        (ole("Root Entry", "Workbook"), Kind.XLS),
        (ole("Root Entry", "Book", padding=4096), Kind.XLS),
        (ole("Root Entry", "EncryptionInfo", "EncryptedPackage"), Kind.ENCRYPTED_OFFICE),
        (ole("Root Entry", "1Table", "WordDocument", "ObjectPool", "Workbook"), Kind.OFFICE),
        (ole("Root Entry", "Workbook", "MBD0001", "WordDocument"), Kind.XLS),
        (ole("Root Entry", "__nameid_version1.0", "Workbook"), Kind.OFFICE),
        (ole("Root Entry") + b"\x01" + "Workbook\0".encode("utf-16-le"), Kind.OLE),
        (b"a;b\r\n1;2\r\n", Kind.TEXT),
        (b"a,b\n1,\0 2,3\n", Kind.TEXT),
        ("größe;menge\n".encode("latin-1"), Kind.TEXT),
        ("a,b\n1,2\n".encode("utf-16"), Kind.TEXT),
        ("a,b\n1,2\n".encode("utf-16-be"), Kind.TEXT),
        (b"<html>", Kind.TEXT),
        (PNG, Kind.OTHER),
        (bytes(5000), Kind.OTHER),
        (bytes(range(256)), Kind.OTHER),
    ],
)
def test_kinds(content: bytes, kind: Kind) -> None:
    assert sniff(content) is kind


def test_the_first_piece_says_whether_more_can_matter() -> None:
    for content, may_change in ((XLSX, True), (ole("Root Entry"), True), (PNG, False)):
        sniffer = Sniffer()
        sniffer.feed(content[:60])
        assert sniffer.settled is not may_change
    archive = Sniffer()
    archive.feed(zipped("note.txt")[:60])
    assert archive.settled


@given(
    st.sampled_from([XLSX, XLSB, DOCX, ODS, PNG, ole("Root Entry", "Workbook", padding=8192), b""]),
    st.integers(1, 3000),
)
def test_pieces_amount_to_the_whole(content: bytes, size: int) -> None:
    sniffer = Sniffer()
    for start in range(0, len(content), size):
        sniffer.feed(content[start : start + size])
    assert sniffer.kind is sniff(content)
    assert sniffer.size_bytes == len(content)


@given(st.binary() | st.binary().map(lambda tail: XLSX[:70] + tail))
def test_any_content_has_a_kind_and_a_description(content: bytes) -> None:
    sniffer = Sniffer()
    sniffer.feed(content)
    assert sniffer.description
    assert sniffer.is_unknown in (sniffer.kind not in DOCUMENTS, False)


def test_descriptions_name_what_can_be_named() -> None:
    for content, description in (
        (PNG, "image/png"),
        (b"\xff\xd8\xff\xe0\0\x10JFIF\0\1" + bytes(20), "image/jpeg"),
        (bytes(5000), "binary data"),
        (zipped("note.txt"), "a ZIP archive"),
    ):
        sniffer = Sniffer()
        sniffer.feed(content)
        assert sniffer.description == description


def test_markup_is_told_from_tables() -> None:
    assert is_markup(b"\xef\xbb\xbf \r\n<table>")
    assert not is_markup(b"a;b")
