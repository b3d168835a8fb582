"""`webhook …`: the events for the webhook's receiver."""

import dataclasses

import click

from service.cli.common import (
    json_option,
    load_settings,
    print_json,
    print_table,
    run_with_database,
)
from service.db import outbox
from service.db.pool import Database


@click.group()
def webhook() -> None:
    """List the events for the webhook, and send again what was given up."""


@webhook.command("list")
@click.option("--all", "include_delivered", is_flag=True, help="Delivered ones too.")
@json_option
def list_(include_delivered: bool, as_json: bool) -> None:
    """Show what is not delivered; retrying: the service tries again; given up: retry it."""

    async def work(db: Database) -> list[outbox.Event]:
        async with db.connection() as conn:
            return await outbox.list_events(conn, include_delivered=include_delivered)

    found = run_with_database(load_settings(), work)
    if as_json:
        print_json([{**dataclasses.asdict(event), "state": event.state} for event in found])
    else:
        print_table(
            ["id", "event", "request", "state", "attempts", "created", "next attempt", "error"],
            [_cells(event) for event in found],
        )


@webhook.command()
@click.argument("event_ids", metavar="[ID]...", type=int, nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Whatever was given up.")
def retry(event_ids: tuple[int, ...], everything: bool) -> None:
    """Let the service send events now: ones that were given up, or that wait for an attempt."""
    if everything == bool(event_ids):
        raise click.UsageError("give one or more IDs, or --all")

    async def work(db: Database) -> int:
        async with db.transaction() as conn:
            if everything:
                return await outbox.retry_given_up(conn)
            for event_id in event_ids:
                await outbox.retry_event(conn, event_id)
            return len(event_ids)

    count = run_with_database(load_settings(), work)
    click.echo(f"{count} due now")


def _cells(event: outbox.Event) -> tuple[object, ...]:
    has_next = event.state in ("waiting", "retrying")
    return (
        event.id,
        event.event_id,
        event.request_id,
        event.state,
        event.attempts,
        event.created_at,
        event.next_attempt_at if has_next else None,
        event.last_error,
    )
