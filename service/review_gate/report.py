"""The findings as text for people, as workflow commands for GitHub, and as JSON for programs."""

import json
import os
from collections import Counter
from collections.abc import Sequence

from service.review_gate.findings import Finding

_ADVICE = {
    "foreign-await": "commit first, await it, and write in a short new transaction",
    "blocking-call": "commit first, call it, and write in a short new transaction",
    "transaction-and-client": "a person has to see that none is used inside the other",
}
_LEVELS = {"error": "error", "review": "warning", "passed": "notice", "unused": "notice"}
_KIND_NAMES = {"error": "error", "review": "review", "passed": "let pass", "unused": "unused"}


def as_text(findings: Sequence[Finding], files: int) -> str:
    """One line a finding, `path:line:column: kind: …`, and a summary."""
    lines = [
        f"{_printable(one.path)}:{one.line}:{one.column}: {_KIND_NAMES[one.kind]}: {_say(one)}"
        for one in findings
    ]
    return "\n".join([*lines, _summary(findings, files)])


def as_github(findings: Sequence[Finding], files: int) -> str:
    """Annotations: errors, warnings for reviews, notices for the rest. GitHub shows the first ten
    of each level, the log has them all."""
    lines = [
        f"::{_LEVELS[one.kind]} file={_property(os.path.normpath(one.path))},line={one.line},"
        f"col={one.column},title={_property(f'review gate: {one.rule}')}::{_data(_say(one))}"
        for one in findings
    ]
    return "\n".join([*lines, _summary(findings, files)])


def as_json(findings: Sequence[Finding], files: int) -> str:
    """{"files": n, "errors": n, "reviews": n, "findings": [{"kind", "rule", "path", "line",
    "column", "message", "transaction_line" or null, "way": [{"function", "line"}], "reason" or
    null}]}; kinds and rules as in findings.py."""
    counts = Counter(one.kind for one in findings)
    shown = [
        {
            "kind": one.kind,
            "rule": one.rule,
            "path": one.path,
            "line": one.line,
            "column": one.column,
            "message": one.message,
            "transaction_line": one.transaction_line,
            "way": [{"function": step.function, "line": step.line} for step in one.way],
            "reason": one.reason,
        }
        for one in findings
    ]
    return json.dumps(
        {
            "files": files,
            "errors": counts["error"],
            "reviews": counts["review"],
            "findings": shown,
        },
        indent=2,
    )


def _say(one: Finding) -> str:
    way = " → ".join(f"{step.function} (line {step.line})" for step in one.way)
    text = f"{one.message}, by way of {way}" if way else one.message
    if one.kind in ("passed", "unused"):
        return _printable(f"{text}; the reason given: {one.reason}")
    return _printable(f"{text}; {_ADVICE[one.rule]}" if one.rule in _ADVICE else text)


def _summary(findings: Sequence[Finding], files: int) -> str:
    counts = Counter(one.kind for one in findings)
    return (
        f"review gate: {files} files, {counts['error']} errors, {counts['review']} to review, "
        f"{counts['passed']} let pass"
    )


def _printable(text: str) -> str:
    """Names of files may hold anything: line breaks, control characters, bytes of no encoding."""
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape", "surrogatepass").decode()
        for one in text
    )


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(_printable(text)).replace(":", "%3A").replace(",", "%2C")
