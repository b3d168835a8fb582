"""What a snippet is: code in which each line says at its end what the gate has to find there."""

import re
from pathlib import Path
from textwrap import dedent

from service.review_gate.findings import Finding
from service.review_gate.gate import check_file

_EXPECTED = re.compile(r"#! (\w+)")


def check(folder: Path, code: str) -> list[Finding]:
    """The findings of `code` in a file of its own."""
    path = folder / "snippet.py"
    path.write_text(dedent(code), "utf-8")
    return check_file(str(path))


def expected(code: str) -> list[tuple[str, int]]:
    """(kind, line) of everything that is marked with `#! kind`."""
    lines = dedent(code).splitlines()
    return [(kind, n) for n, line in enumerate(lines, 1) for kind in _EXPECTED.findall(line)]
