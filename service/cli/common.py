"""What the sub-commands share: settings, the database, and output for people and machines."""

import dataclasses
import json
import signal
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import MAXYEAR, MINYEAR, UTC, datetime
from typing import Any, TypeVar

import click
import trio
from cryptography.fernet import MultiFernet
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from service import logs
from service.db.embedded import embedded_secret_key, run_embedded
from service.db.migrate import check_schema, migrate
from service.db.pool import Database, open_database
from service.errors import SettingsError
from service.settings import Settings, parse_keys

T = TypeVar("T")

PIPE_WIDTH = 10_000
# What the driver makes of PostgreSQL's, which no time zone can be applied to.
_INFINITIES = {MINYEAR: "-infinity", MAXYEAR: "infinity"}
EXIT_INTERRUPTED = 130  # as shells have it for SIGINT

json_option = click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")


def load_settings(**overrides: Any) -> Settings:
    """The settings, with logging configured by them."""
    settings = Settings.load(**overrides)
    logs.configure(settings)
    return settings


@contextmanager
def open_storage(settings: Settings) -> Iterator[str]:
    """The URL of the configured database; the embedded one is started and migrated."""
    if settings.database_url is not None:
        yield settings.database_url
        return
    with run_embedded(settings.service_data_dir) as url:
        trio.run(migrate, url)
        yield url


def load_keys(settings: Settings) -> MultiFernet:
    """The keys for stored credentials."""
    if settings.service_secret_key is not None:
        return parse_keys(settings.service_secret_key)
    if settings.database_url is not None:
        raise SettingsError(
            "SERVICE_SECRET_KEY: needed with DATABASE_URL, to encrypt mailbox passwords",
            hint="make one: python -c 'from cryptography.fernet import Fernet; "
            "print(Fernet.generate_key().decode())'",
        )
    return parse_keys(embedded_secret_key(settings.service_data_dir))


def run_with_database(settings: Settings, work: Callable[[Database], Awaitable[T]]) -> T:
    """Run `work` on a connected database whose schema is the one that this code knows."""

    async def main(url: str) -> T:
        async with open_database(url) as db:
            await db.connect()
            async with db.connection() as conn:
                await check_schema(conn)
            return await work(db)

    with open_storage(settings) as url:
        return trio.run(main, url)


async def wait_for_signal() -> None:
    """Return at the first SIGINT or SIGTERM."""
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            return


def parse_instant(text: str) -> datetime:
    """ISO 8601; without an offset it means UTC."""
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is no ISO 8601 time such as 2026-03-02T04:48:00Z"
        ) from None
    if not 1970 <= instant.year < 9999:
        raise click.BadParameter(f"{text!r} is out of range; for everything there is, say: all")
    return instant if instant.tzinfo is not None else instant.replace(tzinfo=UTC)


def check_text(name: str, value: str) -> str:
    """A value for the option `name` that is not blank and nothing that a terminal obeys."""
    if not value.strip() or not is_fit(value):
        raise click.BadParameter("must be text without control characters", param_hint=name)
    return value


def is_fit(text: str) -> bool:
    """Whether the text holds neither control characters nor bytes that are no UTF-8."""
    return not any(ord(one) < 32 or 0xD800 <= ord(one) <= 0xDFFF for one in text)


def print_json(value: object) -> None:
    """One JSON document; times as ISO 8601."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, default=_jsonable))


def _jsonable(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    raise TypeError(type(value).__name__)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table for people; an empty cell for None. Nothing is cut off; one line a row in a pipe."""
    table = Table(box=None, header_style="bold")
    for name in columns:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(escape(_cell(value)) for value in row))
    Console(width=None if sys.stdout.isatty() else PIPE_WIDTH).print(table)


def print_fields(fields: Sequence[tuple[str, object]]) -> None:
    """Names and values, one to a line."""
    width = max(len(name) for name, _ in fields)
    for name, value in fields:
        click.echo(f"{name:{width}}  {_cell(value)}")


def printable(text: str) -> str:
    """The text without characters that a terminal would obey."""
    return "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in text)


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        infinity = _INFINITIES.get(value.year)
        return infinity or value.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    return printable(str(value))
