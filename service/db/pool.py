"""The database connection pool and its rule: nothing but the database is awaited while a
connection is held.

With `notifications.py` the only importer of triopg, trio-asyncio and asyncpg. A database that is or
goes away comes out as `DatabaseUnreachable`, values that it will not have as one of
`REJECTED_ERRORS`.
"""

import asyncio
import inspect
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from typing import Any, Protocol, TypeVar

import asyncpg
import trio
import trio_asyncio
import triopg

from service.db.long_transactions import OpenTransactions
from service.errors import DatabaseBusy, DatabaseUnreachable, SchemaError, SettingsError
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

UniqueViolationError = asyncpg.UniqueViolationError
DuplicateTableError = asyncpg.DuplicateTableError
# Not reachable now, or gone in the middle: the same statement may work in a moment.
_UNREACHABLE_ERRORS = (
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.TooManyConnectionsError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.ReadOnlySQLTransactionError,  # a standby, until it is promoted
    asyncpg.ProtocolViolationError,  # what PgBouncer answers while its server is away
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
)
# It is there, and may do in a moment what it cannot do now.
_BUSY_ERRORS = (
    asyncpg.LockNotAvailableError,
    asyncpg.TransactionRollbackError,  # a deadlock
    asyncpg.QueryCanceledError,
    asyncpg.InsufficientResourcesError,  # of disk or memory
)
# The database will not have these values, however often they are sent.
REJECTED_ERRORS = (
    asyncpg.DataError,
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.ProgramLimitExceededError,
    ValueError,
    OverflowError,
)

MAX_CONNECTIONS = 10
CONNECT_TIMEOUT_SECONDS = 5
COMMAND_TIMEOUT_SECONDS = 30
END_TIMEOUT_SECONDS = 3
CALLBACKS_IN_A_ROW = 100
RETRY_SECONDS = 1
LOCK_TIMEOUT = "3s"
IDLE_IN_TRANSACTION_SECONDS = 5
IDLE_IN_TRANSACTION_TIMEOUT = f"{IDLE_IN_TRANSACTION_SECONDS}s"
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
        self._is_closed: Callable[[], bool] = conn.is_closed
        self._asked_at = time.monotonic()

    def __getattr__(self, name: str) -> Any:
        if not self._is_closed():
            self._asked_at = time.monotonic()
        return getattr(self._conn, name)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        try:
            async with _ending_in_time(self._conn.transaction(), lambda _: _cut(self._conn)):
                yield
        except asyncpg.InterfaceError as error:
            # The reason that PostgreSQL gives between two statements is lost in asyncpg.
            idle_seconds = time.monotonic() - self._asked_at
            if self._is_closed() and idle_seconds >= IDLE_IN_TRANSACTION_SECONDS:
                raise DatabaseUnreachable(
                    f"PostgreSQL has ended the transaction: it was idle for {idle_seconds:.1f} s, "
                    f"and {IDLE_IN_TRANSACTION_SECONDS} s is the limit"
                ) from error
            raise


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
        self._open_transactions = OpenTransactions()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """A short transaction; commits at the end of the block, rolls back on an exception.

        A nested `conn.transaction()` is a SAVEPOINT. Outbound I/O inside the block raises
        `IOInsideTransaction`. DatabaseUnreachable when PostgreSQL is or goes away.
        """
        place = _find_caller()
        async with self._hold_connection(place) as conn:
            with self._open_transactions.measure(place, trio_asyncio.current_loop.get()):
                async with conn.transaction():
                    yield conn

    def connection(self) -> AbstractAsyncContextManager[Connection]:
        """A connection for single statements that need no transaction around them."""
        return self._hold_connection(_find_caller())

    @asynccontextmanager
    async def _hold_connection(self, place: Place) -> AsyncIterator[Connection]:
        with _as_unreachable():
            if self._pool is None:
                raise ConnectionError("not connected yet")
            async with _ending_in_time(self._pool.acquire(), _cut) as conn:
                with holding_connection(place.at):
                    yield _Connection(conn)

    async def fetch(self, query: str, *args: object) -> Sequence[Any]:
        """The rows of one statement that stands alone, without what a connection costs.

        Errors as those of `connection`.
        """
        with _as_unreachable():  # and no mark: nothing of the caller runs in here
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
        with _as_unreachable():
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
            with suppress(*_UNREACHABLE_ERRORS, asyncio.CancelledError):
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
    async with _open_loop():
        db = Database(url)
        try:
            yield db
        finally:
            await db.aclose()


