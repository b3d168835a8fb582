"""The decisions on every kind of part, as a table."""

import base64
from collections.abc import Collection, Mapping

import pytest

from service.mail.sniff import Sniffer
from service.mail.triage import (
    TEXT_MAX_BYTES,
    TEXT_MAX_PARTS,
    Decision,
    PlannedFile,
    decide_sniffed,
    plan_parts,
    refine,
    worth_reading,
)
from service.model import Part, Verdict
from tests.unit.test_sniff import DOCX, ODS, PNG, XLSB, XLSX, ole, zipped

MAX_FILE_BYTES = 1000
INLINE_IMAGE_BYTES = 100
WANTED = None
XLS = ole("Root Entry", "Workbook")
ENCRYPTED_XLSX = ole("Root Entry", "EncryptionInfo", "EncryptedPackage")
MS_EXCEL = "application/vnd.ms-excel"
OPENXML = "application/vnd.openxmlformats-officedocument."


def decide_file(
    file: PlannedFile, content: bytes, *, shown_cids: Collection[str] = frozenset()
) -> Decision:
    """Verdict and reason as the intake comes to them: refined by the HTML, then by the bytes."""
    sniffer = Sniffer()
    sniffer.feed(content)
    return decide_sniffed(refine(file, shown_cids), sniffer)


def part(
    content_type: str,
    filename: str | None = None,
    disposition: str | None = None,
    *,
    section: str = "1",
    size_bytes: int = 10,
    encoding: str = "7bit",
    content_id: str | None = None,
    params: Mapping[str, str] | None = None,
    children: tuple[Part, ...] = (),
) -> Part:
    return Part(
        section, content_type, encoding, size_bytes, filename, disposition, content_id,
        params or {}, children,
    )  # fmt: skip


def multipart(subtype: str, *children: Part, section: str = "") -> Part:
    return part(f"multipart/{subtype}", section=section, children=children)


def plan(root: Part) -> tuple[list[str], list[PlannedFile]]:
    planned = plan_parts(root, max_file_bytes=MAX_FILE_BYTES, inline_image_bytes=INLINE_IMAGE_BYTES)
    return [text.section for text in planned.texts], list(planned.files)


def planned_file(root: Part) -> PlannedFile:
    texts, files = plan(root)
    assert (texts, len(files)) == ([], 1)
    return files[0]


ATTACHED = "attachment"


