"""PDF: text by page, and what is none. Without a child process."""

import json
import zlib
from typing import Any

import pytest

from service.errors import ReadFailed
from service.extract.document import read_document
from tests.extract.samples import GOOD_PDF, MEGABYTE, pdf, pdf_of_pages, stream

CATALOG = b"<< /Type /Catalog /Pages 2 0 R >>"
# Nobody knows the password: what proves it is wrong.
LOCKED = b"/Encrypt << /Filter /Standard /V 1 /R 2 /P -4 /O <%b> /U <%b> >> /ID [<00> <00>]" % (
    b"00" * 32,
    b"11" * 32,
)


def result_of(content: bytes, max_bytes: int = MEGABYTE) -> dict[str, Any]:
    return dict(json.loads(read_document(content, max_bytes)))


def refusal_of(content: bytes) -> tuple[str, str]:
    with pytest.raises(ReadFailed) as caught:
        read_document(content, MEGABYTE)
    return caught.value.code, str(caught.value)


def test_pages() -> None:
    assert result_of(GOOD_PDF) == {
        "text": "Invoice 4711\n\nThank you",
        "pages": ["Invoice 4711", "Thank you"],
        "warnings": [],
    }


def test_garbage_before_the_header() -> None:
    assert result_of(b"X-Mailer: none\r\n\r\n" + GOOD_PDF)["pages"] == ["Invoice 4711", "Thank you"]


def test_pages_without_text_and_damaged_ones_are_named() -> None:
    content = pdf_of_pages(
        b"One", b"", b"", b"Four", kids=b"4 0 R 6 0 R 8 0 R 10 0 R 99 0 R", count=5
    )
    result = result_of(content)
    assert result["pages"] == ["One", "", "", "Four", ""]
    assert result["warnings"] == [
        "pages 2, 3 are without text, perhaps scanned",
        "page 5 is damaged and left out",
    ]


def test_100_000_pages() -> None:
    result = result_of(pdf_of_pages(b"Hello", kids=b"4 0 R " * 100_000, count=100_000))
    assert result["pages"] == ["Hello"] * 2_000
    assert result["warnings"] == ["only the first 2000 of 100000 pages were read"]


def test_many_blank_pages_are_not_all_named() -> None:
    result = result_of(pdf_of_pages(b"Hello", b"", kids=b"4 0 R " + b"6 0 R " * 100, count=101))
    assert result["warnings"] == [
        "pages 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 and 90 more are without text, perhaps scanned"
    ]


def test_text_beyond_the_limit_is_cut_within_the_page() -> None:
    lines = b") Tj 0 -12 Td (".join([b"x" * 80] * 50)
    content = pdf_of_pages(b"First", lines, b"Third")
    result = result_of(content, 2_000)
    first, second = result["pages"]
    assert first == "First"
    assert 900 < len(second) < 1_000
    assert set(second) == {"x", "\n"}
    assert result["warnings"] == ["cut on page 2 of 3: the text is beyond the limit of 0.00191 MiB"]
    assert len(json.dumps(result["pages"] + [result["text"]])) < 2_100


@pytest.mark.parametrize(
    ("content", "code"),
    [
        pytest.param(pdf_of_pages(b""), "no_text", id="a blank page"),
        pytest.param(pdf_of_pages(b"", b" "), "no_text", id="two blank pages"),
        pytest.param(pdf_of_pages(b"Secret", trailer=LOCKED), "password_required", id="locked"),
        pytest.param(
            pdf_of_pages(b"Secret", trailer=b"/Encrypt << /Filter /Other /V 4 >>"),
            "unsupported",
            id="another lock",
        ),
        pytest.param(GOOD_PDF[:400], "damaged", id="cut"),
        pytest.param(b"%PDF-1.7\n" + bytes(range(256)) * 20, "damaged", id="garbage"),
        pytest.param(b"%PDF-", "damaged", id="a header alone"),
        pytest.param(
            pdf([CATALOG, b"<< /Type /Pages /Count 0 /Kids [] >>"]), "damaged", id="no page"
        ),
        pytest.param(
            pdf([CATALOG, b"<< /Type /Pages /Count 100000 /Kids [] >>"]),
            "damaged",
            id="a false count",
        ),
        pytest.param(
            pdf([CATALOG, b"<< /Type /Pages /Count 100000 /Kids [2 0 R 2 0 R] >>"]),
            "damaged",
            id="a page tree that is its own child",
        ),
        pytest.param(
            pdf([CATALOG, b"<< /Type /Pages /Kids [2 0 R 2 0 R] >>"]),
            "damaged",
            id="the same, uncounted",
        ),
        pytest.param(
            pdf(
                [
                    CATALOG,
                    *(
                        b"<< /Type /Pages /Count %d /Kids [%d 0 R %d 0 R] >>"
                        % (2 ** (30 - level), level + 3, level + 3)
                        for level in range(30)
                    ),
                    b"<< /Type /Page /MediaBox [0 0 9 9] >>",
                ]
            ),
            "damaged",
            id="a page tree that doubles 30 times",
        ),
    ],
)
def test_refusals(content: bytes, code: str) -> None:
    found, sentence = refusal_of(content)
    assert found == code, sentence
    assert len(sentence) > 20


def test_compressed_text() -> None:
    plain = b"BT /F1 12 Tf 72 720 Td (Thank you) Tj ET"
    content = GOOD_PDF.replace(stream(plain), stream(zlib.compress(plain), b"/Filter /FlateDecode"))
    assert content != GOOD_PDF
    assert result_of(content)["pages"] == ["Invoice 4711", "Thank you"]