@asynccontextmanager
async def open_connection(url: str) -> AsyncIterator[Connection]:
    """One connection of its own. DatabaseUnreachable."""
    refuse_inside_transaction("connecting to the database")
    async with _open_loop(), _connect(url) as conn:
        yield conn


@asynccontextmanager
async def _open_loop() -> AsyncIterator[None]:
    """asyncpg's event loop; one error that leaves it comes out as itself, not in groups."""
    only: BaseException | None = None
    guard_libraries()
    try:
        async with trio_asyncio.open_loop() as loop:
            loop.set_exception_handler(_log_stray_error)
            _run_callbacks_in_rows(loop)
            yield
    except BaseExceptionGroup as group:
        only = group
        while isinstance(only, BaseExceptionGroup):
            if len(only.exceptions) > 1:
                raise
            only = only.exceptions[0]
    if only is not None:
        raise only  # out here, so that the group does not become its context


def _run_callbacks_in_rows(loop: Any) -> None:
    """trio-asyncio lets all of Trio have a turn after each callback, and a query takes a dozen.

    On a busy service each of them would wait for everybody: several are run in a row.
    """
    run_one = loop._main_loop_one

    async def run_several(no_wait: bool = False) -> None:
        await run_one(no_wait)
        with suppress(trio.WouldBlock):
            for _ in range(CALLBACKS_IN_A_ROW):
                await run_one(no_wait=True)

    loop._main_loop_one = run_several


def _log_stray_error(_loop: object, context: Mapping[str, Any]) -> None:
    """An error that nobody waits for any more, such as that of an abandoned attempt to connect.

    Without this, trio-asyncio would end everything that runs on the loop.
    """
    error = context.get("exception")
    level = logging.DEBUG if isinstance(error, _UNREACHABLE_ERRORS) else logging.ERROR
    log.log(level, "in asyncio: %s", context["message"], exc_info=error)


@asynccontextmanager
async def _connect(url: str) -> AsyncIterator[Connection]:
    connection = triopg.connect(
        url,
        timeout=CONNECT_TIMEOUT_SECONDS,
        command_timeout=COMMAND_TIMEOUT_SECONDS,
        statement_cache_size=0,
        connection_class=_CancellingConnection,
    )
    with _as_unreachable():
        async with AsyncExitStack() as stack:
            with _as_wrong_url():
                conn = await stack.enter_async_context(_ending_in_time(connection, _cut))
            with holding_connection(_find_caller().at):
                yield _Connection(conn)


async def _is_pooled_by_proxy(url: str) -> bool:
    """Whether a pooler such as PgBouncer is in between: it makes up the backend's pid."""
    async with _connect(url) as conn:
        return bool(await conn.fetchval("SELECT pg_backend_pid()") != conn.get_server_pid())


@contextmanager
def _as_unreachable() -> Iterator[None]:
    try:
        yield
    except REJECTED_ERRORS:
        raise
    except asyncpg.InsufficientPrivilegeError as error:
        raise SchemaError(
            f"PostgreSQL refused: {error}", hint="give the role of DATABASE_URL the rights it needs"
        ) from error
    except _UNREACHABLE_ERRORS as error:
        reason = str(error) or type(error).__name__
        raise DatabaseUnreachable(f"PostgreSQL cannot be reached: {reason}") from error
    except _BUSY_ERRORS as error:
        raise DatabaseBusy(f"PostgreSQL cannot do it now: {error}") from error


@contextmanager
def _as_wrong_url() -> Iterator[None]:
    """What the URL itself is to blame for; a parse error may quote a part of the password."""
    try:
        yield
    except (asyncpg.ClientConfigurationError, asyncpg.SyntaxOrAccessError) as error:
        raise SettingsError(f"DATABASE_URL: {error}") from error
    except ValueError:
        raise SettingsError(
            "DATABASE_URL: is no valid PostgreSQL URL",
            hint="percent-encode what is special in the user name and the password",
        ) from None


def storable_text(text: str) -> str:
    """The text as PostgreSQL takes it: without NUL and without halves of surrogate pairs."""
    return text.replace("\0", "").encode("utf-8", "replace").decode("utf-8")


async def _keep_session(_conn: object) -> None:
    """Nothing here sets session state, so there is nothing to reset between two users."""


def _find_caller() -> Place:
    """Who asked this module."""
    return find_place(_OWN_FILES.__contains__)
