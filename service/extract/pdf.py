"""PDF: the text of its pages, through pypdfium2.

A page that cannot be read costs itself alone. A document none of whose pages has text is refused as
`no_text`: it is a scan, or a drawing.
"""

from collections.abc import Sequence

import pypdfium2
import pypdfium2.raw

from service.errors import ReadFailed
from service.extract.result import Output, Pages, clean_text

PDF_WITHIN_BYTES = 1024
MAX_PAGES = 2_000
MAX_NAMED_PAGES = 10

# What pdfium gives for a hyphen at the end of a line, without the line's end.
_HYPHEN = "\x02"


def is_pdf(content: bytes) -> bool:
    """Whether the bytes begin as a PDF, some garbage before it allowed."""
    return content.find(b"%PDF-", 0, PDF_WITHIN_BYTES) >= 0


def read_pdf(content: bytes, output: Output) -> bytes:
    """The result's JSON. ReadFailed."""
    document = _open(content)
    try:
        return _read_pages(document, output)
    finally:
        document.close()


def _open(content: bytes) -> pypdfium2.PdfDocument:
    try:
        return pypdfium2.PdfDocument(content)
    except pypdfium2.PdfiumError as error:
        if error.err_code == pypdfium2.raw.FPDF_ERR_PASSWORD:
            raise ReadFailed("password_required", "the PDF opens with a password only") from None
        if error.err_code == pypdfium2.raw.FPDF_ERR_SECURITY:
            raise ReadFailed(
                "unsupported", "the PDF is protected in a way that is not supported"
            ) from None
        raise ReadFailed("damaged", "the PDF is damaged: it cannot be opened") from None


def _read_pages(document: pypdfium2.PdfDocument, output: Output) -> bytes:
    count = len(document)
    pages = Pages(output)
    blank: list[int] = []
    broken: list[int] = []
    read = 0
    while read < min(count, MAX_PAGES) and not pages.is_cut:
        text = _read_page(document, read)
        read += 1
        if not text:
            (broken if text is None else blank).append(read)
        pages.add(text or "")
    _refuse_without_text(count, read, blank, broken)
    _warn(output, count, read, is_cut=pages.is_cut)
    if blank:
        output.warn(f"{_name_pages(blank)} without text, perhaps scanned")
    if broken:
        output.warn(f"{_name_pages(broken)} damaged and left out")
    return output.close(pages.close())


def _read_page(document: pypdfium2.PdfDocument, index: int) -> str | None:
    """The page's text, empty when it shows none; None when the page is damaged."""
    try:
        page = document[index]
    except pypdfium2.PdfiumError:
        return None
    try:
        text_page = page.get_textpage()
        try:
            text = text_page.get_text_bounded()
        finally:
            text_page.close()
    except pypdfium2.PdfiumError:
        return None
    finally:
        page.close()
    return clean_text(text.replace("\r\n", "\n").replace(_HYPHEN, "-")).strip()


def _refuse_without_text(
    count: int, read: int, blank: Sequence[int], broken: Sequence[int]
) -> None:
    if len(broken) == read:
        raise ReadFailed("damaged", f"the PDF is damaged: none of its {count} pages can be read")
    if len(blank) + len(broken) == read:
        pages = "its page" if count == 1 else f"all {read} pages"
        raise ReadFailed("no_text", f"the PDF has no text on {pages}: it is probably a scan")


def _warn(output: Output, count: int, read: int, *, is_cut: bool) -> None:
    if is_cut:
        output.warn(f"cut on page {read} of {count}: the text is beyond {output.limit}")
    elif read < count:
        output.warn(f"only the first {read} of {count} pages were read")


def _name_pages(numbers: Sequence[int]) -> str:
    named = ", ".join(map(str, numbers[:MAX_NAMED_PAGES]))
    more = len(numbers) - MAX_NAMED_PAGES
    beyond = f" and {more} more" if more > 0 else ""
    return f"page {named} is" if len(numbers) == 1 else f"pages {named}{beyond} are"
