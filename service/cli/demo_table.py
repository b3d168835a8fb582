"""The demo's table: each request with its attachments, their verdicts, and what was read."""

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from rich.markup import escape
from rich.table import Table

from service.cli.common import printable
from service.db.pool import Database
from service.db.request_views import StoredAttachment, StoredRequest, load_result

PREVIEW_LINES = 4
PREVIEW_TABLES = 3
PREVIEW_CHARS = 60
_STYLES = {"extract": "green", "inline_image": "dim", "unsupported": "yellow"}


async def make_table(db: Database, requests: Iterable[StoredRequest]) -> Table:
    """One row an attachment, one section a request."""
    table = Table("id", "from, subject", "attachment, verdict", "what was read")
    for request in requests:
        for index, one in enumerate(request.attachments):
            who = f"{_safe(request.sender)}\n{_safe(request.subject)}" if index == 0 else ""
            table.add_row(
                str(request.id) if index == 0 else "",
                who,
                f"{_name(one)} [dim]{one.size_bytes:,} bytes[/dim]\n{_verdict(one)}",
                await _read(db, one),
                end_section=index == len(request.attachments) - 1,
            )
    return table


def _name(one: StoredAttachment) -> str:
    return _safe(one.filename) or ("(the mail's text)" if one.kind == "body" else "(no name)")


def _verdict(one: StoredAttachment) -> str:
    style = _STYLES.get(one.verdict, "red")
    reason = f"\n[dim]{_safe(one.verdict_reason)}[/dim]" if one.verdict_reason else ""
    return f"[{style}]{one.verdict}[/{style}]{reason}"


async def _read(db: Database, one: StoredAttachment) -> str:
    result = await load_result(db, one.id)
    if result is None:
        return f"[red]{_safe(one.error)}[/red]" if one.error else ""
    return "\n".join(_safe(line[:PREVIEW_CHARS]) for line in preview(json.loads(result)))


def preview(result: dict[str, object]) -> list[str]:
    """The first lines of a result: of its text, or of each table."""
    match result:
        case {"tables": list(tables)}:
            return [line for table in tables[:PREVIEW_TABLES] for line in _table_lines(table)]
        case {"text": str(text)}:
            lines = (line for line in text.splitlines() if line.strip())
            return list(islice(lines, PREVIEW_LINES))
    return []


def _table_lines(table: dict[str, Sequence[Sequence[object]]]) -> Iterator[str]:
    rows = table["rows"]
    yield f"{table['name'] or 'a table'}: {len(rows)} rows"
    for row in rows[:PREVIEW_LINES]:
        yield " | ".join(map(str, row))


def _safe(text: str | None) -> str:
    return escape(printable(text or ""))
