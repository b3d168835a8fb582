"""The mails that are measured: small plain ones, and ones with a PDF of random bytes.

Each has a Message-ID and contents of its own, the same in every run. Line ends are LF, as mail
servers keep them in maildirs.
"""

import base64
import random
from collections.abc import Iterator

_WORDS = (
    *(
        "offer",
        "invoice",
        "delivery",
        "please",
        "regards",
        "meeting",
        "order",
        "number",
        "attached",
    ),
    *("thanks", "week", "price", "contract", "address", "monday", "confirm", "available", "team"),
)
_BASE64_BYTES_PER_LINE = 57


def mailbox_mails(
    user: str, count: int, *, pdf_every: int | None = None, pdf_bytes: int = 0
) -> Iterator[bytes]:
    """`count` mails to `user`; every `pdf_every`-th has a PDF of `pdf_bytes`."""
    source = random.Random(user)
    for number in range(count):
        text = _text(source)
        if pdf_every is not None and number % pdf_every == 0:
            yield _with_pdf(user, number, text, b"%PDF-1.7\n" + source.randbytes(pdf_bytes - 9))
        else:
            yield _header(user, number) + _text_part(text)


def _header(user: str, number: int) -> bytes:
    return (
        "Return-Path: <sender@example.org>\n"
        f"Received: from mx.example.org (mx.example.org [192.0.2.1]) by mail.example.com\n"
        f"\twith ESMTPS id {number:08x} for <{user}>; Mon, 02 Mar 2026 10:00:00 +0100\n"
        f"From: Jane Sender <sender@example.org>\n"
        f"To: {user}\n"
        f"Cc: team@example.com, office@example.com\n"
        f"Subject: =?utf-8?q?Anfrage_Nr=2E_{number}_f=C3=BCr_M=C3=A4rz?=\n"
        "Date: Mon, 02 Mar 2026 10:00:00 +0100\n"
        f"Message-ID: <{number}.{user}>\n"
        "MIME-Version: 1.0\n"
    ).encode()


def _text_part(text: str) -> bytes:
    return (
        "Content-Type: text/plain; charset=utf-8\nContent-Transfer-Encoding: 8bit\n\n" + text
    ).encode()


def _with_pdf(user: str, number: int, text: str, pdf: bytes) -> bytes:
    return b"".join(
        (
            _header(user, number),
            b'Content-Type: multipart/mixed; boundary="=_part"\n\n--=_part\n',
            _text_part(text),
            b"\n--=_part\nContent-Type: application/pdf\n",
            b'Content-Disposition: attachment; filename="offer.pdf"\n',
            b"Content-Transfer-Encoding: base64\n\n",
            _base64_lines(pdf),
            b"--=_part--\n",
        )
    )


def _base64_lines(data: bytes) -> bytes:
    encoded = base64.b64encode(data)
    width = _BASE64_BYTES_PER_LINE // 3 * 4
    lines = (encoded[start : start + width] for start in range(0, len(encoded), width))
    return b"\n".join(lines) + b"\n"


def _text(source: random.Random) -> str:
    """Between 0.3 and 2 KB of words, in lines."""
    lines = (" ".join(source.choices(_WORDS, k=10)) for _ in range(source.randint(5, 28)))
    return "Grüße, " + "\n".join(lines) + "\n"
