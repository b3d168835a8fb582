"""`attachment …`: what the pipeline made of the files, and another try for those that failed."""

import dataclasses
import json

import click

from service.cli.common import (
    json_option,
    load_settings,
    print_fields,
    print_json,
    print_table,
    printable,
    run_with_database,
)
from service.db import attachments, request_views
from service.db.pool import Database
from service.errors import MailroomError

ID = click.IntRange(1, request_views.MAX_ID)


@click.group()
def attachment() -> None:
    """List and show what the pipeline works on, and let it try again."""


@attachment.command("list")
@click.option(
    "--status",
    type=click.Choice(["pending", "processing", "done", "failed", "skipped", "all"]),
    default="failed",
    show_default=True,
    help="Those in this state.",
)
@click.option(
    "--limit",
    type=click.IntRange(1, 1000),
    default=100,
    show_default=True,
    help="The newest of them.",
)
@json_option
def list_(status: str, limit: int, as_json: bool) -> None:
    """Show attachments, newest last; without options those that failed, and why."""

    async def work(db: Database) -> list[request_views.StoredAttachment]:
        wanted = None if status == "all" else status
        return await request_views.list_attachments(db, status=wanted, limit=limit)

    found = run_with_database(load_settings(), work)
    if as_json:
        print_json(found)
    else:
        print_table(
            ["id", "file", "bytes", "verdict", "status", "attempts", "reason"],
            [
                (
                    one.id,
                    one.filename or ("(the mail's text)" if one.kind == "body" else None),
                    one.size_bytes,
                    one.verdict,
                    one.status,
                    one.attempts,
                    one.error or one.verdict_reason,
                )
                for one in found
            ],
        )


@attachment.command()
@click.argument("attachment_id", metavar="ID", type=ID)
@json_option
def show(attachment_id: int, as_json: bool) -> None:
    """Show one attachment with what was read from it."""

    async def work(db: Database) -> tuple[request_views.StoredAttachment, bytes | None]:
        found = await request_views.find_attachment(db, attachment_id, mailboxes=None)
        if found is None:
            raise _missing(attachment_id)
        return found, await request_views.load_result(db, attachment_id)

    found, result = run_with_database(load_settings(), work)
    document = {
        **dataclasses.asdict(found),
        "result": None if result is None else json.loads(result),
    }
    if as_json:
        print_json(document)
        return
    print_fields([(name, value) for name, value in document.items() if name != "result"])
    if result is not None:
        click.echo(f"result\n{_readable(document['result'])}")


@attachment.command()
@click.argument(
    "attachment_ids",
    metavar="[ID]...",
    type=ID,
    nargs=-1,
)
@click.option(
    "--all", "everything", is_flag=True, help="Whatever failed, or waits for its next attempt."
)
def retry(attachment_ids: tuple[int, ...], everything: bool) -> None:
    """Let the pipeline work on attachments now: those that failed, are done, or wait."""
    if everything == bool(attachment_ids):
        raise click.UsageError("give one or more IDs, or --all")

    async def work(db: Database) -> int:
        async with db.transaction() as conn:
            if everything:
                return await attachments.retry_failed(conn)
            for one in sorted(attachment_ids):  # in one order everywhere: no deadlock
                status = await attachments.retry_attachment(conn, one, mailboxes=None)
                _check_retried(one, status)
            return len(attachment_ids)

    count = run_with_database(load_settings(), work)
    click.echo(f"{count} pending again")


def _check_retried(attachment_id: int, status: str | None) -> None:
    if status is None:
        raise _missing(attachment_id)
    if reason := attachments.NOT_RETRYABLE.get(status):
        raise MailroomError(f"attachment {attachment_id} {reason}")


def _missing(attachment_id: int) -> MailroomError:
    return MailroomError(f"there is no attachment {attachment_id}", hint="see: attachment list")


def _readable(result: object) -> str:
    """JSON with line breaks, and nothing that a terminal obeys."""
    lines = json.dumps(result, indent=2, ensure_ascii=False).split("\n")
    return "\n".join(map(printable, lines))
