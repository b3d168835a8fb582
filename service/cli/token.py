"""`token …`: the bearer tokens of the HTTP API."""

from datetime import UTC, datetime

import click

from service.cli.common import (
    check_text,
    json_option,
    load_settings,
    parse_instant,
    print_json,
    print_table,
    run_with_database,
)
from service.db import tokens
from service.db.mailboxes import is_known
from service.db.pool import Database


@click.group()
def token() -> None:
    """Create, list and revoke tokens of the HTTP API."""


@token.command()
@click.option("--name", required=True, help="Who or what uses it; shown in the list.")
@click.option("--scope", "scopes", multiple=True, required=True, type=click.Choice(tokens.SCOPES))
@click.option(
    "--mailbox",
    "mailboxes",
    multiple=True,
    metavar="ADDRESS",
    help="Only for this mailbox; can be given more than once. Default: all of them.",
)
@click.option("--expires", metavar="ISO8601", help="Default: never.")
def create(
    name: str, scopes: tuple[str, ...], mailboxes: tuple[str, ...], expires: str | None
) -> None:
    """Create a token and print it, alone and for the only time."""
    check_text("--name", name)
    for address in mailboxes:
        check_text("--mailbox", address)
    expires_at = parse_instant(expires) if expires is not None else None
    if expires_at is not None and expires_at <= datetime.now(UTC):
        raise click.BadParameter("is in the past", param_hint="--expires")

    async def work(db: Database) -> tuple[str, list[str]]:
        async with db.transaction() as conn:
            made = await tokens.create_token(
                conn,
                name=name,
                scopes=scopes,
                mailboxes=mailboxes or None,
                expires_at=expires_at,
            )
            unknown = [one for one in mailboxes if not await is_known(conn, one)]
        return made, unknown

    made, unknown = run_with_database(load_settings(), work)
    for address in unknown:
        click.echo(f"mailroom: there is no mailbox {address} yet", err=True)
    click.echo(made)


@token.command("list")
@json_option
def list_(as_json: bool) -> None:
    """Show all tokens, without the tokens themselves."""

    async def work(db: Database) -> list[tokens.Token]:
        async with db.connection() as conn:
            return await tokens.list_tokens(conn)

    rows = run_with_database(load_settings(), work)
    if as_json:
        print_json(rows)
    else:
        print_table(
            ["id", "name", "scopes", "mailboxes", "state", "last used", "created", "expires"],
            [
                (
                    row.id,
                    row.name,
                    ", ".join(row.scopes),
                    "all" if row.mailboxes is None else ", ".join(row.mailboxes),
                    row.state,
                    row.last_used_at,
                    row.created_at,
                    row.expires_at,
                )
                for row in rows
            ],
        )


@token.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME|ID...")
def revoke(names: tuple[str, ...]) -> None:
    """Revoke tokens by name or id; they stop working at once, on every replica."""

    async def work(db: Database) -> list[tokens.Token]:
        async with db.transaction() as conn:
            return [one for name in names for one in await tokens.revoke_tokens(conn, name)]

    for revoked in run_with_database(load_settings(), work):
        click.echo(f"revoked {revoked.name} (id {revoked.id})")
