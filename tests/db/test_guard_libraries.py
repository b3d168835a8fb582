"""Rule 1 over the calls of many libraries: refused wherever in a transaction, silent outside it."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest
import trio

from service.db.pool import Database, open_database
from tests.db import guard_calls
from tests.db.guard_calls import (
    ASYNC_CALLS,
    BLOCKING_CALLS,
    LEAVE_NO_TRACE,
    OWN_EVENT_LOOP,
    STARTED_IN_A_TASK_OF_THE_LIBRARY,
)
from tests.db.guard_peer import Peer
from tests.servers import PostgresCluster

Call = Callable[[], Awaitable[None]]
PLACES = re.compile(
    r"may not start at (?P<started>\S+):\d+"
    r" while the database connection taken at (?P<taken>\S+):\d+ is held"
)


@pytest.fixture(scope="module")
def peer() -> Iterator[Peer]:
    with Peer() as peer:
        yield peer


@pytest.fixture
async def db(postgres: PostgresCluster) -> AsyncIterator[Database]:
    """On the one database that is always there: nothing is stored here."""
    async with open_database(postgres.url) as database:
        await database.connect()
        yield database


def read_errors(error: BaseException | None) -> Iterator[BaseException]:
    """Libraries wrap: in groups, in errors of their own, and dnspython in words alone."""
    if error is not None:
        yield error
        inner = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
        for one in (*inner, error.__cause__, error.__context__):
            yield from read_errors(one)


async def find_refusal(call: Call) -> re.Match[str] | None:
    """The two places that the refusal names, None if it was not refused."""
    try:
        await call()
    except Exception as error:
        found = (PLACES.search(str(one)) for one in read_errors(error))
        return next(filter(None, found), None)
    return None


async def expect_refusal(peer: Peer, name: str, call: Call) -> None:
    before = peer.contacts
    places = await find_refusal(call)
    assert places is not None
    assert places["taken"] == __file__
    if name not in STARTED_IN_A_TASK_OF_THE_LIBRARY:
        assert places["started"] == guard_calls.__file__
    assert peer.contacts == before


async def expect_contact(peer: Peer, name: str, call: Call) -> None:
    before = peer.contacts
    assert await find_refusal(call) is None
    if name not in LEAVE_NO_TRACE:
        await trio.to_thread.run_sync(peer.wait_for_contact, before)


async def refuse_everywhere(db: Database, peer: Peer, name: str, call: Call) -> None:
    async def in_nursery() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)

    async with db.transaction() as conn:
        await expect_refusal(peer, name, call)
        await expect_refusal(peer, name, in_nursery)
        async with conn.transaction():
            await expect_refusal(peer, name, call)
        assert await conn.fetchval("SELECT 1") == 1
    async with db.connection() as conn:
        await expect_refusal(peer, name, call)
        async with conn.transaction():
            await expect_refusal(peer, name, call)


@pytest.mark.parametrize("name", ASYNC_CALLS)
async def test_an_async_call(db: Database, peer: Peer, name: str) -> None:
    async def call() -> None:
        await ASYNC_CALLS[name](peer)

    await refuse_everywhere(db, peer, name, call)
    await expect_contact(peer, name, call)


@pytest.mark.parametrize("name", BLOCKING_CALLS)
async def test_a_blocking_call(db: Database, peer: Peer, name: str) -> None:
    async def at_once() -> None:
        BLOCKING_CALLS[name](peer)

    async def in_thread() -> None:
        await trio.to_thread.run_sync(BLOCKING_CALLS[name], peer)

    if name not in OWN_EVENT_LOOP:
        await refuse_everywhere(db, peer, name, at_once)
    await refuse_everywhere(db, peer, name, in_thread)
    await expect_contact(peer, name, in_thread)
