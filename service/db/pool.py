"""The database connection pool and its rule: nothing but the database is awaited while a
connection is held.

With its neighbours in this folder the only importer of triopg, trio-asyncio and asyncpg. A database
that is or goes away comes out as `DatabaseUnreachable`, values that it will not have as one of
`REJECTED_ERRORS`.
"""

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    suppress,
)
from typing import Any, Protocol, TypeVar

import asyncpg
import trio
import trio_asyncio
import triopg

from service.db.driver_errors import UNREACHABLE_ERRORS, as_unreachable, as_wrong_url
from service.db.event_loop import open_loop
from service.db.long_transactions import OpenTransactions
from service.errors import DatabaseUnreachable
from service.outbound import (
    Place,
    as_database_itself,
    find_place,
    guard_libraries,
    holding_connection,
    refuse_inside_transaction,
)

log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_CONNECTIONS = 10
CONNECT_TIMEOUT_SECONDS = 5
COMMAND_TIMEOUT_SECONDS = 30
END_TIMEOUT_SECONDS = 3
RETRY_SECONDS = 1
LOCK_TIMEOUT = "3s"
IDLE_IN_TRANSACTION_TIMEOUT = "5s"
_SHOW_IDLE_TIMEOUT = "SHOW idle_in_transaction_session_timeout"
_OWN_FILES = (__file__, inspect.getfile(asynccontextmanager))


class Connection(Protocol):
    """What the functions of the table modules need of a connection."""

    async def fetch(self, query: str, *args: object) -> Sequence[Any]: ...
    async def fetchrow(self, query: str, *args: object) -> Any: ...
    async def fetchval(self, query: str, *args: object) -> Any: ...
    async def execute(self, query: str, *args: object) -> str: ...
    async def copy_to_table(
        self,
        table: str,
        *,
        source: AsyncIterator[bytes],
        columns: Sequence[str],
        format: str,  # noqa: A002
    ) -> str: ...
    def transaction(self) -> AbstractAsyncContextManager[None]: ...
    def get_server_pid(self) -> int: ...


class _Connection:
    """A triopg connection whose transactions end in time."""

    def __init__(self, conn: Any) -> None:
        self._conn = conn

    def __getattr__(self, name: str) -> Any:
        return getattr(self._conn, name)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        try:
            async with _ending_in_time(self._conn.transaction(), lambda _: _cut(self._conn)):
                yield
        except asyncpg.InterfaceError as error:
            if not self._conn.is_closed():
                raise
            # What PostgreSQL said between two statements is lost in asyncpg.
            raise DatabaseUnreachable(
                "PostgreSQL cannot be reached: the connection ended in the middle of the "
                f"transaction; it ends one that is idle for {IDLE_IN_TRANSACTION_TIMEOUT}"
            ) from error


@asynccontextmanager
async def _ending_in_time(
    inner: AbstractAsyncContextManager[T], cut: Callable[[T], None]
) -> AsyncIterator[T]:
    """`inner`, whose end triopg shields from every cancellation and deadline.

    PostgreSQL has END_TIMEOUT_SECONDS for its part in it; then `cut` makes it fail.
    """
    loop = trio_asyncio.current_loop.get()
    timer: asyncio.TimerHandle | None = None
    try:
        async with inner as value:
            try:
                yield value
            finally:
                timer = loop.call_later(END_TIMEOUT_SECONDS, cut, value)
    finally:
        if timer is not None:
            timer.cancel()


def _cut(conn_or_pool: Any) -> None:
    conn_or_pool.terminate()


