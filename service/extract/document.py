"""A file's bytes to the result's JSON: which reader is for it, or why none is.

The bytes decide; names and declared types play no part. `ReadFailed` says why a file gives nothing.
"""

from service.errors import ReadFailed
from service.extract.pdf import is_pdf, read_pdf
from service.extract.result import Output
from service.extract.table import read_table
from service.extract.workbook import is_workbook, read_workbook


def read_document(content: bytes, max_output_bytes: int) -> bytes:
    """JSON with `text` and `pages`, or `tables`; and `warnings`. ReadFailed."""
    if not content:
        raise ReadFailed("empty", "the file is empty: it has 0 bytes")
    output = Output(max_output_bytes)
    if is_workbook(content):
        return read_workbook(content, output)
    if is_pdf(content):
        return read_pdf(content, output)
    return read_table(content, output)
