"""`enrich status`: what is decided, and what waits for what."""

import dataclasses
from typing import get_args

import click

from service.cli.common import (
    json_option,
    load_settings,
    print_fields,
    print_json,
    print_table,
    run_with_database,
)
from service.db.enrich_status import EnrichStatus, Share, State, fetch_status
from service.db.pool import Database

MAX_REASON_CHARS = 60
# The states that have a reason, and the verdict that they come from.
_VERDICTS: dict[State, str] = {"valid": "valid", "invalid": "invalid", "waiting": "unknown"}


@click.command()
@json_option
def status(as_json: bool) -> None:
    """Show what is decided, what waits and for what, and imports that are not finished."""
    settings = load_settings()

    async def work(db: Database) -> EnrichStatus:
        async with db.connection() as conn:
            return await fetch_status(
                conn,
                row_claim_seconds=settings.watchdog_stuck_after_seconds,
                domain_claim_seconds=settings.domain_claim_seconds,
            )

    found = run_with_database(settings, work)
    if as_json:
        print_json(_document(found))
        return
    print_fields([(name.replace("_", " "), count) for name, count in _counts(found).items()])
    if reasons := _reasons(found):
        click.echo()
        columns = ["verdict", "reason", "rows", "next try"]
        print_table(
            columns,
            [
                (_VERDICTS[r.state], (r.reason or "")[:MAX_REASON_CHARS], r.rows, r.next_due_at)
                for r in reasons
            ],
        )
    if found.unfinished_imports:
        click.echo()
        print_table(
            ["unfinished import of the file with SHA-256", "since", "lines done", "rows"],
            [
                (one.file_sha256, one.started_at, one.lines_done, one.rows_stored)
                for one in found.unfinished_imports
            ],
        )


def _document(found: EnrichStatus) -> dict[str, object]:
    return {
        **_counts(found),
        "reasons": [
            {
                "verdict": _VERDICTS[share.state],
                "reason": share.reason,
                "rows": share.rows,
                "next_due_at": share.next_due_at,
            }
            for share in _reasons(found)
        ],
        "unfinished_imports": found.unfinished_imports,
    }


def _counts(found: EnrichStatus) -> dict[str, int]:
    states = {state: found.rows_in(state) for state in get_args(State)}
    domains = dataclasses.asdict(found.domains)
    return {
        "rows": sum(states.values()),
        **states,
        **{f"domains_{name}": count for name, count in domains.items()},
    }


def _reasons(found: EnrichStatus) -> list[Share]:
    return [share for share in found.shares if share.state in _VERDICTS]