class Database:
    """The pool, from `open_database`; to be connected before its first use."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.is_proxied = False  # known once connected
        self._pool: Any = None
        self._open_transactions = OpenTransactions(trio_asyncio.current_loop.get())

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """A short transaction; commits at the end of the block, rolls back on an exception.

        A nested `conn.transaction()` is a SAVEPOINT. Outbound I/O inside the block raises
        `IOInsideTransaction`. DatabaseUnreachable when PostgreSQL is or goes away.
        """
        place = _find_caller()
        async with self._hold_connection(place) as conn:
            with self._open_transactions.measure(place):
                async with conn.transaction():
                    yield conn

    def connection(self) -> AbstractAsyncContextManager[Connection]:
        """A connection for single statements that need no transaction around them."""
        return self._hold_connection(_find_caller())

    @asynccontextmanager
    async def _hold_connection(self, place: Place) -> AsyncIterator[Connection]:
        with as_unreachable():
            if self._pool is None:
                raise ConnectionError("not connected yet")
            async with _ending_in_time(self._pool.acquire(), _cut) as conn:
                with holding_connection(place.at):
                    yield _Connection(conn)

    async def fetch(self, query: str, *args: object) -> Sequence[Any]:
        """The rows of one statement that stands alone, without what a connection costs.

        Errors as those of `connection`.
        """
        with as_unreachable():  # and no mark: nothing of the caller runs in here
            if self._pool is None:
                raise ConnectionError("not connected yet")
            rows: Sequence[Any] = await trio_asyncio.aio_as_trio(_fetch)(self._pool, query, args)
            return rows

    async def connect(self) -> None:
        """Make the pool, and know whether a pooler is in between. DatabaseUnreachable."""
        refuse_inside_transaction("connecting to the database")
        self.is_proxied = await _is_pooled_by_proxy(self.url)
        pool = triopg.create_pool(
            self.url,
            min_size=0,
            max_size=MAX_CONNECTIONS,
            timeout=CONNECT_TIMEOUT_SECONDS,
            command_timeout=COMMAND_TIMEOUT_SECONDS,
            # Behind a transaction pooler the next statement may run on another server connection.
            statement_cache_size=0 if self.is_proxied else 100,
            # A pooler refuses these as start-up parameters; there the role's own settings count.
            server_settings={}
            if self.is_proxied
            else {
                "idle_in_transaction_session_timeout": IDLE_IN_TRANSACTION_TIMEOUT,
                "lock_timeout": LOCK_TIMEOUT,
            },
            reset=_keep_session,
            connect=_connect_anywhere,
            connection_class=_CancellingConnection,
        )
        with as_unreachable():
            self._pool = await pool.__aenter__()

    async def connect_when_reachable(self) -> None:
        """Connect, however long it takes; says once per reason why not yet."""
        last_reason = ""
        while True:
            try:
                await self.connect()
            except DatabaseUnreachable as error:
                if str(error) != last_reason:
                    log.warning("%s; trying again until it can", error)
                    last_reason = str(error)
                await trio.sleep(RETRY_SECONDS)
            else:
                return

    async def aclose(self) -> None:
        """Close the pool; a PostgreSQL that does not answer is not waited for."""
        if self._pool is not None:
            # asyncpg lets its own cancellation out when the other side closes at the same moment.
            with suppress(*UNREACHABLE_ERRORS, asyncio.CancelledError):
                async with _ending_in_time(self._pool, _cut):
                    pass


class _CancellingConnection(asyncpg.Connection):  # type: ignore[misc]
    """asyncpg asks PostgreSQL to cancel a statement over a new connection, in a transaction too."""

    async def _cancel(self, *args: Any, **options: Any) -> None:
        with as_database_itself():
            await super()._cancel(*args, **options)


async def _connect_anywhere(*args: Any, **options: Any) -> Any:
    """A new connection of the pool, which may be wanted beside one that is held."""
    with as_database_itself():
        return await asyncpg.connect(*args, **options)


async def _fetch(pool: Any, query: str, args: Sequence[object]) -> Any:
    """Run by asyncio: triopg would go back and forth for each of these three steps."""
    # The time-out is for the acquisition, and again for the release.
    async with pool._asyncpg_pool.acquire(timeout=CONNECT_TIMEOUT_SECONDS) as conn:
        return await conn.fetch(query, *args)


@asynccontextmanager
async def open_database(url: str) -> AsyncIterator[Database]:
    """The event loop that asyncpg needs, and a `Database` on it that is not connected yet."""
    guard_libraries()
    async with open_loop():
        db = Database(url)
        try:
            yield db
        finally:
            await db.aclose()


@asynccontextmanager
async def open_connection(url: str) -> AsyncIterator[Connection]:
    """One connection of its own. DatabaseUnreachable."""
    guard_libraries()
    refuse_inside_transaction("connecting to the database")
    async with open_loop(), _connect(url) as conn:
        yield conn


@asynccontextmanager
async def _connect(url: str) -> AsyncIterator[Connection]:
    connection = triopg.connect(
        url,
        timeout=CONNECT_TIMEOUT_SECONDS,
        command_timeout=COMMAND_TIMEOUT_SECONDS,
        statement_cache_size=0,
        connection_class=_CancellingConnection,
    )
    with as_unreachable():
        async with AsyncExitStack() as stack:
            with as_wrong_url():
                conn = await stack.enter_async_context(_ending_in_time(connection, _cut))
            with holding_connection(_find_caller().at):
                yield _Connection(conn)


async def _is_pooled_by_proxy(url: str) -> bool:
    """Whether a pooler such as PgBouncer is in between: it makes up the backend's pid."""
    async with _connect(url) as conn:
        is_proxied = bool(await conn.fetchval("SELECT pg_backend_pid()") != conn.get_server_pid())
        if is_proxied and await conn.fetchval(_SHOW_IDLE_TIMEOUT) == "0":
            log.warning(
                "behind the pooler a forgotten transaction holds its connection for ever: "
                "run `python -m service migrate` with this role, which sets its time-outs"
            )
        return is_proxied


def storable_text(text: str) -> str:
    """The text as PostgreSQL takes it: without NUL and without halves of surrogate pairs."""
    return text.replace("\0", "").encode("utf-8", "replace").decode("utf-8")


async def _keep_session(_conn: object) -> None:
    """Nothing here sets session state, so there is nothing to reset between two users."""


def _find_caller() -> Place:
    """Who asked this module."""
    return find_place(_OWN_FILES.__contains__)
