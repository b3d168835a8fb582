"""Finds the Python files and parses them; a file that cannot be read or parsed is a finding."""

import ast
import os
import stat
import sys
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from service.review_gate.comments import Comment, read_comments
from service.review_gate.findings import Finding

MAX_BYTES = 2_000_000
SKIPPED_FOLDERS = frozenset({"__pycache__", "build", "node_modules", "site-packages", "venv"})


@dataclass(frozen=True)
class Source:
    """A parsed file."""

    path: str
    data: bytes
    tree: ast.Module
    comments: list[Comment]

    def column(self, node: ast.expr | ast.stmt) -> int:
        """The column in characters, from 1; the syntax tree counts bytes of UTF-8."""
        line = self._lines[node.lineno - 1]
        return len(line[: node.col_offset].decode("utf-8", "replace")) + 1

    @cached_property
    def _lines(self) -> list[bytes]:
        return self.data.splitlines()


def unreadable(path: str, why: str, line: int = 1) -> Finding:
    """The finding for what the gate cannot look into."""
    return Finding("error", "unreadable", path, line, 1, f"cannot be read: {why}")


def find_files(paths: Iterable[str]) -> Iterator[str | Finding]:
    """Files as they are given, and every `*.py` below a folder; hidden folders, virtual
    environments and the like are left out, symbolic links to folders not followed."""
    for path in paths:
        if not os.path.isdir(path):
            yield path
            continue
        refused: list[OSError] = []
        for folder, folders, files in os.walk(path, onerror=refused.append):
            if "pyvenv.cfg" in files and folder != path:
                folders.clear()
                continue
            folders[:] = sorted(one for one in folders if not _is_skipped(one))
            yield from (os.path.join(folder, one) for one in sorted(files) if one.endswith(".py"))
        for error in refused:
            yield unreadable(str(error.filename), error.strerror or str(error))


def _is_skipped(folder: str) -> bool:
    return folder.startswith(".") or folder in SKIPPED_FOLDERS


def read_source(path: str) -> Source | Finding:
    """The file parsed, or why it cannot be."""
    try:
        data = _read(path)
    except OSError as error:
        return unreadable(path, error.strerror or str(error))
    if len(data) > MAX_BYTES:
        return unreadable(path, f"larger than {MAX_BYTES:,} bytes")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about that code's own literals
            return Source(path, data, ast.parse(data), read_comments(data))
    except SyntaxError as error:
        grammar = f"(as Python {sys.version_info.major}.{sys.version_info.minor})"
        return unreadable(path, f"{error.msg} {grammar}", error.lineno or 1)
    except ValueError as error:
        return unreadable(path, str(error))
    except (RecursionError, MemoryError):
        return unreadable(path, "nested too deeply")


def _read(path: str) -> bytes:
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(0, "not a regular file")
    with Path(path).open("rb") as file:
        return file.read(MAX_BYTES + 1)
