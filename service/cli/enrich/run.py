"""`enrich run`: the enricher alone, in the foreground."""

import sys

import click
import trio
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from service.check.domain_check import open_domain_check
from service.cli.common import (
    EXIT_INTERRUPTED,
    json_option,
    load_settings,
    print_json,
    run_with_database,
    wait_for_signal,
)
from service.db.enrich_status import count_due
from service.db.pool import Database
from service.errors import MailroomError
from service.health import Health
from service.loops.enricher import Enricher
from service.settings import Settings

PROGRESS_SECONDS = 0.2
GRACE_SECONDS = 5


@click.command()
@click.option("--once", is_flag=True, help="End when nothing is due.")
@json_option
def run(once: bool, as_json: bool) -> None:
    """Check the addresses of the rows that are due, as the service does; until Ctrl-C or --once.

    What stays unknown is tried again later, by the service or the next run.
    """
    settings = load_settings()

    async def work(db: Database) -> tuple[Enricher, int, bool]:
        health = Health()
        async with open_domain_check(settings) as check, trio.open_nursery() as nursery:
            enricher = Enricher(db, settings, check, health)
            nursery.start_soon(_stop_at_signal, health, nursery)
            await nursery.start(_show_progress, db, settings, enricher)
            await (enricher.run_until_idle() if once else enricher.run())
            nursery.cancel_scope.cancel()
        return enricher, await _count_due(db, settings), health.stopping.is_set()

    enricher, left, is_interrupted = run_with_database(settings, work)
    counts = {verdict: enricher.decided[verdict] for verdict in ("valid", "invalid", "unknown")}
    if as_json:
        print_json({**counts, "failed": enricher.failed, "due": left})
    else:
        click.echo(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    if is_interrupted:
        click.echo(f"stopped; {left} rows are due", err=True)
        raise click.exceptions.Exit(EXIT_INTERRUPTED)
    if enricher.failed:
        raise MailroomError(f"{enricher.failed} rows failed; the log says why")
    if left:
        raise MailroomError(
            f"{left} rows are still due: asking is of no use now", hint="see: enrich status"
        )


async def _stop_at_signal(health: Health, nursery: trio.Nursery) -> None:
    """Nothing new is begun; what is under way has a moment to come to its end."""
    await wait_for_signal()
    health.stopping.set()
    nursery.cancel_scope.deadline = trio.current_time() + GRACE_SECONDS


async def _count_due(db: Database, settings: Settings) -> int:
    async with db.connection() as conn:
        return await count_due(conn, row_claim_seconds=settings.watchdog_stuck_after_seconds)


async def _show_progress(
    db: Database,
    settings: Settings,
    enricher: Enricher,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """A bar on standard error; nothing where that is no terminal."""
    total = await _count_due(db, settings)
    task_status.started()
    with Progress(
        TextColumn("checking"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    ) as progress:
        task = progress.add_task("checking", total=total)
        while True:
            progress.update(task, completed=enricher.decided.total())
            await trio.sleep(PROGRESS_SECONDS)
