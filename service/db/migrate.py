"""The schema's version: bring a database up to it, or refuse to run on another one.

Version 1 is `schema.sql`; each file `migrations/NNNN_what.sql` leads to version NNNN. A fresh
database gets `schema.sql` and is at once at the newest version. Idempotent, and safe when several
replicas start at once: an advisory lock of the transaction lets one through at a time.
"""

from importlib.resources import files
from pathlib import Path

from service.db.driver_errors import DuplicateTableError
from service.db.pool import (
    IDLE_IN_TRANSACTION_TIMEOUT,
    LOCK_TIMEOUT,
    Connection,
    open_connection,
)
from service.errors import SchemaError

_LOCK_KEY = 0x6D61696C726F6F6D  # "mailroom"

# Invariant: every later connection of this role to this database carries the time-outs, also
# through a pooler, which refuses them as start-up parameters.
_SET_TIMEOUTS = f"""
DO $$ BEGIN
    EXECUTE format('ALTER ROLE CURRENT_USER IN DATABASE %I SET
        idle_in_transaction_session_timeout = %L', current_database(),
        '{IDLE_IN_TRANSACTION_TIMEOUT}');
    EXECUTE format('ALTER ROLE CURRENT_USER IN DATABASE %I SET lock_timeout = %L',
        current_database(), '{LOCK_TIMEOUT}');
END $$
"""


def known_version() -> int:
    """The newest schema version that this code knows."""
    return max(_migrations(), default=1)


def _migrations() -> dict[int, str]:
    folder = files("service.db") / "migrations"
    return {
        int(entry.name.split("_")[0]): entry.read_text("utf-8")
        for entry in folder.iterdir()
        if entry.name.endswith(".sql")
    }


def _schema_sql() -> str:
    """`schema.sql`: beside this module in a wheel, at the top of the tree in a checkout."""
    packaged = files("service.db") / "schema.sql"
    if packaged.is_file():
        return packaged.read_text("utf-8")
    return (Path(__file__).parents[2] / "schema.sql").read_text("utf-8")


async def migrate(url: str) -> tuple[int, int]:
    """Bring the database up to `known_version()`; returns (version before, version now)."""
    async with open_connection(url) as conn, conn.transaction():
        await conn.execute("SET LOCAL lock_timeout = 0")  # others may be at it
        await conn.execute("SELECT pg_advisory_xact_lock($1)", _LOCK_KEY)
        before = await _current_version(conn)
        _refuse_newer(before)
        if before == 0:
            await _create_schema(conn)
        for version, sql in sorted(_migrations().items()):
            if 0 < before < version:
                await conn.execute(sql)
        if 0 < before < known_version():
            await conn.execute(
                "UPDATE schema_version SET version = $1, applied_at = now()", known_version()
            )
        await conn.execute(_SET_TIMEOUTS)
    return before, known_version()


async def _create_schema(conn: Connection) -> None:
    try:
        await conn.execute(_schema_sql())
    except DuplicateTableError as error:
        raise SchemaError(
            f"the database holds tables of something else: {error}",
            hint="give mailroom a database of its own",
        ) from error
    await conn.execute("INSERT INTO schema_version (version) VALUES ($1)", known_version())


async def check_schema(conn: Connection) -> None:
    """Raise `SchemaError` unless the database is exactly at the version that this code knows."""
    version = await _current_version(conn)
    _refuse_newer(version)
    if version < known_version():
        raise SchemaError(
            f"the database's schema is at version {version}, this service needs {known_version()}",
            hint="run: python -m service migrate",
        )


def _refuse_newer(version: int) -> None:
    if version > known_version():
        raise SchemaError(
            f"the database's schema is at version {version}, newer than the {known_version()} "
            "that this service knows",
            hint="run the version of mailroom that migrated it, or a later one",
        )


async def _current_version(conn: Connection) -> int:
    """0 for a database without our tables."""
    if await conn.fetchval("SELECT to_regclass('schema_version')") is None:
        return 0
    return int(await conn.fetchval("SELECT version FROM schema_version"))
