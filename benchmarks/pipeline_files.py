"""The files of the pipeline's benchmark, and the plain loop that reads them in one process.

`python -m benchmarks.pipeline_files FOLDER` prints, as JSON, the seconds that the loop took for
each file. The loop calls the libraries that the service calls, with nothing around them.
"""

import csv
import io
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import charset_normalizer
import pypdfium2
import python_calamine

from service.sandbox.files import make_csv, make_pdf, make_xlsx

LINES_A_PAGE = 50
PAGES = 3
ROWS = 120
_SAMPLE_CHARS = 4096
_GUESS_FROM_BYTES = 4096


def make_files(count: int) -> Iterator[tuple[str, bytes]]:
    """(name, content) of `count` different files: half PDF, a quarter XLSX, a quarter CSV."""
    for number in range(count):
        if number % 2 == 0:
            yield f"invoice-{number}.pdf", make_pdf(*(_page(number, page) for page in range(PAGES)))
        elif number % 4 == 1:
            yield f"orders-{number}.xlsx", make_xlsx(_rows(number))
        else:
            yield f"orders-{number}.csv", make_csv(_rows(number)).encode("cp1252")


def _page(number: int, page: int) -> list[str]:
    first = page * LINES_A_PAGE
    return [
        f"{first + line:4} Article {number * 31 + line} of 500 g, {line} pieces at {line}.90 EUR"
        for line in range(LINES_A_PAGE)
    ]


def _rows(number: int) -> list[list[str]]:
    header = ["Order", "Article", "Quantity", "Price", "Remark"]
    rows = [
        [f"{number}-{row}", f"Café crème {row} g", f"{row % 40}", f"{row}.50", "für März, bitte"]
        for row in range(ROWS)
    ]
    return [header, *rows]


def read_plainly(content: bytes) -> object:
    """What somebody would write who trusts every file."""
    if content.startswith(b"%PDF-"):
        document = pypdfium2.PdfDocument(content)
        pages = [page.get_textpage().get_text_bounded() for page in document]
        document.close()
        return pages
    if content.startswith(b"PK"):
        workbook = python_calamine.load_workbook(io.BytesIO(content))
        return [workbook.get_sheet_by_name(name).to_python() for name in workbook.sheet_names]
    guess = charset_normalizer.from_bytes(content[:_GUESS_FROM_BYTES]).best()
    text = content.decode(guess.encoding if guess is not None else "latin-1", "replace")
    dialect = csv.Sniffer().sniff(text[:_SAMPLE_CHARS], delimiters=",;\t|")
    return list(csv.reader(io.StringIO(text, newline=""), dialect))


def main() -> None:
    contents = [path.read_bytes() for path in sorted(Path(sys.argv[1]).iterdir())]
    seconds = []
    for content in contents:
        began = time.perf_counter()
        read_plainly(content)
        seconds.append(time.perf_counter() - began)
    print(json.dumps(seconds))


if __name__ == "__main__":
    main()
