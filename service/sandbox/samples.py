"""The mails that the demo sends to itself, made in code: one for each thing the triage decides.

Their texts and files are always the same; dates are the current time, and the Message-IDs hold
the run's id, so that a second run of the demo is not taken for duplicates of the first.
"""

import csv
import io
import struct
import zipfile
import zlib
from collections.abc import Sequence
from datetime import UTC, datetime
from email.message import EmailMessage
from hashlib import shake_256
from typing import cast

_RECIPIENT = "demo@example.com"
_ORDERS = (
    ("Order", "Article", "Quantity", "Price"),
    ("4711", "Café crème, 500 g", "12", "7.90"),
    ("4712", "Thé vert, 100 g", "30", "4.50"),
    ("4713", "Grüner Tee, 100 g", "8", "5.20"),
)


def sample_mails(run_id: str) -> list[EmailMessage]:
    """Six mails to demo@example.com; the last is the first once more, to be dropped."""
    invoice = _invoice(run_id)
    return [
        invoice,
        _order_list(run_id),
        _newsletter(run_id),
        _forward(run_id),
        _photo(run_id),
        invoice,
    ]


def verification_mail(run_id: str) -> EmailMessage:
    """What a service sends to confirm an address: a code and a link, both of this run."""
    code = f"{int(run_id, 16) % 1_000_000:06}"
    link = f"https://example.org/verify?token={run_id[:12]}"
    mail = _new_mail("verify", run_id, "noreply@example.org", "Verify your e-mail address")
    mail.set_content(f"Welcome!\n\nYour verification code is {code}.\n\nOr click here: {link}\n")
    mail.add_alternative(
        f"<p>Welcome!</p><p>Your verification code is <b>{code}</b>.</p>"
        f'<p><a href="{link}">Verify my address</a></p>',
        subtype="html",
    )
    return mail


def _invoice(run_id: str) -> EmailMessage:
    """A PDF to extract beside a logo that is only decoration."""
    mail = _new_mail("invoice", run_id, "billing@example.org", "Invoice 2041 for café supplies")
    mail.set_content("Dear customer,\n\nplease find our invoice 2041 attached.\n")
    mail.add_alternative(
        '<p><img src="cid:logo@example.org" alt="Example"></p>'
        "<p>Dear customer,</p><p>please find our invoice 2041 attached.</p>",
        subtype="html",
    )
    html = cast(EmailMessage, mail.get_payload(1))
    html.add_related(
        _logo_png(),
        "image",
        "png",
        cid="<logo@example.org>",
        disposition="inline",
        filename="logo.png",
    )
    invoice = ("Invoice 2041", "Coffee beans, 12 kg: 94.80 EUR", "Total due: 94.80 EUR")
    _attach(mail, _pdf(invoice), "application/pdf", "invoice-2041.pdf")
    return mail


def _order_list(run_id: str) -> EmailMessage:
    """Two tables to extract, the text goes along as their context."""
    mail = _new_mail("orders", run_id, "orders@example.net", "Order list of this week")
    mail.set_content("Hello,\n\nthe open orders, once as a workbook and once as CSV.\n")
    workbook = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"
    _attach(mail, _xlsx(_ORDERS), workbook, "orders.xlsx")
    mail.add_attachment(_csv(_ORDERS), subtype="csv", filename="orders.csv")
    return mail


def _newsletter(run_id: str) -> EmailMessage:
    """No file and no plain text: the HTML, made readable, becomes the document."""
    mail = _new_mail("newsletter", run_id, "news@example.org", "What is new: März & avril")
    mail.set_content(
        "<html><head><style>h1 {color: #246}</style></head><body>"
        "<h1>What is new</h1><p>Our <b>spring</b> opening hours:</p>"
        "<ul><li>Monday to Friday: 8 to 18</li><li>Saturday: 9 to 13</li></ul>"
        '<p><a href="https://example.org/news">Read more</a></p></body></html>',
        subtype="html",
    )
    return mail


def _forward(run_id: str) -> EmailMessage:
    """The document is inside the forwarded mail."""
    original = _new_mail("contract", run_id, "legal@example.net", "Signed contract")
    original.set_content("The contract, signed by both sides.\n")
    contract = ("Contract 88", "between Example Ltd and Example GmbH", "Signed in Zurich")
    _attach(original, _pdf(contract), "application/pdf", "Contract 88, Zürich.pdf")
    mail = _new_mail("forward", run_id, "assistant@example.com", "Fwd: Signed contract")
    mail.set_content("For your files, see the mail below.\n")
    mail.add_attachment(original)
    return mail


def _photo(run_id: str) -> EmailMessage:
    """Two files that are not documents."""
    mail = _new_mail("photo", run_id, "colleague@example.com", "Photo of the shelf")
    mail.set_content("The shelf after the delivery, and the drawings as an archive.\n")
    _attach(mail, _jpeg(60_000), "image/jpeg", "shelf.jpg")
    _attach(mail, _zip({"drawing.txt": b"shelf, 80 x 200 cm\n"}), "application/zip", "drawings.zip")
    return mail


def _new_mail(name: str, run_id: str, sender: str, subject: str) -> EmailMessage:
    mail = EmailMessage()
    mail["From"] = sender
    mail["To"] = _RECIPIENT
    mail["Subject"] = subject
    mail["Date"] = datetime.now(UTC)
    mail["Message-ID"] = f"<{name}.{run_id}@example.com>"
    return mail


def _attach(mail: EmailMessage, content: bytes, content_type: str, filename: str) -> None:
    maintype, subtype = content_type.split("/")
    mail.add_attachment(content, maintype, subtype, filename=filename)


def _pdf(lines: Sequence[str]) -> bytes:
    """One A4 page of Helvetica; `lines` are ASCII without brackets or backslashes."""
    shown = " T* ".join(f"({line}) Tj" for line in lines)
    text = f"BT /F1 14 Tf 18 TL 72 760 Td {shown} ET".encode("ascii")
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents 4 0 R"
        b" /Resources << /Font << /F1 5 0 R >> >> >>",
        b"<< /Length %d >>\nstream\n%b\nendstream" % (len(text), text),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    pdf = bytearray(b"%PDF-1.4\n")
    table = [b"0000000000 65535 f \n"]
    for number, content in enumerate(objects, start=1):
        table.append(b"%010d 00000 n \n" % len(pdf))
        pdf += b"%d 0 obj\n%b\nendobj\n" % (number, content)
    trailer = b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n"
    xref = b"xref\n0 %d\n%b" % (len(table), b"".join(table))
    return bytes(pdf + xref + trailer % (len(table), len(pdf)))


def _xlsx(rows: Sequence[Sequence[str]]) -> bytes:
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
    return _zip({name: (declaration + xml).encode() for name, xml in parts.items()})


def _csv(rows: Sequence[Sequence[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, delimiter=";").writerows(rows)
    return text.getvalue()


def _zip(files: dict[str, bytes]) -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as writer:
        for name, content in files.items():
            writer.writestr(name, content)
    return archive.getvalue()


def _logo_png(width: int = 96, height: int = 32) -> bytes:
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


def _jpeg(size_bytes: int) -> bytes:
    """The header of a JPEG and noise: enough to be taken for a photo, which nobody opens."""
    header = bytes.fromhex("ffd8ffe000104a46494600010100000100010000ffda000c03010002110311003f00")
    noise = shake_256(b"shelf").digest(size_bytes).replace(b"\xff", b"\xfe")
    return header + noise + b"\xff\xd9"