@pytest.mark.parametrize(
    ("content_type", "filename", "disposition", "verdict"),
    [
        ("application/pdf", None, None, WANTED),
        ("application/pdf", "scan.pdf", "inline", WANTED),  # case a07
        ("application/octet-stream", "Ticket n°4754_1.PDF", None, WANTED),  # case a06
        ("application/octet-stream", "report.xlsx", ATTACHED, WANTED),
        ("image/jpeg", "report.pdf", "inline", WANTED),
        ("text/plain", "data.csv", None, WANTED),
        ("text/plain", "data.tsv", ATTACHED, WANTED),
        ("text/csv", None, None, WANTED),
        ("text/csv", "data.txt", ATTACHED, WANTED),
        ("text/comma-separated-values", None, "inline", WANTED),
        (MS_EXCEL, "data.csv", ATTACHED, WANTED),
        (MS_EXCEL, None, None, WANTED),
        (MS_EXCEL + ".sheet.macroenabled.12", "a", ATTACHED, WANTED),
        (MS_EXCEL + ".sheet.binary.macroenabled.12", None, None, WANTED),
        (OPENXML + "spreadsheetml.sheet", "a.bin", ATTACHED, WANTED),
        ("application/vnd.oasis.opendocument.spreadsheet", None, None, WANTED),
        ("application/x-msexcel", None, None, WANTED),
        ("application/zip", "book.xlsm", ATTACHED, WANTED),
        ("application/octet-stream", None, None, WANTED),
        ("application/octet-stream", "data", ATTACHED, WANTED),
        ("application/octet-stream", "data.bin", ATTACHED, WANTED),
        ("application/octet-stream", "Rechnung Nr. 5", ATTACHED, WANTED),
        ("application/x-download", "file.dat", ATTACHED, WANTED),
        ("unknown/unknown", None, ATTACHED, WANTED),
        ("application/octet-stream", "archive.zip", ATTACHED, Verdict.UNSUPPORTED),
        ("application/octet-stream", "letter.docx", ATTACHED, Verdict.UNSUPPORTED),
        ("application/octet-stream", "photo.JPG", ATTACHED, Verdict.UNSUPPORTED),
        ("application/octet-stream", "mail.eml", ATTACHED, Verdict.UNSUPPORTED),
        ("application/zip", None, ATTACHED, Verdict.UNSUPPORTED),
        ("application/msword", "letter.doc", ATTACHED, Verdict.UNSUPPORTED),
        (OPENXML + "wordprocessingml.document", None, ATTACHED, Verdict.UNSUPPORTED),
        ("image/png", "photo.png", ATTACHED, Verdict.UNSUPPORTED),
        ("image/png", None, None, Verdict.UNSUPPORTED),
        ("image/png", "logo.png", "inline", Verdict.INLINE_IMAGE),
        ("audio/mpeg", None, "inline", Verdict.UNSUPPORTED),
        ("text/plain", "notes.txt", ATTACHED, Verdict.UNSUPPORTED),
        ("text/html", None, ATTACHED, Verdict.UNSUPPORTED),
        ("text/calendar", "invite.ics", ATTACHED, Verdict.UNSUPPORTED),
        ("text/vcard", None, None, Verdict.UNSUPPORTED),
        ("text/x-amp-html", None, None, Verdict.UNSUPPORTED),
        ("application/pkcs7-mime", "smime.p7m", ATTACHED, Verdict.ENCRYPTED),
        ("application/x-pkcs7-mime", None, None, Verdict.ENCRYPTED),
        ("application/octet-stream", "smime.p7m", ATTACHED, Verdict.ENCRYPTED),
        ("application/pkcs7-mime", "invoice.xml.p7m", ATTACHED, Verdict.UNSUPPORTED),
        ("application/pkcs7-signature", "smime.p7s", ATTACHED, Verdict.UNSUPPORTED),
        ("application/octet-stream", "smime.p7s", ATTACHED, Verdict.UNSUPPORTED),
        ("application/pgp-signature", "signature.asc", None, Verdict.UNSUPPORTED),
        ("application/pgp-encrypted", None, None, Verdict.ENCRYPTED),
        ("application/octet-stream", "report.xlsx.pgp", ATTACHED, Verdict.ENCRYPTED),
        ("application/ms-tnef", "winmail.dat", ATTACHED, Verdict.UNSUPPORTED),
        ("application/octet-stream", "WINMAIL.DAT", ATTACHED, Verdict.UNSUPPORTED),
        ("message/external-body", None, None, Verdict.UNSUPPORTED),
        ("message/partial", None, None, Verdict.UNSUPPORTED),
        ("message/rfc822", "forward.eml", ATTACHED, Verdict.UNSUPPORTED),
        ("message/global", None, None, Verdict.UNSUPPORTED),
    ],
)
def test_files(
    content_type: str, filename: str | None, disposition: str | None, verdict: Verdict | None
) -> None:
    file = planned_file(part(content_type, filename, disposition))
    assert file.verdict is verdict
    assert file.wanted is (verdict is None)
    assert (file.reason is None) is (verdict is None)


@pytest.mark.parametrize(
    ("content_type", "filename", "disposition"),
    [
        ("text/plain", None, None),
        ("text/plain", None, "inline"),
        ("text/plain", "body.txt", None),
        ("text/plain", "body.txt", "inline"),  # with a name, but there is no other text
        ("text/html", None, None),
        ("text/calendar", "invite.ics", None),  # case a12
        ("text/enriched", None, None),
        ("text/rfc822-headers", None, None),
        ("message/delivery-status", None, None),
        ("message/disposition-notification", None, None),
    ],
)
def test_texts(content_type: str, filename: str | None, disposition: str | None) -> None:
    assert plan(part(content_type, filename, disposition)) == (["1"], [])


def test_a_named_inline_text_is_a_file_beside_the_text() -> None:
    root = multipart(
        "mixed",
        part("text/plain", section="1"),
        part("text/plain", "notes.txt", "inline", section="2"),
    )
    texts, files = plan(root)
    assert (texts, [file.section for file in files]) == (["1"], ["2"])


@pytest.mark.parametrize(
    ("parent", "disposition", "content_id", "size_bytes", "verdict"),
    [
        ("mixed", "inline", None, 99, Verdict.INLINE_IMAGE),
        ("mixed", "inline", None, 100, Verdict.UNSUPPORTED),
        ("mixed", None, "id@example.com", 99, Verdict.INLINE_IMAGE),
        ("mixed", "attachment", "id@example.com", 99, Verdict.INLINE_IMAGE),
        ("related", None, None, 99, Verdict.INLINE_IMAGE),
        ("related", "attachment", None, 99, Verdict.UNSUPPORTED),
        ("mixed", None, None, 99, Verdict.UNSUPPORTED),
    ],
)
def test_small_inline_images_are_decoration(
    parent: str, disposition: str | None, content_id: str | None, size_bytes: int, verdict: Verdict
) -> None:
    image = part("image/png", "x.png", disposition, size_bytes=size_bytes, content_id=content_id)
    assert planned_file(multipart(parent, image)).verdict is verdict


