"""Drafts and requests: texts chosen and rendered, identities, rows for every part."""

import hashlib
import io
from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.mail.compose import Draft, compose, finish
from service.mail.header import clean
from service.mail.structure import parse_raw_structure
from service.mail.text import decode_transfer
from service.mail.triage import TEXT_MAX_BYTES, plan_parts
from service.model import NewAttachment, NewRequest, Verdict
from tests.unit.test_sniff import PNG

RECEIVED_AT = datetime(2026, 3, 2, 9, tzinfo=UTC)
HEADER = (
    "From: Jane Doe <jane@example.com>\r\nTo: intake@example.org\r\nSubject: Order\r\n"
    "Date: Mon, 02 Mar 2026 10:00:00 +0100\r\nMessage-ID: <1@example.com>\r\n"
)
PDF = b"%PDF-1.4\n%%EOF\n"


def drafted(raw: str | bytes) -> Draft:
    octets = raw if isinstance(raw, bytes) else raw.encode()
    structure, sections = parse_raw_structure(octets)
    plan = plan_parts(structure, max_file_bytes=10_000, inline_image_bytes=1000)
    texts = {text.section: sections[text.section] for text in plan.texts}
    header = octets.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
    return compose(header, "7", RECEIVED_AT, plan, texts)


def requested(raw: str | bytes) -> NewRequest:
    _, sections = parse_raw_structure(raw if isinstance(raw, bytes) else raw.encode())
    draft = drafted(raw)
    wanted = (file for file in draft.files if file.wanted)
    return finish(
        draft,
        {file.section: decode_transfer(sections[file.section], file.encoding) for file in wanted},
    )


def multipart(subtype: str, boundary: str, *parts: str) -> str:
    body = "".join(f"--{boundary}\r\n{part}\r\n" for part in parts)
    return f"Content-Type: multipart/{subtype}; boundary={boundary}\r\n\r\n{body}--{boundary}--\r\n"


def entity(content_type: str, body: str, *fields: str) -> str:
    return "\r\n".join([f"Content-Type: {content_type}", *fields, "", body])


def text(body: str) -> str:
    return entity("text/plain; charset=utf-8", body)


def html(body: str) -> str:
    return entity("text/html; charset=utf-8", body)


CALENDAR = entity(
    "text/calendar",
    "BEGIN:VCALENDAR\r\nBEGIN:VEVENT\r\nSUMMARY:Budget talk\r\n"
    "DESCRIPTION:Bring the figures\\, please\r\nEND:VEVENT\r\nEND:VCALENDAR",
)
ATTACHED = entity(
    "application/pdf", PDF.decode(), 'Content-Disposition: attachment; filename="a.pdf"'
)


@pytest.mark.parametrize(
    ("raw", "body_text"),
    [
        (text("  Hello,\r\n\r\nbye\r\n"), "Hello,\n\nbye"),
        (html("<p>Hello</p><p>bye</p>"), "Hello\n\nbye"),
        (CALENDAR, "Budget talk\nBring the figures, please"),  # case a12
        (multipart("alternative", "a", text("plain"), html("<p>html"), CALENDAR), "plain"),
        (multipart("alternative", "a", html("<p>html"), text("plain")), "plain"),
        (multipart("alternative", "a", text(" \r\n\t"), html("<p>html"), CALENDAR), "html"),
        (multipart("alternative", "a", text(""), html("<img src=x>"), CALENDAR),
         "Budget talk\nBring the figures, please"),
        (multipart("alternative", "a", text(""), html("")), ""),
        (multipart("alternative", "a", text("plain"),
                   multipart("mixed", "b", html("one"), ATTACHED, html("two"))), "plain"),
        (multipart("alternative", "a", entity("text/enriched", "rich"), html("html")), "html"),
        (multipart("mixed", "a", text("one"), ATTACHED, text("\r\ntwo\r\n")), "one\n\ntwo"),  # a07
        (multipart("mixed", "a", text("one"), multipart("mixed", "b", text("inner"), ATTACHED)),
         "one\n\ninner"),  # case a11
        (multipart("mixed", "a", text("see below"),
                   entity("message/rfc822", "Subject: Fwd\r\n" + text("forwarded"))),
         "see below\n\nforwarded"),
        (multipart("mixed", "a", text("fyi"), entity("message/rfc822", multipart(
            "alternative", "b", text("plain"), html("html")))), "fyi\n\nplain"),
        (multipart("report", "a", text("Not delivered."),
                   entity("message/delivery-status", "Status: 5.1.1")),
         "Not delivered.\n\nStatus: 5.1.1"),
        (entity("text/plain", "before\0after"), "beforeafter"),  # case a13
        (entity("text/plain; charset=utf-7", "a+2AA-b"), "a\ufffdb"),
        (entity("text/plain", "old\rmac"), "old\nmac"),
        (entity("text/plain; charset=utf-8", "R3LDvMOfZQ==", "Content-Transfer-Encoding: Base64"),
         "Grüße"),
        (entity("text/plain", "", "Content-Transfer-Encoding: base64"), ""),
    ],
)  # fmt: skip
def test_the_body_text(raw: str, body_text: str) -> None:
    assert drafted(HEADER + raw).request.body_text == body_text


