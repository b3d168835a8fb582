"""What asyncpg raises, in groups, and as errors of our own.

A database that is or goes away comes out as `DatabaseUnreachable`, one that cannot do it now as
`DatabaseBusy`; values that it will not have stay what they are, one of `REJECTED_ERRORS`.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import asyncpg

from service.errors import DatabaseBusy, DatabaseUnreachable, SchemaError, SettingsError

UniqueViolationError = asyncpg.UniqueViolationError
DuplicateTableError = asyncpg.DuplicateTableError
# Not reachable now, or gone in the middle: the same statement may work in a moment.
UNREACHABLE_ERRORS = (
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


@contextmanager
def as_unreachable() -> Iterator[None]:
    """DatabaseUnreachable, DatabaseBusy, SchemaError; `REJECTED_ERRORS` pass unchanged."""
    try:
        yield
    except REJECTED_ERRORS:
        raise
    except asyncpg.InsufficientPrivilegeError as error:
        raise SchemaError(
            f"PostgreSQL refused: {error}", hint="give the role of DATABASE_URL the rights it needs"
        ) from error
    except UNREACHABLE_ERRORS as error:
        reason = str(error) or type(error).__name__
        raise DatabaseUnreachable(f"PostgreSQL cannot be reached: {reason}") from error
    except _BUSY_ERRORS as error:
        raise DatabaseBusy(f"PostgreSQL cannot do it now: {error}") from error


@contextmanager
def as_wrong_url() -> Iterator[None]:
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
