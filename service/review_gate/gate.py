"""The check of one file, from its path to its findings."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from service.review_gate.comments import apply_comments
from service.review_gate.findings import Finding
from service.review_gate.frame import Frame
from service.review_gate.held import Held
from service.review_gate.module import Module, Reading, TooTangledError
from service.review_gate.sources import Source, read_source, unreadable
from service.review_gate.walk import Walk

# The parser takes trees as deep as some 3,000 nodes, and reading a node takes a few calls.
RECURSION_LIMIT = 20_000
# Most files have none of these and need no reading.
_MAY_OPEN = re.compile(rb"\b(?:begin|begin_nested|transaction)\s*\(|\batomic\b")


def check_file(path: str) -> list[Finding]:
    """Everything to be said about a file, by line; never raises because of what is in it."""
    source = read_source(path)
    if isinstance(source, Finding):
        return [source]
    try:
        with _deep_recursion():
            found = [*_check(source)]
    except RecursionError:
        found = [unreadable(path, "nested too deeply")]
    except TooTangledError:
        found = [unreadable(path, "too tangled to follow")]
    found = [*apply_comments(found, source.comments, path)]
    return sorted(found, key=lambda one: (one.line, one.column, one.transaction_line or 0))


def _check(source: Source) -> Iterator[Finding]:
    if not _MAY_OPEN.search(source.data):
        return
    module = Module(source)
    module.start(Reading(None, Held()))
    for function in module.scopes.functions:
        module.start(Reading(function, Held()))
    while module.waiting:
        Walk(Frame(module, module.waiting.popleft())).run()
    yield from module.findings.values()
    yield from _review(module)


def _review(module: Module) -> Iterator[Finding]:
    clients = module.imports.clients
    if not clients or not module.transaction_lines:
        return
    first = clients[0][0]
    names = ", ".join(dict.fromkeys(f"{name} (line {node.lineno})" for node, name in clients))
    lines = ", ".join(map(str, sorted(module.transaction_lines)))
    yield Finding(
        kind="review",
        rule="transaction-and-client",
        path=module.source.path,
        line=first.lineno,
        column=module.source.column(first),
        message=f"imports {names} and opens transactions (line {lines})",
    )


@contextmanager
def _deep_recursion() -> Iterator[None]:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(RECURSION_LIMIT)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)
