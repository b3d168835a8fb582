"""`mailbox …`: the configured mailboxes."""

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from service.cli.common import (
    check_text,
    is_fit,
    json_option,
    load_keys,
    load_settings,
    parse_instant,
    print_fields,
    print_json,
    print_table,
    run_with_database,
)
from service.db import mailboxes
from service.db.pool import Connection, Database
from service.errors import MailError, MailroomError
from service.loops.poller import MailboxPoller
from service.model import ImapConnection
from service.opener import create_opener

DEFAULT_PORTS = {"implicit": 993, "starttls": 143, "none": 143}

_connection_options: list[Callable[[Any], Any]] = [
    click.option("--port", type=click.IntRange(1, 65535), help="Default: 993, else 143."),
    click.option("--tls", type=click.Choice(["implicit", "starttls", "none"])),
    click.option("--username", help="Default: the address."),
    click.option("--folder", help="Default: INBOX. Any name, also non-ASCII."),
    click.option(
        "--poll-interval",
        type=click.FloatRange(min=1),
        metavar="SECONDS",
        help="Time between two polls; default 120.",
    ),
    click.option(
        "--password-file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="File that holds the password; else MAILBOX_PASSWORD, else a prompt.",
    ),
]


def connection_options(command: Any) -> Any:
    """The options that `add` and `update` share."""
    for option in reversed(_connection_options):
        command = option(command)
    return command


@click.group()
def mailbox() -> None:
    """Add, inspect, test and poll mailboxes."""


@mailbox.command()
@click.argument("address")
@click.option("--host", required=True)
@connection_options
@click.option(
    "--since",
    metavar="ISO8601|all",
    help="Take mails that arrived from this time on; default: from now on.",
)
def add(
    address: str,
    host: str,
    port: int | None,
    tls: str | None,
    username: str | None,
    folder: str | None,
    poll_interval: float | None,
    password_file: Path | None,
    since: str | None,
) -> None:
    """Add the IMAP mailbox ADDRESS; its password is encrypted before it is stored."""
    check_text("ADDRESS", address)
    if "@" not in address:
        raise click.BadParameter("must be an e-mail address", param_hint="ADDRESS")
    tls = tls or "implicit"
    connection = ImapConnection(
        host=check_text("--host", host),
        port=port or DEFAULT_PORTS[tls],
        tls=tls,  # type: ignore[arg-type]  # click has checked it
        username=check_text("--username", username or address),
        folder=check_text("--folder", folder or "INBOX"),
    )
    ingest_since = parse_instant(since) if since not in (None, "all") else None
    settings = load_settings()
    keys = load_keys(settings)
    secret = keys.encrypt(_read_password(password_file).encode())

    async def work(conn: Connection) -> None:
        await mailboxes.insert_mailbox(
            conn,
            address=address,
            connection=connection,
            secret=secret,
            poll_interval_seconds=poll_interval or 120,
            ingest_all=since == "all",
            ingest_since=ingest_since,
        )

    run_with_database(settings, _on_connection(work))
    click.echo(f"added {address}; check it with: python -m service mailbox test {address}")


@mailbox.command()
@click.argument("address")
@click.option("--host")
@connection_options
def update(
    address: str,
    host: str | None,
    port: int | None,
    tls: str | None,
    username: str | None,
    folder: str | None,
    poll_interval: float | None,
    password_file: Path | None,
) -> None:
    """Change what is given; with no option at all, the password.

    Another host, user name or folder is read anew, from the time that `add --since` set; what is
    stored already is not stored twice.
    """
    given = {"host": host, "port": port, "tls": tls, "username": username, "folder": folder}
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    for name, value in changes.items():
        check_text(f"--{name}", str(value))
    settings = load_settings()
    keys = load_keys(settings)
    ask = password_file is not None or not (changes or poll_interval)
    secret = keys.encrypt(_read_password(password_file).encode()) if ask else None

    async def work(conn: Connection) -> None:
        current = await mailboxes.get_mailbox(conn, address)
        if current.provider != "imap":
            raise MailroomError(
                f"{address} is a mailbox of {current.provider}",
                hint="change it with: mailbox connect",
            )
        await mailboxes.update_mailbox(
            conn,
            address,
            connection=replace(ImapConnection(**current.connection), **changes),
            secret=secret or await mailboxes.get_secret(conn, address),
            poll_interval_seconds=poll_interval or current.poll_interval_seconds,
        )

    run_with_database(settings, _on_connection(work))
    click.echo(f"updated {address}")


@mailbox.command("list")
@json_option
def list_(as_json: bool) -> None:
    """Show all mailboxes."""
    rows = run_with_database(load_settings(), _on_connection(mailboxes.list_mailboxes))
    if as_json:
        print_json(rows)
    else:
        print_table(
            ["address", "server", "state", "last success", "failures", "last error"],
            [
                (
                    row.address,
                    _server(row),
                    _state(row),
                    row.last_success_at,
                    row.consecutive_failures or None,
                    row.last_error,
                )
                for row in rows
            ],
        )


