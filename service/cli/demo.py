"""`demo`: mails become rows, and a client waits for one, on this machine without configuration.

Everything lives in a temporary folder and a child process, and goes away at the end.
"""

import os
import socket
import tempfile
import uuid
from datetime import datetime
from email.message import EmailMessage
from pathlib import Path
from typing import TYPE_CHECKING

import click
import trio
from cryptography.fernet import Fernet, MultiFernet
from rich.console import Console

from service.cli.common import load_settings, open_storage, printable
from service.cli.demo_table import make_table
from service.client import AsyncMailroomClient, ClientError
from service.db import mailboxes, tokens
from service.db.pool import Database
from service.db.request_views import list_requests
from service.errors import MailroomError
from service.model import ImapConnection
from service.sandbox.client import Sandbox, open_sandbox, send_mail
from service.sandbox.samples import sample_mails, verification_mail
from service.settings import Settings

if TYPE_CHECKING:
    from service.supervisor import Resources

ADDRESS = "demo@example.com"
POLL_INTERVAL_SECONDS = 1
AWAIT_POLL_INTERVAL_SECONDS = 0.5
LOOK_SECONDS = 0.3
SEND_AFTER_SECONDS = 1
TOUR_TIMEOUT_SECONDS = 60
PREFERRED_BIND = "127.0.0.1:8080"


@click.command()
@click.option("--once", is_flag=True, help="Show the tour and exit.")
def demo(once: bool) -> None:
    """Show mailroom at work: a mail server, a database and some mails, no configuration.

    Runs until Ctrl-C; whatever is sent to its SMTP port is taken in.
    """
    with tempfile.TemporaryDirectory(prefix="mailroom-demo-") as folder:
        settings = load_settings(
            database_url=None,
            service_data_dir=Path(folder),
            poll_interval_seconds=POLL_INTERVAL_SECONDS,
            await_poll_interval_seconds=AWAIT_POLL_INTERVAL_SECONDS,
            log_level=os.environ.get("LOG_LEVEL") or "warning",
            http_bind=os.environ.get("HTTP_BIND") or _free_bind(),
        )
        click.echo("Starting PostgreSQL and a mail server on this machine ...")
        with open_storage(settings) as url:
            trio.run(_run, settings, url, once)


async def _run(settings: Settings, database_url: str, once: bool) -> None:
    from service import supervisor  # slow to import, like what follows

    keys = MultiFernet([Fernet(Fernet.generate_key())])
    password = uuid.uuid4().hex
    async with open_sandbox(ADDRESS, password) as sandbox:

        async def beside(resources: "Resources") -> None:
            await _add_mailbox(resources.db, sandbox, keys.encrypt(password.encode()))
            await _tour(resources, sandbox, once)

        await supervisor.serve(settings, database_url, keys, beside=beside)


async def _add_mailbox(db: Database, sandbox: Sandbox, secret: bytes) -> None:
    connection = ImapConnection("127.0.0.1", sandbox.imap_port, "none", ADDRESS)
    async with db.transaction() as conn:
        await mailboxes.insert_mailbox(
            conn,
            address=ADDRESS,
            connection=connection,
            secret=secret,
            poll_interval_seconds=POLL_INTERVAL_SECONDS,
            ingest_all=True,
            ingest_since=None,
        )


async def _tour(resources: "Resources", sandbox: Sandbox, once: bool) -> None:
    mails = sample_mails(uuid.uuid4().hex)
    click.echo(f"Sending {len(mails)} mails to {ADDRESS}; the last one is the first one again ...")
    for mail in mails:
        await send_mail(sandbox.smtp_port, mail)
    with trio.move_on_after(TOUR_TIMEOUT_SECONDS) as deadline:
        await _wait_until_polled(resources.db)
        await _wait_until_read(resources.db)
    if deadline.cancelled_caught:
        raise MailroomError(f"the mails were not taken in and read within {TOUR_TIMEOUT_SECONDS} s")
    shown: set[int] = set()
    await _show_new(resources.db, shown)
    click.echo(
        f"{len(mails)} mails became {len(shown)} requests: the repeated one is not stored twice."
    )
    token = await _create_token(resources.db)
    await _show_wait(resources.urls[0], token, sandbox)
    if not once:
        _explain(resources.urls[0], token, sandbox)
        while True:
            await _show_new(resources.db, shown)
            await trio.sleep(LOOK_SECONDS)