@pytest.mark.parametrize(
    ("content_type", "filename", "verdict"),
    [
        ("image/jpeg", "photo.jpg", Verdict.INLINE_IMAGE),
        ("application/octet-stream", "image001.png", Verdict.INLINE_IMAGE),
        ("application/octet-stream", None, Verdict.INLINE_IMAGE),
        ("application/pdf", "plan.pdf", Verdict.EXTRACT),
    ],
)
def test_what_the_html_shows_is_decoration_whatever_its_size(
    content_type: str, filename: str | None, verdict: Verdict
) -> None:
    shown = part(content_type, filename, "inline", size_bytes=900, content_id="a@example.com")
    file = planned_file(multipart("related", shown))
    content = b"%PDF-1.4" if verdict is Verdict.EXTRACT else PNG
    assert decide_file(file, content, shown_cids={"a@example.com"})[0] is verdict
    assert decide_file(file, content, shown_cids={"b@example.com"})[0] is not Verdict.INLINE_IMAGE


def test_a_file_over_the_limit_is_never_read() -> None:
    largest = part("application/pdf", size_bytes=1000)
    larger = part("application/pdf", size_bytes=1001)
    unknown = part("application/octet-stream", size_bytes=1001)
    photo = part("image/jpeg", size_bytes=1001)
    assert planned_file(largest).wanted
    assert planned_file(larger).verdict is Verdict.TOO_LARGE
    assert planned_file(unknown).verdict is Verdict.TOO_LARGE
    assert planned_file(photo).verdict is Verdict.UNSUPPORTED


def test_the_size_of_base64_is_estimated_and_confirmed() -> None:
    encoded = base64.encodebytes(bytes(MAX_FILE_BYTES)).replace(b"\n", b"\r\n")
    file = planned_file(part("application/pdf", size_bytes=len(encoded), encoding="base64"))
    assert file.wanted
    assert decide_file(file, b"%PDF-" + b"x" * 995)[0] is Verdict.EXTRACT
    assert decide_file(file, b"%PDF-" + b"x" * 996)[0] is Verdict.TOO_LARGE


def test_forwarded_messages_give_their_texts_and_documents() -> None:
    """Case a11, inside a forward in a digest."""
    inner = multipart(
        "mixed",
        part("text/plain", section="2.1.1"),
        part("application/pdf", "inner.pdf", "attachment", section="2.1.2"),
        section="2.1",
    )
    digest = multipart(
        "digest", part("message/rfc822", section="2.1", children=(inner,)), section="2"
    )
    texts, files = plan(multipart("mixed", part("text/plain", section="1"), digest))
    assert texts == ["1", "2.1.1"]
    assert [(file.section, file.verdict) for file in files] == [
        ("2.1", Verdict.UNSUPPORTED),
        ("2.1.2", WANTED),
    ]


def test_an_encoded_forward_is_not_looked_into() -> None:
    child = part("text/plain", section="1.1")
    forward = part("message/rfc822", encoding="base64", children=(child,))
    assert planned_file(forward).verdict is Verdict.UNSUPPORTED


def test_all_parts_of_an_encrypted_message_are_encrypted() -> None:
    root = multipart(
        "encrypted",
        part("application/pgp-encrypted", section="1"),
        part("application/octet-stream", "encrypted.asc", "inline", section="2"),
        multipart("mixed", part("text/plain", section="3.1"), section="3"),
    )
    texts, files = plan(root)
    assert texts == []
    assert [file.verdict for file in files] == [Verdict.ENCRYPTED] * 3


@pytest.mark.parametrize(
    ("smime_type", "verdict"),
    [
        ("enveloped-data", Verdict.ENCRYPTED),
        ("Signed-Data", Verdict.UNSUPPORTED),
        ("certs-only", Verdict.UNSUPPORTED),
        ("compressed-data", Verdict.UNSUPPORTED),
        ("authEnveloped-data", Verdict.ENCRYPTED),
    ],
)
def test_smime_types(smime_type: str, verdict: Verdict) -> None:
    file = planned_file(
        part("application/pkcs7-mime", "smime.p7m", params={"smime-type": smime_type})
    )
    assert file.verdict is verdict


def test_texts_are_bounded_in_number() -> None:
    parts = [part("text/plain", section=str(number)) for number in range(1, TEXT_MAX_PARTS + 3)]
    texts, files = plan(multipart("mixed", *parts))
    assert len(texts) == TEXT_MAX_PARTS
    assert [file.verdict for file in files] == [Verdict.UNSUPPORTED] * 2


def test_texts_are_bounded_in_size() -> None:
    planned = plan_parts(
        multipart(
            "mixed",
            part("text/plain", section="1", size_bytes=5000),
            part("text/plain", section="2", size_bytes=10 * TEXT_MAX_BYTES),
            part("text/plain", section="3"),
        ),
        max_file_bytes=1,
        inline_image_bytes=1,
    )
    assert [(text.read_bytes, text.is_cut) for text in planned.texts] == [
        (8192, False),
        (TEXT_MAX_BYTES - 5000, True),
    ]
    assert [file.section for file in planned.files] == ["3"]
    assert planned.read_bytes == TEXT_MAX_BYTES