@mailbox.command()
@click.argument("address")
@json_option
def show(address: str, as_json: bool) -> None:
    """Show one mailbox."""

    async def work(conn: Connection) -> mailboxes.Mailbox:
        return await mailboxes.get_mailbox(conn, address)

    row = run_with_database(load_settings(), _on_connection(work))
    if as_json:
        print_json(row)
    else:
        print_fields(
            [
                ("address", row.address),
                ("provider", row.provider),
                *row.connection.items(),
                ("state", _state(row)),
                ("poll interval", f"{row.poll_interval_seconds:g} s"),
                ("ingest since", row.ingest_since or "all"),
                ("cursor", row.cursor),
                ("last polled", row.last_polled_at),
                ("last success", row.last_success_at),
                ("not before", row.not_before),
                ("failures in a row", row.consecutive_failures),
                ("last error", row.last_error),
                ("created", row.created_at),
            ]
        )


@mailbox.command()
@click.argument("address")
def test(address: str) -> None:
    """Try each step against the server: connection, login, folder, search."""
    settings = load_settings()
    keys = load_keys(settings)

    async def work(db: Database) -> None:
        async with db.connection() as conn:
            row = await mailboxes.get_mailbox(conn, address)
            access = await mailboxes.get_access(conn, address)
        step = "credentials"
        try:
            async with create_opener(settings, keys).open(access) as source:
                for step, act in source.steps(row.ingest_since):
                    click.echo(f"  ok    {step:8}  {await act()}")
        except MailError as error:
            click.echo(f"  FAIL  {step:8}  {error}")
            raise MailroomError(f"mailbox test failed at: {step}", hint=error.hint) from error

    run_with_database(settings, work)


@mailbox.command()
@click.argument("address")
def enable(address: str) -> None:
    """Poll ADDRESS (again); forgets its back-off and refused credentials."""
    _switch(address, enabled=True)
    click.echo(f"enabled {address}")


@mailbox.command()
@click.argument("address")
def disable(address: str) -> None:
    """Do not poll ADDRESS until it is enabled."""
    _switch(address, enabled=False)
    click.echo(f"disabled {address}")


def _switch(address: str, *, enabled: bool) -> None:
    async def work(conn: Connection) -> None:
        await mailboxes.enable_mailbox(conn, address, enabled=enabled)

    run_with_database(load_settings(), _on_connection(work))


@mailbox.command()
@click.argument("address")
@click.option("--yes", is_flag=True, help="Do not ask.")
def remove(address: str, yes: bool) -> None:
    """Forget ADDRESS and its password; the requests taken from it stay."""
    if not yes and not click.confirm(f"forget {address} and how far it has been read?"):
        raise MailroomError(f"{address} was not removed")

    async def work(conn: Connection) -> None:
        await mailboxes.delete_mailbox(conn, address)

    run_with_database(load_settings(), _on_connection(work))
    click.echo(f"removed {address}")


@mailbox.command()
@click.argument("address")
@json_option
def poll(address: str, as_json: bool) -> None:
    """Poll ADDRESS now, due or not, and say what became of its new mails."""
    settings = load_settings()
    keys = load_keys(settings)

    async def work(db: Database) -> dict[str, int]:
        poller = MailboxPoller(db, settings, create_opener(settings, keys))
        async with db.transaction() as conn:
            claim = await mailboxes.claim_mailbox(conn, address)
        report = await poller.poll(claim)
        if report.error is not None:
            hint = getattr(report.error, "hint", None)
            raise MailroomError(f"{address}: {report.error}", hint=hint) from report.error
        return dict(report.counts)

    counts = run_with_database(settings, work)
    if as_json:
        print_json(counts)
    else:
        click.echo(", ".join(f"{n} {name}" for name, n in sorted(counts.items())) or "nothing new")


def _on_connection(
    work: Callable[[Connection], Any],
) -> Callable[[Database], Any]:
    async def on_database(db: Database) -> Any:
        async with db.transaction() as conn:
            return await work(conn)

    return on_database


def _server(row: mailboxes.Mailbox) -> str:
    connection = row.connection
    return f"{connection['host']}:{connection['port']}" if "host" in connection else row.provider


def _state(row: mailboxes.Mailbox) -> str:
    if not row.enabled:
        return "disabled"
    return "backing off" if row.state == "active" and row.consecutive_failures else row.state


def _read_password(password_file: Path | None) -> str:
    if password_file is not None:
        password = password_file.read_bytes().decode("utf-8-sig", "surrogateescape").rstrip("\r\n")
    elif "MAILBOX_PASSWORD" in os.environ:
        password = os.environ["MAILBOX_PASSWORD"]
    elif sys.stdin.isatty():
        password = click.prompt("Password", hide_input=True, err=True)
    else:
        raise MailroomError(
            "there is no terminal to ask for the password",
            hint="use --password-file or MAILBOX_PASSWORD",
        )
    if not password or not is_fit(password):
        raise MailroomError("the password is empty, not UTF-8 or holds control characters")
    return password
