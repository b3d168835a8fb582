"""The inputs of the intake's tests, made here: each the smallest mail that shows its fault.

All names are example.* ones, line ends are CRLF. One case is one mail in one database, so most have
the same Message-ID.
"""

import base64
from hashlib import shake_256

TEXT = b"Please see the invoice."
DATE = b"Mon, 02 Mar 2026 10:00:00 +0100"
# As little as is taken for the kind of file that the names say.
PDF = b"%PDF-1.4\n1 0 obj\n<< /Type /Catalog >>\nendobj\ntrailer\n<< /Root 1 0 R >>\n%%EOF\n"
ZIP = b"PK\x03\x04\x14\0\0\0\0\0" + b"\0" * 16 + b"\x04\0\0\0note" + b"A note.\n" * 100


def noise(size_bytes: int, seed: bytes = b"noise") -> bytes:
    """Bytes that are no file of any kind and do not compress; always the same."""
    return shake_256(seed).digest(size_bytes)


def png(size_bytes: int) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + noise(size_bytes - 8, b"png")


def text_part(text: bytes = TEXT, subtype: bytes = b"plain") -> bytes:
    return b"Content-Type: text/%b; charset=utf-8\r\n\r\n%b\r\n" % (subtype, text)


def file_part(content: bytes, *fields: bytes) -> bytes:
    """A base64 part with these header lines."""
    lines = [*fields, b"Content-Transfer-Encoding: base64", b"", _wrapped_base64(content)]
    return b"\r\n".join(lines)


def pdf_part(filename: bytes = b"invoice.pdf", content: bytes = PDF) -> bytes:
    disposition = b'Content-Disposition: attachment; filename="%b"' % filename
    return file_part(content, b"Content-Type: application/pdf", disposition)


def multipart(*parts: bytes, subtype: bytes = b"mixed", boundary: bytes = b"outer") -> bytes:
    opened = b"".join(b"--%b\r\n%b\r\n" % (boundary, part) for part in parts)
    header = b"Content-Type: multipart/%b; boundary=%b\r\n\r\n" % (subtype, boundary)
    return header + opened + b"--%b--\r\n" % boundary


def mail(
    entity: bytes = text_part(),
    *,
    message_id: bytes | None = b"<case@example.com>",
    subject: bytes = b"Case",
    date: bytes = DATE,
    recipient: bytes = b"intake@example.org",
) -> bytes:
    """A mail; `entity` begins with its Content-Type. Values go in as they are, folded or broken."""
    fields = [
        b"From: Sender <sender@example.com>",
        b"To: " + recipient,
        b"Subject: " + subject,
        b"Date: " + date,
        *([] if message_id is None else [b"Message-ID: " + message_id]),
        b"MIME-Version: 1.0",
    ]
    return b"\r\n".join([*fields, entity])


def numbered(number: int, text: bytes = TEXT) -> bytes:
    """One of many mails that have nothing wrong with them."""
    message_id = b"<%d@example.com>" % number
    return mail(text_part(text), message_id=message_id, subject=b"Mail %d" % number)


def _wrapped_base64(content: bytes) -> bytes:
    encoded = base64.b64encode(content)
    return b"\r\n".join(encoded[at : at + 76] for at in range(0, len(encoded), 76))


COLON_IDS = [
    mail(message_id=b"<order:%d@example.com>" % number, subject=b"Order %d" % number)
    for number in (1, 2)
]
OUTLOOK_ID = mail(message_id=b"<[83c48dddbea7492e@example.com]>")
NO_IDS = [mail(text_part(text), message_id=None) for text in (b"First text", b"Second text")]
FOLDED_ID = mail(message_id=b"\r\n <folded@example.com>")
# Of random characters: a run of one character compresses and fits into an index after all.
LONG_ID = b"<%b@example.com>" % base64.urlsafe_b64encode(noise(3000, b"id"))
LONG_ID_MAIL = mail(message_id=LONG_ID)

OCTET_STREAM_PDF = mail(
    multipart(
        text_part(),
        file_part(
            PDF,
            b"Content-Type: application/octet-stream;",
            b'\tname="=?ISO-8859-1?Q?Re=E7u_n=B04711=5F2=2EPDF?="',
        ),
    )
)
INLINE_PDF = mail(
    multipart(
        text_part(),
        file_part(
            PDF,
            b"Content-Disposition: inline;\r\n\tfilename=scan.pdf",
            b'Content-Type: application/pdf;\r\n\tx-unix-mode=0644;\r\n\tname="scan.pdf"',
        ),
        text_part(b"\r\nSent from my phone\r\n"),
    )
)
FOUR_NAMES = mail(
    multipart(
        text_part(),
        *(
            file_part(PDF, b"Content-Type: application/pdf", b"Content-Disposition: " + disposition)
            for disposition in (
                b'attachment; filename="=?utf-8?Q?Offer_?=12 05 21.pdf"',
                b"attachment; filename*0*=UTF-8''%4D%61%C3%9F%65%20%48%61%75%73;\r\n"
                b" filename*1*=%20%37%2E%70%64%66",
                b'attachment; filename="=?utf-8?b??="',
                b"attachment; filename*=us-ascii''T%FCr.pdf",
            )
        ),
    )
)
ONLY_LOGOS = mail(
    multipart(
        multipart(
            text_part(),
            text_part(b'<p>Please see.</p><img src="cid:logo1@example.com">', b"html"),
            subtype=b"alternative",
            boundary=b"inner",
        ),
        *(
            file_part(
                png(size_bytes),
                b'Content-Type: image/png; name="logo%d.png"' % number,
                b'Content-Disposition: inline; filename="logo%d.png"' % number,
                b"Content-ID: <logo%d@example.com>" % number,
            )
            for number, size_bytes in enumerate((1500, 3000, 4500), start=1)
        ),
        subtype=b"related",
    )
)
INNER_MIXED = mail(
    multipart(
        text_part(),
        multipart(text_part(b"Inner text"), pdf_part(b"inner.pdf"), boundary=b"inner"),
    )
)
CALENDAR_ONLY = mail(
    b"Content-Type: text/calendar; charset=utf-8; method=REQUEST\r\n\r\n"
    b"BEGIN:VCALENDAR\r\nVERSION:2.0\r\nMETHOD:REQUEST\r\nBEGIN:VEVENT\r\nUID:1@example.com\r\n"
    b"DTSTART:20260305T090000Z\r\nDTEND:20260305T100000Z\r\nSUMMARY:Budget talk\r\n"
    b"DESCRIPTION:Bring the figures\\, please\r\nEND:VEVENT\r\nEND:VCALENDAR\r\n"
)
# In a text, where only a server that breaks the rules sends it, and encoded wherever text may be.
NUL = mail(
    multipart(
        text_part(b"before\0after"),
        file_part(
            PDF,
            b"Content-Type: application/pdf",
            b'Content-Disposition: attachment; filename="=?utf-8?q?inv=00oice.pdf?="',
        ),
    ),
    subject=b"=?utf-8?q?nul=00here?=",
    recipient=b"=?utf-8?q?Int=00ake?= <intake@example.org>",
)
BAD_DATES = [
    b"2002/09/14 Sat 13:06:03 GMT",
    b"Thu, 32 Jan 2026 25:61:00 +9999",
    b"Wed, 14 Jun 100 05:41:34 -0700 (PDT)",
]
