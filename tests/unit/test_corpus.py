"""Every mail of the shared corpus and of the fixtures, through the raw path.

No exception, a row for each part that is not text, a reason for each verdict but `extract`, and
nothing that PostgreSQL could not store. The fixtures must come out as their cases say.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from service.mail.compose import compose, finish
from service.mail.header import clean
from service.mail.structure import parse_raw_structure
from service.mail.text import decode_transfer
from service.mail.triage import plan_parts
from service.model import NewAttachment, NewRequest, Part, Verdict

CASES = Path(__file__).parents[3] / "shared" / "cases"
MAILS = sorted([*CASES.glob("corpus/*.eml"), *CASES.glob("fixtures/*.eml")])
RECEIVED_AT = datetime(2026, 3, 2, tzinfo=UTC)

pytestmark = pytest.mark.skipif(not MAILS, reason="../shared/cases is not here")


def request_from(raw: bytes) -> NewRequest:
    root, sections = parse_raw_structure(raw)
    plan = plan_parts(root, max_file_bytes=25 * 1024 * 1024, inline_image_bytes=50 * 1024)
    planned = [text.section for text in plan.texts] + [file.section for file in plan.files]
    assert covered(root) == sorted(planned)
    texts = {text.section: sections[text.section] for text in plan.texts}
    draft = compose(raw.replace(b"\r\n", b"\n").partition(b"\n\n")[0], 1, RECEIVED_AT, plan, texts)
    wanted = [file for file in draft.files if file.wanted]
    return finish(
        draft,
        {file.section: decode_transfer(sections[file.section], file.encoding) for file in wanted},
    )


def covered(root: Part) -> list[str]:
    """The parts that must be text or file: all but multiparts and what an encoded forward shows."""
    return sorted(part.section for part in leaves(root))


def leaves(part: Part) -> Iterator[Part]:
    if not part.content_type.startswith("multipart/"):
        yield part
    if part.content_type != "message/rfc822" or part.encoding != "base64":
        for child in part.children:
            yield from leaves(child)


def strings(request: NewRequest) -> Iterator[str | None]:
    yield from (request.source_ref, request.message_id, request.subject, request.sender)
    yield from (request.raw_date, request.body_text, request.content_fingerprint)
    for recipient in request.recipients:
        yield from recipient.values()
    for row in request.attachments:
        yield from (row.part_id, row.filename, row.content_type, row.verdict_reason, row.sha256)


@pytest.mark.parametrize("path", MAILS, ids=lambda path: path.name)
def test_every_mail_becomes_a_request(path: Path) -> None:
    raw = path.read_bytes()
    request = request_from(raw)
    assert request == request_from(raw)
    for text in strings(request):
        assert text is None or text == clean(text)
    for row in request.attachments:
        assert (row.verdict is Verdict.EXTRACT) is (row.verdict_reason is None)
        assert (row.content is not None) is (row.verdict is Verdict.EXTRACT and row.kind == "file")
    has_document = any(row.verdict is Verdict.EXTRACT for row in files(request))
    assert sum(row.kind == "body" for row in request.attachments) == (0 if has_document else 1)


def files(request: NewRequest) -> list[NewAttachment]:
    return [row for row in request.attachments if row.kind == "file"]


def fixture(name: str) -> NewRequest:
    (path,) = CASES.glob(f"fixtures/{name}*.eml")
    return request_from(path.read_bytes())


def documents(request: NewRequest) -> list[str | None]:
    return [row.filename for row in files(request) if row.verdict is Verdict.EXTRACT]


def test_ids_are_kept_as_sent() -> None:
    assert fixture("a01-colon-id-1").source_ref == "<abc:111@example.com>"
    assert fixture("a01-colon-id-2").source_ref == "<abc:222@example.com>"
    assert fixture("a02").source_ref == "<[83c48dddbea7492e@example.com]>"
    assert fixture("a04").source_ref == "<f04@example.com>"


def test_made_up_references_are_distinct_and_short() -> None:
    refs = {fixture(name).source_ref for name in ("a03-no-id-1", "a03-no-id-2", "a05")}
    assert len(refs) == 3
    assert all(len(ref) == len("sha256:") + 64 for ref in refs)
    assert len(fixture("a05").message_id or "") > 3000


def test_documents_have_their_names() -> None:
    assert documents(fixture("a06")) == ["Ticket facture n°4754_1.PDF"]
    assert documents(fixture("a07")) == ["scan.pdf"]
    assert documents(fixture("a08")) == [
        "Contract 27 04 20.pdf",
        "Grundmaß Haus 5.pdf",
        "attachment-4.pdf",
        "Röhre.pdf",
    ]
    assert documents(fixture("a11")) == ["inner.pdf"]


def test_texts_are_complete() -> None:
    assert fixture("a06").body_text == "Please see the invoice."
    assert fixture("a07").body_text == "Please see the invoice.\n\nSent from my phone"
    assert fixture("a11").body_text == "Please see the invoice.\n\ninner text"
    assert "Budget talk" in fixture("a12").body_text
    assert "Bring the figures, please" in fixture("a12").body_text
    assert fixture("a13").body_text == "beforeafter"
    assert fixture("a13").subject == "nulhere"


def test_logos_are_no_documents() -> None:
    request = fixture("a10")
    assert [row.verdict for row in files(request)] == [Verdict.INLINE_IMAGE] * 3
    assert request.attachments[-1].kind == "body"


@pytest.mark.parametrize("number", [1, 2, 3])
def test_unusable_dates_are_kept_raw(number: int) -> None:
    request = fixture(f"a14-bad-date-{number}")
    assert request.sent_at is None
    assert request.raw_date
    assert request.received_at == RECEIVED_AT