def test_a_text_that_is_cut_says_so() -> None:
    size = TEXT_MAX_BYTES + 5
    draft = drafted(HEADER + entity("text/plain", "x" * size))
    assert draft.request.body_text == (
        "x" * TEXT_MAX_BYTES + f"\n[text cut: {TEXT_MAX_BYTES} of {size} bytes]"
    )


def test_texts_that_did_not_come_are_empty() -> None:
    structure, _ = parse_raw_structure((HEADER + text("x")).encode())
    plan = plan_parts(structure, max_file_bytes=1, inline_image_bytes=1)
    assert compose(b"", "7", RECEIVED_AT, plan, {}).request.body_text == ""


def test_inline_pgp_is_a_file_and_no_text() -> None:
    block = "-----BEGIN PGP MESSAGE-----\r\n\r\nhQEMA\r\n-----END PGP MESSAGE-----"
    request = requested(HEADER + multipart("mixed", "a", text(block), text("signed, Jane")))
    assert request.body_text == "signed, Jane"
    assert [(row.kind, row.part_id, row.verdict) for row in request.attachments] == [
        ("file", "1", Verdict.ENCRYPTED),
        ("body", None, Verdict.EXTRACT),
    ]


def test_the_fields_of_the_header_travel() -> None:
    request = requested(HEADER + text("x"))
    assert (request.ref, request.received_at) == ("7", RECEIVED_AT)
    assert request.source_ref == request.message_id == "<1@example.com>"
    assert (request.subject, request.sender) == ("Order", "Jane Doe <jane@example.com>")
    assert [one["address"] for one in request.recipients] == ["intake@example.org"]
    assert request.sent_at is not None
    assert request.raw_date == "Mon, 02 Mar 2026 10:00:00 +0100"
    assert not request.message_id_reused


def no_id(raw: str) -> str:
    return HEADER.replace("Message-ID: <1@example.com>\r\n", "") + raw


def test_without_an_id_header_and_text_are_the_reference() -> None:
    """Case a03."""
    one, again, two = (drafted(no_id(text(body))) for body in ("Body 1", "Body 1", "Body 2"))
    assert one.request.message_id is None
    assert one.request.source_ref == again.request.source_ref
    assert one.request.source_ref.startswith("sha256:")
    assert len(one.request.source_ref) == 7 + 64
    assert one.request.source_ref != two.request.source_ref


def test_an_id_that_no_index_takes_is_hashed() -> None:
    """Case a05."""
    for length, hashed in ((998, False), (999, True), (4000, True)):
        message_id = f"<{'x' * (length - 2)}>"
        draft = drafted(HEADER.replace("<1@example.com>", message_id) + text("x"))
        expected = f"sha256:{hashlib.sha256(message_id.encode()).hexdigest()}"
        assert draft.request.source_ref == (expected if hashed else message_id)
        assert draft.request.message_id == message_id


def fingerprint(raw: str) -> str:
    return drafted(raw).request.content_fingerprint


def test_a_fingerprint_is_stable() -> None:
    mail = HEADER + multipart("mixed", "a", text("Grüße"), ATTACHED)
    same = [
        mail.replace("boundary=a", "boundary=z").replace("--a", "--z"),
        "Received: from mx.example.com\r\n" + mail,
        mail.replace("Message-ID: <1@", "Message-ID: <2@"),
        mail.replace(text("Grüße"), entity("text/plain; charset=utf-8", "R3LDvMOfZQ==",
                                           "Content-Transfer-Encoding: base64")),
    ]  # fmt: skip
    assert {fingerprint(one) for one in [mail, *same]} == {fingerprint(mail)}


def test_a_fingerprint_tells_mails_apart() -> None:
    mail = HEADER + multipart("mixed", "a", text("one"), text("two"), ATTACHED)
    others = [
        mail.replace("Subject: Order", "Subject: Order 2"),
        mail.replace("10:00:00", "10:00:01"),
        mail.replace("Jane Doe", "Jane D."),
        mail.replace("two", "three"),
        mail.replace("a.pdf", "b.pdf"),
        mail.replace("%%EOF", "%%EOF\r\n"),
        HEADER + multipart("mixed", "a", text("onet"), text("wo"), ATTACHED),
        HEADER + multipart("mixed", "a", text("one"), text("two")),
    ]
    prints = sorted(map(fingerprint, [mail, *others]))
    assert all(one != two for one, two in pairwise(prints))


def test_a_fingerprint_does_not_depend_on_how_a_text_is_read() -> None:
    """No update of a charset's or HTML's reader may make a stored mail look new."""
    as_html = HEADER + html("<p>x")
    assert fingerprint(as_html) == fingerprint(as_html.replace("text/html", "text/plain"))
    assert fingerprint(as_html) == fingerprint(as_html.replace("utf-8", "latin-1"))


