"""`quarantine …`: messages that could not become requests."""

import dataclasses
import sys

import click

from service.cli.common import (
    json_option,
    load_keys,
    load_settings,
    print_fields,
    print_json,
    print_table,
    printable,
    run_with_database,
)
from service.db import mailboxes
from service.db import quarantine as rows
from service.db.driver_errors import REJECTED_ERRORS
from service.db.pool import Database
from service.db.requests import store_requests
from service.errors import ClaimLost, MailError, MailroomError
from service.loops.poller import MailboxPoller
from service.mail.message import request_from_raw
from service.opener import create_opener
from service.settings import Settings


@click.group()
def quarantine() -> None:
    """List, inspect and replay messages that could not become requests."""


@quarantine.command("list")
@click.option("--all", "include_resolved", is_flag=True, help="Resolved ones too.")
@json_option
def list_(include_resolved: bool, as_json: bool) -> None:
    """Show what is in quarantine; retrying: the next polls try again; failed: replay it."""

    async def work(db: Database) -> list[rows.Quarantined]:
        async with db.connection() as conn:
            return await rows.list_quarantine(conn, include_resolved=include_resolved)

    found = run_with_database(load_settings(), work)
    if as_json:
        print_json([_document(row) for row in found])
    else:
        print_table(
            ["id", "mailbox", "message", "status", "attempts", "stage", "error"],
            [
                (
                    row.id,
                    row.address,
                    row.message,
                    row.status,
                    row.attempts,
                    row.stage,
                    row.error,
                )
                for row in found
            ],
        )


@quarantine.command()
@click.argument("quarantine_id", metavar="ID", type=int)
@click.option("--raw", "as_raw", is_flag=True, help="Write the raw message to standard output.")
@json_option
def show(quarantine_id: int, as_raw: bool, as_json: bool) -> None:
    """Show one message in quarantine."""

    async def work(db: Database) -> tuple[rows.Quarantined, bytes | None]:
        async with db.connection() as conn:
            row = await rows.get_quarantined(conn, quarantine_id)
            return row, (await rows.load_raw(conn, quarantine_id))[1] if as_raw else None

    row, raw = run_with_database(load_settings(), work)
    if as_raw:
        if raw is None:
            raise MailroomError(f"the bytes of quarantine row {quarantine_id} could not be had")
        sys.stdout.buffer.write(raw)
    elif as_json:
        print_json(_document(row))
    else:
        print_fields(
            [
                ("id", row.id),
                ("mailbox", row.address or "(removed)"),
                *row.server_ref.items(),
                ("status", row.status),
                ("stage", row.stage),
                ("error", row.error),
                ("attempts", row.attempts),
                ("raw message kept", "yes" if row.has_raw else "no"),
                ("since", row.created_at),
                ("resolved", row.resolved_at),
            ]
        )


@quarantine.command()
@click.argument("quarantine_ids", metavar="[ID]...", type=int, nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Whatever is not resolved.")
def replay(quarantine_ids: tuple[int, ...], everything: bool) -> None:
    """Take messages through the normal path again: from the server, else from the kept bytes."""
    if everything == bool(quarantine_ids):
        raise click.UsageError("give one or more IDs, or --all")
    settings = load_settings()
    keys = load_keys(settings)

    async def work(db: Database) -> int:
        poller = MailboxPoller(db, settings, create_opener(settings, keys))
        async with db.connection() as conn:
            found = (
                await rows.list_quarantine(conn, include_resolved=False)
                if everything
                else [await rows.get_quarantined(conn, one) for one in quarantine_ids]
            )
        return sum([not await _replay(db, settings, poller, row) for row in found])

    failed = run_with_database(settings, work)
    if failed:
        raise MailroomError(f"{failed} still in quarantine")


def _document(row: rows.Quarantined) -> dict[str, object]:
    return {**dataclasses.asdict(row), "status": row.status}


async def _replay(
    db: Database, settings: Settings, poller: MailboxPoller, row: rows.Quarantined
) -> bool:
    try:
        outcome = await _replay_from_server(db, poller, row)
        if outcome in ("quarantined", "gone") and row.has_raw:
            outcome = await _replay_from_raw(db, settings, row)
    except (MailError, ClaimLost, *REJECTED_ERRORS) as error:
        outcome = "failed: " + str(error).partition("\n")[0]
    click.echo(f"{row.id}: {printable(outcome)}")
    return outcome in ("stored", "duplicate")


async def _replay_from_server(db: Database, poller: MailboxPoller, row: rows.Quarantined) -> str:
    if row.address is None:
        return "gone"
    async with db.transaction() as conn:
        claim = await mailboxes.claim_mailbox(conn, row.address)
    try:
        return await poller.replay(claim, row.server_ref)
    except MailError:
        if row.has_raw:
            return "gone"
        raise


async def _replay_from_raw(db: Database, settings: Settings, row: rows.Quarantined) -> str:
    limits = settings.limits
    async with db.connection() as conn:
        mailbox_id, raw = await rows.load_raw(conn, row.id)
    assert raw is not None  # noqa: S101
    request = request_from_raw(raw, row.message, row.created_at, limits)
    async with db.transaction() as conn:
        (outcome,) = await store_requests(
            conn, mailbox_id, [request], announces=settings.sends_webhooks
        )
        await rows.resolve_row(conn, row.id)
    return outcome
