"""`serve` and `migrate`."""

import click
import trio

from service.cli.common import load_keys, load_settings, open_storage
from service.db.migrate import migrate as migrate_database


@click.command()
def serve() -> None:
    """Run the service until SIGTERM or Ctrl-C."""
    from service import supervisor  # slow to import, and needed by no other command

    settings = load_settings()
    keys = load_keys(settings)
    with open_storage(settings) as url:
        trio.run(supervisor.serve, settings, url, keys)


@click.command()
def migrate() -> None:
    """Bring the database's schema up to this version; safe to repeat and to run in parallel."""
    settings = load_settings()
    with open_storage(settings) as url:
        before, now = trio.run(migrate_database, url)
    click.echo(f"schema is at version {now}" + (f", was {before}" if before != now else ""))
