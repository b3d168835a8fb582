"""An intake without the loop around it: a database, keys, and mailboxes that are polled by hand."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from cryptography.fernet import Fernet, MultiFernet

from service.db.mailboxes import Mailbox, claim_mailbox, get_mailbox, insert_mailbox
from service.db.pool import Database, open_database
from service.loops.poller import MailboxPoller, PollReport
from service.model import ImapConnection
from service.opener import create_opener
from service.settings import Settings


@dataclass
class Station:
    db: Database
    keys: MultiFernet
    poller: MailboxPoller

    async def add(
        self,
        port: int,
        user: str = "user@example.com",
        *,
        folder: str = "INBOX",
        since: datetime | None = None,
        poll_interval_seconds: float = 120,
    ) -> str:
        """A mailbox on a server of this machine; without `since` everything is taken."""
        async with self.db.transaction() as conn:
            await insert_mailbox(
                conn,
                address=user,
                connection=ImapConnection("127.0.0.1", port, "none", user, folder),
                secret=self.keys.encrypt(b"secret"),
                poll_interval_seconds=poll_interval_seconds,
                ingest_all=since is None,
                ingest_since=since,
            )
        return user

    async def poll(self, address: str = "user@example.com") -> PollReport:
        async with self.db.transaction() as conn:
            claim = await claim_mailbox(conn, address)
        return await self.poller.poll(claim)

    async def mailbox(self, address: str = "user@example.com") -> Mailbox:
        async with self.db.connection() as conn:
            return await get_mailbox(conn, address)

    async def rows(self, query: str, *args: object) -> Sequence[Any]:
        async with self.db.connection() as conn:
            return await conn.fetch(query, *args)


@asynccontextmanager
async def open_station(database_url: str, **settings: Any) -> AsyncIterator[Station]:
    """A station on this database; `settings` as in `Settings`, IMAP time-out 2 s by default."""
    keys = MultiFernet([Fernet(Fernet.generate_key())])
    chosen = Settings.load(**{"imap_timeout_seconds": 2, **settings})
    async with open_database(database_url) as db:
        await db.connect()
        yield Station(db, keys, MailboxPoller(db, chosen, create_opener(chosen, keys)))


async def subjects(station: Station) -> list[str]:
    """The subjects of all requests, in their alphabetical order."""
    return [row["subject"] for row in await station.rows("SELECT subject FROM request ORDER BY 1")]