def test_messages_alike_want_the_same_number_of_bytes() -> None:
    sizes = [
        plan_parts(part("text/plain", size_bytes=size), max_file_bytes=1, inline_image_bytes=1)
        .texts[0]
        .read_bytes
        for size in (0, 1, 100, 4096)
    ]
    assert sizes == [4096] * 4


PDF_FILE = part("application/octet-stream", "bill.pdf")
XLS_FILE = part(MS_EXCEL, "export.xls")
CSV_FILE = part("text/plain", "data.csv")
UNKNOWN = part("application/octet-stream")


@pytest.mark.parametrize(
    ("declared", "content", "verdict"),
    [
        (PDF_FILE, b"%PDF-1.4", Verdict.EXTRACT),
        (PDF_FILE, XLSX, Verdict.EXTRACT),
        (PDF_FILE, b"", Verdict.DAMAGED),
        (PDF_FILE, bytes(range(256)), Verdict.DAMAGED),
        (PDF_FILE, PNG, Verdict.UNSUPPORTED),
        (PDF_FILE, b"<html>not found", Verdict.UNSUPPORTED),
        (PDF_FILE, zipped("note.txt"), Verdict.UNSUPPORTED),
        (XLS_FILE, XLS, Verdict.EXTRACT),
        (XLS_FILE, XLSX, Verdict.EXTRACT),
        (XLS_FILE, XLSB, Verdict.EXTRACT),
        (XLS_FILE, ODS, Verdict.EXTRACT),
        (XLS_FILE, b"a\tb\r\n1\t2\r\n", Verdict.EXTRACT),  # what many an export is
        (XLS_FILE, b"no table", Verdict.UNSUPPORTED),
        (XLS_FILE, b"<table>a,b</table>", Verdict.UNSUPPORTED),
        (XLS_FILE, DOCX, Verdict.UNSUPPORTED),
        (XLS_FILE, ENCRYPTED_XLSX, Verdict.ENCRYPTED),
        (XLS_FILE, ole("Root Entry"), Verdict.DAMAGED),
        (XLS_FILE, zipped("_rels/.rels"), Verdict.DAMAGED),
        (CSV_FILE, b"a,b\n1,2\n", Verdict.EXTRACT),
        (CSV_FILE, b"one column\n", Verdict.EXTRACT),
        (CSV_FILE, "a,b\n".encode("utf-16"), Verdict.EXTRACT),
        (CSV_FILE, XLSX, Verdict.EXTRACT),
        (CSV_FILE, bytes(range(256)), Verdict.DAMAGED),
        (UNKNOWN, b"%PDF-1.4", Verdict.EXTRACT),
        (UNKNOWN, XLS, Verdict.EXTRACT),
        (UNKNOWN, b"a,b\n1,2\n", Verdict.UNSUPPORTED),
        (UNKNOWN, PNG, Verdict.UNSUPPORTED),
        (UNKNOWN, bytes(range(256)), Verdict.UNSUPPORTED),
        (UNKNOWN, b"", Verdict.DAMAGED),
    ],
)
def test_the_bytes_decide(declared: Part, content: bytes, verdict: Verdict) -> None:
    decision, reason = decide_file(planned_file(declared), content)
    assert decision is verdict
    assert (reason is None) is (verdict is Verdict.EXTRACT)


def test_a_reason_names_what_was_said_and_what_was_found() -> None:
    _, reason = decide_file(planned_file(PDF_FILE), PNG)
    assert reason == "sent as PDF, but its bytes are image/png"


def test_a_file_with_a_verdict_keeps_it_whatever_its_bytes() -> None:
    file = planned_file(part("application/pkcs7-mime", "smime.p7m"))
    assert decide_file(file, b"%PDF-1.4") == (file.verdict, file.reason)


@pytest.mark.parametrize(
    ("declared", "first_slice", "worth"),
    [
        (PDF_FILE, b"%PDF-1.4", True),
        (PDF_FILE, PNG, False),
        (PDF_FILE, b"", False),
        (UNKNOWN, XLSX[:80], True),
        (UNKNOWN, ole("Root Entry"), True),
        (UNKNOWN, zipped("note.txt"), False),
        (UNKNOWN, DOCX, False),
        (UNKNOWN, b"text", False),
        (CSV_FILE, b"a,b", True),
        (XLS_FILE, ENCRYPTED_XLSX, False),
    ],
)
def test_a_first_slice_tells_what_can_still_become_a_document(
    declared: Part, first_slice: bytes, worth: bool
) -> None:
    assert worth_reading(planned_file(declared), first_slice) is worth
