"""Documents for the tests, made here: small good ones, and hostile ones that unfold when read."""

from collections.abc import Sequence
from io import BytesIO
from struct import pack
from zipfile import ZIP_DEFLATED, ZipFile

MEGABYTE = 1024 * 1024
GOOD_CSV = b"item,amount\nscrew,3\nnut,5\n"
GOOD_ROWS = [["item", "amount"], ["screw", "3"], ["nut", "5"]]

_XML = '<?xml version="1.0" encoding="UTF-8"?>'
_PACKAGE = "http://schemas.openxmlformats.org/package/2006"
_OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_SHEET = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"


def pdf(objects: Sequence[bytes], trailer: bytes = b"") -> bytes:
    """A PDF of these objects, numbered from 1; the first is its catalog."""
    content = bytearray(b"%PDF-1.4\n")
    offsets = []
    for number, body in enumerate(objects, start=1):
        offsets.append(len(content))
        content += b"%d 0 obj\n%b\nendobj\n" % (number, body)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    size = len(objects) + 1
    return bytes(content) + (
        b"xref\n0 %d\n0000000000 65535 f \n%btrailer\n<< /Size %d /Root 1 0 R %b >>\n"
        b"startxref\n%d\n%%%%EOF\n" % (size, table, size, trailer, len(content))
    )


def stream(data: bytes, entries: bytes = b"") -> bytes:
    return b"<< /Length %d %b >>\nstream\n%b\nendstream" % (len(data), entries, data)


def pdf_of_pages(
    *texts: bytes, kids: bytes | None = None, count: int | None = None, trailer: bytes = b""
) -> bytes:
    """A PDF whose pages show these texts; `kids` and `count` replace what its page tree says.

    Objects: 1 catalog, 2 page tree, 3 font, then each page and its content.
    """
    numbers = range(4, 4 + 2 * len(texts), 2)
    kids = b" ".join(b"%d 0 R" % number for number in numbers) if kids is None else kids
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Count %d /Kids [%b] >>" % (len(texts) if count is None else count, kids),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for number, text in zip(numbers, texts, strict=True):
        objects.append(
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents %d 0 R"
            b" /Resources << /Font << /F1 3 0 R >> >> >>" % (number + 1)
        )
        objects.append(stream(b"BT /F1 12 Tf 72 720 Td (%b) Tj ET" % text))
    return pdf(objects, trailer)


def xlsx(rows: str, *, sheets: Sequence[str] = ('name="Sheet1"',)) -> bytes:
    """A workbook; each sheet, given by its attributes, has these rows of SpreadsheetML."""
    return xlsx_of_parts(rows=(rows.encode(), 1), sheets=sheets)


def xlsx_of_parts(
    rows: tuple[bytes, int],
    shared: tuple[bytes, int] = (b"", 0),
    sheets: Sequence[str] = ('name="Sheet1"',),
) -> bytes:
    """A workbook whose rows and shared strings are a piece each, so many times over.

    There is one part for the rows of all sheets.
    """
    listed = "".join(
        f'<sheet {attributes} sheetId="{n}" r:id="worksheet"/>'
        for n, attributes in enumerate(sheets, start=1)
    )
    with BytesIO() as file:
        with ZipFile(file, "w", ZIP_DEFLATED, compresslevel=1) as archive:
            archive.writestr(
                "[Content_Types].xml", f'{_XML}<Types xmlns="{_PACKAGE}/content-types"/>'
            )
            archive.writestr("_rels/.rels", _relationships(officeDocument="xl/workbook.xml"))
            archive.writestr(
                "xl/workbook.xml",
                f'{_XML}<workbook xmlns="{_SHEET}" xmlns:r="{_OFFICE}"><sheets>{listed}</sheets>'
                "</workbook>",
            )
            archive.writestr(
                "xl/_rels/workbook.xml.rels",
                _relationships(worksheet="rows.xml", sharedStrings="sharedStrings.xml"),
            )
            _write(archive, "xl/sharedStrings.xml", "<sst {}>", shared, "</sst>")
            _write(
                archive,
                "xl/rows.xml",
                "<worksheet {}><sheetData>",
                rows,
                "</sheetData></worksheet>",
            )
        return file.getvalue()


def _relationships(**targets: str) -> str:
    listed = "".join(
        f'<Relationship Id="{kind}" Type="{_OFFICE}/{kind}" Target="{target}"/>'
        for kind, target in targets.items()
    )
    return f'{_XML}<Relationships xmlns="{_PACKAGE}/relationships">{listed}</Relationships>'


def _write(
    archive: ZipFile, name: str, opened: str, content: tuple[bytes, int], closed: str
) -> None:
    piece, times = content
    pieces_at_once = max(1, min(times, MEGABYTE // max(1, len(piece))))
    with archive.open(name, "w") as member:
        member.write((_XML + opened.format(f'xmlns="{_SHEET}"')).encode())
        for _ in range(times // pieces_at_once):
            member.write(piece * pieces_at_once)
        member.write(closed.encode())


def number_cell(reference: str, value: object) -> str:
    return f'<c r="{reference}"><v>{value}</v></c>'


def text_cell(reference: str, text: str) -> str:
    return f'<c r="{reference}" t="inlineStr"><is><t>{text}</t></is></c>'


def row_of(number: int, *cells: str) -> str:
    return f'<row r="{number}">{"".join(cells)}</row>'


def corners(last: str, last_row: int) -> bytes:
    """A workbook that fills A1 and one far cell alone."""
    return xlsx(row_of(1, number_cell("A1", 1)) + row_of(last_row, number_cell(last, 2)))


def endless_xlsx() -> bytes:
    """Less than 100 KB that are 3 GB to a reader: it looks through one part 500 times."""
    sheets = [f'name="Sheet{number}"' for number in range(500)]
    return xlsx_of_parts(rows=(b"<row/>", 1_000_000), sheets=sheets)


def ole_header() -> bytes:
    """The header of an OLE file with one sector of its allocation table, the first."""
    fields = (0, 1, 1, 0, 4096, 0xFFFFFFFE, 0, 0xFFFFFFFE, 0, 0, *[0xFFFFFFFF] * 108)
    return (
        b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
        + bytes(16)
        + pack("<5H6x", 0x3E, 3, 0xFFFE, 9, 6)
        + pack("<118I", *fields)
    )


def endless_ole() -> bytes:
    """1 KB whose directory is a chain of sectors that leads back to itself."""
    return ole_header() + bytes(512)


GOOD_PDF = pdf_of_pages(b"Invoice 4711", b"Thank you")
GOOD_XLSX = xlsx(row_of(1, text_cell("A1", "item"), number_cell("B1", 3)))
