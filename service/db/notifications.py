"""NOTIFY between replicas: a hint that there is work, never the only way to learn of it.

A listener's connection may die unnoticed, and behind a pooler there is none at all: whoever waits
for a hint looks by itself as well.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

import asyncpg
import trio
import trio_asyncio

from service.db.pool import CONNECT_TIMEOUT_SECONDS, Connection, Database
from service.outbound import refuse_inside_transaction

ATTACHMENT_CHANNEL = "mailroom_attachment"
RECONNECT_SECONDS = 5


async def notify(conn: Connection, channel: str) -> None:
    """Hint at new work, once the transaction is committed."""
    await conn.execute(f"NOTIFY {channel}")


async def listen(db: Database, channel: str, on_hint: Callable[[], None]) -> None:
    """Call `on_hint` at each NOTIFY, for ever; returns at once where a pooler is in between."""
    refuse_inside_transaction("listening to the database")
    while not db.is_proxied:
        await trio_asyncio.aio_as_trio(_listen)(db.url, channel, on_hint)
        await trio.sleep(RECONNECT_SECONDS)


async def _listen(url: str, channel: str, on_hint: Callable[[], None]) -> None:
    """Run by asyncio until the connection ends, in whatever way: the next query tells why."""
    with suppress(Exception):
        conn = await asyncpg.connect(url, timeout=CONNECT_TIMEOUT_SECONDS)
        ended = asyncio.Event()
        conn.add_termination_listener(lambda _: ended.set())
        try:
            await conn.add_listener(channel, lambda *_: on_hint())
            await ended.wait()
        finally:
            conn.terminate()