def test_without_files_the_body_is_the_document() -> None:
    """Case a10: the logos are none."""
    logo = entity("image/png", "x", "Content-ID: <logo@example.com>", "Content-Disposition: inline")
    parts = multipart("alternative", "b", text("Grüße"), html('<img src="cid:logo@example.com">'))
    image, body = requested(HEADER + multipart("related", "a", parts, logo)).attachments
    assert (image.verdict, image.content, image.sha256) == (Verdict.INLINE_IMAGE, None, None)
    assert body == NewAttachment(
        kind="body",
        part_id=None,
        filename=None,
        content_type="text/plain",
        size_bytes=7,
        verdict=Verdict.EXTRACT,
        sha256=hashlib.sha256("Grüße".encode()).hexdigest(),
    )


def test_large_images_that_the_html_shows_are_decoration() -> None:
    banner = entity("image/png", "x" * 5000, "Content-ID: <a@example.com>")
    photo = entity("image/png", "x" * 5000, "Content-ID: <b@example.com>")
    page = html('<img src="cid:a%40example.com">')
    alternatives = multipart("alternative", "b", text("plain"), page)
    draft = drafted(HEADER + multipart("related", "a", alternatives, banner, photo))
    assert [file.verdict for file in draft.files] == [Verdict.INLINE_IMAGE, Verdict.UNSUPPORTED]


def test_a_mail_without_text_or_files_still_has_its_row() -> None:
    (body,) = requested(HEADER + text(" \r\n")).attachments
    assert (body.kind, body.verdict) == ("body", Verdict.UNSUPPORTED)
    assert body.verdict_reason == "the message has no text"


def test_a_document_is_kept_with_its_hash_and_exact_size() -> None:
    (row,) = requested(HEADER + multipart("mixed", "a", text("x"), ATTACHED)).attachments
    content = PDF.replace(b"\n", b"\r\n")
    assert row == NewAttachment(
        kind="file",
        part_id="2",
        filename="a.pdf",
        content_type="application/pdf",
        size_bytes=len(content),
        verdict=Verdict.EXTRACT,
        sha256=hashlib.sha256(content).hexdigest(),
        content=content,
    )


def rows(draft: Draft, contents: Mapping[str, bytes | BinaryIO]) -> list[NewAttachment]:
    return [row for row in finish(draft, contents).attachments if row.kind == "file"]


def test_a_large_document_is_an_open_file(tmp_path: Path) -> None:
    path = tmp_path / "spool"
    path.write_bytes(b"%PDF-" + b"x" * 5000)
    draft = drafted(HEADER + ATTACHED)
    with path.open("rb") as spool:
        spool.seek(99)
        (row,) = rows(draft, {"1": spool})
        assert row.content is spool
        assert spool.tell() == 0
    assert (row.size_bytes, row.verdict) == (5005, Verdict.EXTRACT)
    assert row.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_file_that_is_no_document_keeps_neither_content_nor_hash() -> None:
    draft = drafted(HEADER + ATTACHED)
    for content in (PNG, io.BytesIO(PNG)):
        (row,) = rows(draft, {"1": content})
        assert (row.verdict, row.content, row.sha256) == (Verdict.UNSUPPORTED, None, None)
        assert row.size_bytes == draft.files[0].estimated_bytes
    (row,) = rows(draft, {})
    assert row.verdict is Verdict.DAMAGED


@pytest.mark.parametrize(
    ("content_type", "content", "filename"),
    [
        ("application/pdf", PDF, "attachment-2.pdf"),
        ("application/octet-stream", PDF, "attachment-2.pdf"),
        ("text/csv", b"a,b", "attachment-2.csv"),
        ("application/pdf", PNG, None),
    ],
)
def test_a_nameless_document_gets_a_name(
    content_type: str, content: bytes, filename: str | None
) -> None:
    draft = drafted(HEADER + multipart("mixed", "a", text("x"), entity(content_type, "x")))
    (row,) = rows(draft, {"2": content})
    assert row.filename == filename


LINES = st.sampled_from([
    b"--a", b"--a--", b"", b"text", b"Content-Type: multipart/alternative; boundary=a",
    b"Content-Type: multipart/encrypted; boundary=a", b"Content-Type: message/rfc822",
    b"Content-Type: text/html; charset=utf-7", b"Content-Type: text/calendar",
    b"Content-Type: application/pdf", b"Content-Disposition: attachment; filename=a.csv",
    b"Content-Transfer-Encoding: base64", b"<img src=cid:a>", b"Content-ID: <a>", b"%PDF-",
    b"+2AA-",
    b"From: =?utf-8?q?=00?= <a@b>", b"Message-ID: \xff\0",
])  # fmt: skip


@given(st.lists(LINES | st.binary(max_size=6)).map(b"\r\n".join))
def test_any_message_becomes_a_request(raw: bytes) -> None:
    request = requested(raw)
    assert request.attachments
    for text in (request.body_text, request.source_ref, request.sender, request.subject):
        assert text is None or text == clean(text)
