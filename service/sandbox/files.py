"""Small files made in code: documents as they come with mails, and what is none."""

import csv
import io
import struct
import zipfile
import zlib
from collections.abc import Sequence
from hashlib import shake_256


def make_pdf(*pages: Sequence[str]) -> bytes:
    """A4 pages of Helvetica; lines are ASCII without brackets or backslashes."""
    kids = b" ".join(b"%d 0 R" % (4 + 2 * index) for index in range(len(pages)))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [%b] /Count %d >>" % (kids, len(pages)),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for lines in pages:
        shown = " T* ".join(f"({line}) Tj" for line in lines)
        text = f"BT /F1 12 Tf 14 TL 72 780 Td {shown} ET".encode("ascii")
        objects += [
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents %d 0 R"
            b" /Resources << /Font << /F1 3 0 R >> >> >>" % (len(objects) + 2),
            b"<< /Length %d >>\nstream\n%b\nendstream" % (len(text), text),
        ]
    pdf = bytearray(b"%PDF-1.4\n")
    table = [b"0000000000 65535 f \n"]
    for number, content in enumerate(objects, start=1):
        table.append(b"%010d 00000 n \n" % len(pdf))
        pdf += b"%d 0 obj\n%b\nendobj\n" % (number, content)
    trailer = b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n"
    xref = b"xref\n0 %d\n%b" % (len(table), b"".join(table))
    return bytes(pdf + xref + trailer % (len(table), len(pdf)))


def make_xlsx(rows: Sequence[Sequence[str]]) -> bytes:
    """The smallest workbook that spreadsheet programs open: one sheet of inline strings."""
    package = "http://schemas.openxmlformats.org/package/2006"
    office = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    main = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    kind = "application/vnd.openxmlformats-officedocument.spreadsheetml"
    cell = '<c t="inlineStr"><is><t>{}</t></is></c>'.format
    lines = "".join(f"<row>{''.join(map(cell, row))}</row>" for row in rows)
    parts = {
        "[Content_Types].xml": f'<Types xmlns="{package}/content-types">'
        '<Default Extension="rels"'
        ' ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
        f'<Override PartName="/xl/workbook.xml" ContentType="{kind}.sheet.main+xml"/>'
        f'<Override PartName="/xl/sheet1.xml" ContentType="{kind}.worksheet+xml"/></Types>',
        "_rels/.rels": f'<Relationships xmlns="{package}/relationships"><Relationship Id="rId1"'
        f' Type="{office}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
        "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{package}/relationships">'
        f'<Relationship Id="rId1" Type="{office}/worksheet" Target="sheet1.xml"/></Relationships>',
        "xl/workbook.xml": f'<workbook xmlns="{main}" xmlns:r="{office}"><sheets>'
        '<sheet name="Orders" sheetId="1" r:id="rId1"/></sheets></workbook>',
        "xl/sheet1.xml": f'<worksheet xmlns="{main}"><sheetData>{lines}</sheetData></worksheet>',
    }
    declaration = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n'
    return make_zip({name: (declaration + xml).encode() for name, xml in parts.items()})


def make_csv(rows: Sequence[Sequence[str]]) -> str:
    """With semicolons, as spreadsheets in Europe write it."""
    text = io.StringIO()
    csv.writer(text, delimiter=";").writerows(rows)
    return text.getvalue()


def make_zip(files: dict[str, bytes]) -> bytes:
    """An archive of these files by name."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as writer:
        for name, content in files.items():
            writer.writestr(name, content)
    return archive.getvalue()


def make_logo_png(width: int = 96, height: int = 32) -> bytes:
    """A blue band on white, 8-bit RGB."""
    white, blue = b"\xff\xff\xff" * width, b"\x22\x44\x66" * width
    rows = b"".join(b"\0" + (blue if 8 <= y < 24 else white) for y in range(height))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_png_chunk(*chunk) for chunk in chunks)


def _png_chunk(kind: bytes, content: bytes) -> bytes:
    return (
        struct.pack(">I", len(content))
        + kind
        + content
        + struct.pack(">I", zlib.crc32(kind + content))
    )


def make_jpeg(size_bytes: int) -> bytes:
    """The header of a JPEG and noise: enough to be taken for a photo, which nobody opens."""
    header = bytes.fromhex("ffd8ffe000104a46494600010100000100010000ffda000c03010002110311003f00")
    noise = shake_256(b"shelf").digest(size_bytes).replace(b"\xff", b"\xfe")
    return header + noise + b"\xff\xd9"
