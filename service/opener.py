"""Opening a session on a mailbox with what all of the process share: keys, time-outs and the cap
on connections."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
from cryptography.fernet import InvalidToken, MultiFernet

from service.db.mailboxes import Access
from service.errors import ConnectionLost, CredentialsRefused
from service.mail.imap import Capacity, ImapSession, create_capacity, open_imap
from service.model import ImapConnection
from service.settings import Settings

LOOK_TIMEOUT_FACTOR = 2


class MailboxOpener:
    """One for the process."""

    def __init__(self, keys: MultiFernet, capacity: Capacity, timeout_seconds: float) -> None:
        self._keys = keys
        self._capacity = capacity
        self._timeout_seconds = timeout_seconds

    @asynccontextmanager
    async def open(self, connection: ImapConnection, secret: bytes) -> AsyncIterator[ImapSession]:
        """A connected session, logged in by its first command. MailError; CredentialsRefused also
        for a lost key."""
        async with open_imap(
            connection,
            self._decrypt(secret),
            timeout_seconds=self._timeout_seconds,
            capacity=self._capacity,
        ) as session:
            yield session

    @asynccontextmanager
    async def look(self, access: Access) -> AsyncIterator[ImapSession]:
        """A session for a look on request, which takes several answers of a slow server. MailError;
        ConnectionLost also when it is not done in time."""
        limit_seconds = self._timeout_seconds * LOOK_TIMEOUT_FACTOR
        with trio.move_on_after(limit_seconds) as patience:
            async with self.open(access.connection, access.secret) as session:
                yield session
        if patience.cancelled_caught:
            raise ConnectionLost(f"a look was not done within {limit_seconds:g} s")

    def _decrypt(self, secret: bytes) -> str:
        try:
            return self._keys.decrypt(secret).decode()
        except InvalidToken:
            raise CredentialsRefused(
                "the stored password cannot be decrypted with SERVICE_SECRET_KEY",
                hint="use the key it was stored with, or store it again: mailbox update",
            ) from None


def create_opener(settings: Settings, keys: MultiFernet) -> MailboxOpener:
    """The opener of a process with these settings."""
    capacity = create_capacity(settings.imap_max_connections)
    return MailboxOpener(keys, capacity, settings.imap_timeout_seconds)
