"""`# review-gate: ok — reason`: lets what it stands beside, or alone on the line above, pass; it is
listed with its reason."""

import io
import re
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from service.review_gate.findings import Finding

_COMMENT = re.compile(r"#\s*review-gate\s*:(?P<rest>.*)", re.IGNORECASE)
_OK = re.compile(r"\s*ok\s*(?:—|--|-|:)\s*(?P<reason>.*\w.*)", re.IGNORECASE)
_NO_CODE = (tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.NEWLINE)


@dataclass(frozen=True, slots=True)
class Comment:
    """Where it stands, and the line of code below it if it stands alone.

    `reason` is None where it is missing, or where something other than `ok` is said.
    """

    line: int
    column: int
    reason: str | None
    lines: frozenset[int]


def read_comments(data: bytes) -> list[Comment]:
    """The gate's comments of a file that parses."""
    if b"review-gate" not in data.lower():
        return []
    tokens = [*tokenize.tokenize(io.BytesIO(data).readline)]
    return [
        Comment(
            line=token.start[0],
            column=token.start[1] + match.start() + 1,
            reason=_reason(match["rest"]),
            lines=frozenset([token.start[0], _line_of_code(tokens, index)]),
        )
        for index, token in enumerate(tokens)
        if token.type == tokenize.COMMENT and (match := _COMMENT.search(token.string))
    ]


def _line_of_code(tokens: Sequence[tokenize.TokenInfo], index: int) -> int:
    comment = tokens[index]
    if comment.line[: comment.start[1]].strip():
        return comment.start[0]
    below = (token.start[0] for token in tokens[index:] if token.type not in _NO_CODE)
    return next(below, comment.start[0])


def _reason(rest: str) -> str | None:
    match = _OK.fullmatch(rest)
    return match["reason"].strip() if match else None


def apply_comments(
    findings: Sequence[Finding], comments: Sequence[Comment], path: str
) -> Iterator[Finding]:
    """The findings, those passed that a comment lets pass, and what is wrong with the comments."""
    used: set[Comment] = set()
    for finding in findings:
        excuses = [one for one in comments if one.reason is not None and one.lines & finding.lines]
        used.update(excuses)
        if excuses:
            yield replace(finding, kind="passed", reason=excuses[-1].reason)
        else:
            yield finding
    for one in comments:
        if one.reason is None:
            message = "lets nothing pass: write `# review-gate: ok — reason`, with a reason"
            yield Finding("error", "no-reason", path, one.line, one.column, message)
        elif one not in used:
            message = "lets nothing pass: there is nothing to be excused here"
            yield Finding(
                "unused", "unused-comment", path, one.line, one.column, message, reason=one.reason
            )