async def _create_token(db: Database) -> str:
    async with db.transaction() as conn:
        return await tokens.create_token(
            conn, name="demo", scopes=tokens.SCOPES, mailboxes=[ADDRESS], expires_at=None
        )


async def _show_wait(url: str, token: str, sandbox: Sandbox) -> None:
    """A client waits for a verification mail that is sent a moment later."""
    mail = verification_mail(uuid.uuid4().hex)
    click.echo("\nNow a client waits for a mail, as a test or a script would:\n")
    click.echo(f"  {_curl_await(url, token, 'filter[subject]=verify')}\n")
    began = trio.current_time()
    async with AsyncMailroomClient(url, token) as client, trio.open_nursery() as nursery:
        nursery.start_soon(_send_later, sandbox, mail)
        try:
            found = await client.await_message(ADDRESS, subject="verify", timeout=30)
        except ClientError as error:
            raise MailroomError(f"the wait for the mail failed: {error}") from error
    seconds = trio.current_time() - began
    click.echo(f"The mail was sent {SEND_AFTER_SECONDS} s later; the answer after {seconds:.1f} s:")
    for name, values in (
        ("subject", [found.subject or ""]),
        ("codes", found.codes),
        ("links", [f"{link.url}  ({link.text})" for link in found.links]),
    ):
        click.echo(f"  {name:8} {printable(', '.join(values))}")


async def _send_later(sandbox: Sandbox, mail: EmailMessage) -> None:
    await trio.sleep(SEND_AFTER_SECONDS)
    await send_mail(sandbox.smtp_port, mail)


def _curl_await(url: str, token: str, filters: str) -> str:
    """With -g, because curl has a meaning of its own for the brackets."""
    path = f"/api/v1/email/account/{ADDRESS}/messages:await?{filters}&timeout=60"
    return f"curl -gsS -H 'Authorization: Bearer {token}' '{url}{path}'"


async def _wait_until_polled(db: Database) -> None:
    """Until a poll that began after this call has come to its end."""
    async with db.connection() as conn:
        now: datetime = await conn.fetchval("SELECT now()")
    while True:
        async with db.connection() as conn:
            mailbox = await mailboxes.get_mailbox(conn, ADDRESS)
        polled, done = mailbox.last_polled_at, mailbox.last_success_at
        if polled is not None and done is not None and now < polled <= done:
            return
        await trio.sleep(LOOK_SECONDS)


async def _wait_until_read(db: Database) -> None:
    """Until the pipeline is done with what is there."""
    while True:
        page = await list_requests(db, status="processing", limit=1)
        if not page.requests:
            return
        await trio.sleep(LOOK_SECONDS)


async def _show_new(db: Database, shown: set[int]) -> None:
    """Requests that have come to their end since the last look, each once."""
    page = await list_requests(db, limit=200)
    new = [one for one in page.requests if one.id not in shown and one.status != "processing"]
    if new:
        Console().print(await make_table(db, reversed(new)))
    shown.update(one.id for one in new)


def _explain(url: str, token: str, sandbox: Sandbox) -> None:
    click.echo(
        "\nIt goes on until Ctrl-C. Wait for a mail of your own:\n"
        f"  {_curl_await(url, token, 'filter[subject]=hello')}\n"
        "and in another terminal send it:\n"
        "  printf 'Subject: hello\\n\\nIt works.\\n' | curl -sS -T -"
        f" --mail-from me@example.com --mail-rcpt {ADDRESS} smtp://127.0.0.1:{sandbox.smtp_port}\n"
        "What was read, as JSON:\n"
        f"  curl -gsS -H 'Authorization: Bearer {token}' '{url}/api/v1/requests/1'\n"
        f"The API is explained at {url}/docs, and how the service is at {url}/readyz.\n"
    )


def _free_bind() -> str:
    """The usual port if it is free, else any."""
    host, port = PREFERRED_BIND.split(":")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, int(port)))
        except OSError:
            return f"{host}:0"
    return PREFERRED_BIND
