"""The result's JSON, made piece by piece within a limit of bytes.

What is added stays only as JSON, so that a table of a million rows never stands in memory as
Python's objects. What does not fit is left out, and a warning says so.
"""

import json
from collections.abc import Sequence

Cell = str | int | float | bool

MEGABYTE = 1024 * 1024
CHUNK_CELLS = 10_000
MAX_WARNINGS = 50
MAX_WARNING_CHARS = 300

_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)


class Output:
    """How many bytes of JSON the result may still take, and the warnings that go with it."""

    def __init__(self, max_bytes: int) -> None:
        self.left_bytes = self._max_bytes = max_bytes
        self._warnings: list[str] = []
        self._unsaid = 0

    @property
    def limit(self) -> str:
        """The limit in words."""
        return f"the limit of {self._max_bytes / MEGABYTE:.3g} MiB"

    def warn(self, sentence: str) -> None:
        """Add a warning; of many only the first are kept, and the number of the others."""
        if len(self._warnings) < MAX_WARNINGS:
            self._warnings.append(clean_text(sentence)[:MAX_WARNING_CHARS])
        else:
            self._unsaid += 1

    def close(self, members: Sequence[bytes]) -> bytes:
        """The whole result: these members of the object, and the warnings."""
        more = [f"{self._unsaid} more warnings"] if self._unsaid else []
        warnings = b'"warnings":' + encode_json(self._warnings + more)
        return b"{" + b",".join([*members, warnings]) + b"}"


class Rows:
    """A JSON array of rows. From the first that does not fit on, none is taken: it is full."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._pieces: list[bytes] = []
        self._chunk: list[Sequence[Cell]] = []
        self._chunk_cells = 0
        self.is_full = False
        self.added = self.kept = 0

    def add(self, row: Sequence[Cell]) -> None:
        """Take a row; `is_full` and `kept` may be late until `close`."""
        self.added += 1
        self._chunk.append(row)
        self._chunk_cells += len(row) + 1
        if self._chunk_cells >= CHUNK_CELLS:
            self._flush()

    def close(self) -> bytes:
        """The array; to be asked for once."""
        self._flush()
        return b"[" + b",".join(self._pieces) + b"]"

    def _flush(self) -> None:
        """Encode the chunk, or as many of its rows as fit."""
        chunk, self._chunk, self._chunk_cells = self._chunk, [], 0
        if self.is_full or not chunk or self._keep(encode_json(chunk)[1:-1], len(chunk)):
            return
        self.is_full = True
        all(self._keep(encode_json(row), 1) for row in chunk)

    def _keep(self, encoded: bytes, rows: int) -> bool:
        if len(encoded) + 1 > self._output.left_bytes:
            return False
        self._output.left_bytes -= len(encoded) + 1
        self._pieces.append(encoded)
        self.kept += rows
        return True


class Pages:
    """Texts of pages, which stand in a result twice: as one text and one by one."""

    _BETWEEN = b"\\n\\n"

    def __init__(self, output: Output) -> None:
        self._output = output
        self._pages: list[bytes] = []
        self.is_cut = False

    def add(self, text: str) -> None:
        """Take the page, or as much of it as fits; from then on `is_cut` is true."""
        room = max(0, self._output.left_bytes // 2 - len(self._BETWEEN))
        encoded = encode_json(text)[1:-1]
        while len(encoded) > room:
            self.is_cut = True
            text = text[: len(text) * room // len(encoded)]
            encoded = encode_json(text)[1:-1]
        self._output.left_bytes -= 2 * (len(encoded) + len(self._BETWEEN))
        self._pages.append(encoded)

    def close(self) -> list[bytes]:
        """The members `text` and `pages`."""
        pages = b",".join(b'"%b"' % page for page in self._pages)
        return [b'"text":"%b"' % self._BETWEEN.join(self._pages), b'"pages":[%b]' % pages]


def encode_json(value: object) -> bytes:
    """JSON in UTF-8 as jsonb takes it, but for NUL; half a surrogate pair becomes "?"."""
    return _JSON.encode(value).encode("utf-8", "replace")


def clean_text(text: str) -> str:
    """The text without NUL, which jsonb does not take."""
    return text.replace("\0", "")
