"""Opening a source on a mailbox of any provider with what all of the process share: keys, tokens,
time-outs and the cap on sessions."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

import trio
from cryptography.fernet import InvalidToken, MultiFernet

from service.errors import ConnectionLost, CredentialsRefused
from service.mail.capacity import Capacity, create_capacity
from service.mail.imap import open_imap
from service.mail.source import MailSource
from service.model import Connection, ImapConnection
from service.settings import Settings

LOOK_TIMEOUT_FACTOR = 2


class Opened(Protocol):
    """What it takes to open a mailbox: a `Claim` or an `Access`."""

    @property
    def mailbox_id(self) -> int: ...
    @property
    def address(self) -> str: ...
    @property
    def connection(self) -> Connection: ...
    @property
    def secret(self) -> bytes: ...


class MailboxOpener:
    """One for the process."""

    def __init__(self, settings: Settings, keys: MultiFernet, capacity: Capacity) -> None:
        self._settings = settings
        self._keys = keys
        self._capacity = capacity

    @asynccontextmanager
    async def open(self, mailbox: Opened) -> AsyncIterator[MailSource]:
        """A source that connects with its first command. MailError; CredentialsRefused also for a
        lost key."""
        connection = mailbox.connection
        assert isinstance(connection, ImapConnection)  # noqa: S101
        async with open_imap(
            connection,
            self._decrypt(mailbox.secret),
            timeout_seconds=self._settings.imap_timeout_seconds,
            capacity=self._capacity,
        ) as imap:
            yield imap

    @asynccontextmanager
    async def look(self, mailbox: Opened) -> AsyncIterator[MailSource]:
        """A source for a look on request, which takes several answers of a slow server. MailError;
        ConnectionLost also when it is not done in time."""
        limit_seconds = self._settings.imap_timeout_seconds * LOOK_TIMEOUT_FACTOR
        with trio.move_on_after(limit_seconds) as patience:
            async with self.open(mailbox) as source:
                yield source
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
    return MailboxOpener(settings, keys, create_capacity(settings.imap_max_connections))
