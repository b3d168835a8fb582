"""The composition root: opens the resources, holds THE nursery, and stops in two phases.

The first SIGTERM or SIGINT: not ready, no new claims or waits, waiting clients are answered, cycles
end, then HTTP ends; exit within 10 s. A second signal ends the process at once.
"""

import gc
import logging
import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import trio
from cryptography.fernet import MultiFernet
from trio_util import move_on_when

from service.check.domain_check import open_domain_check
from service.db.migrate import check_schema
from service.db.pool import Database, open_database
from service.errors import DatabaseUnreachable
from service.extract.llm import open_llm
from service.extract.readers import open_readers
from service.health import Health
from service.listing import Listings
from service.loops import watchdog
from service.loops.enricher import Enricher
from service.loops.pipeline import Pipeline
from service.loops.poller import MailboxPoller, Poller
from service.loops.webhooks import Webhooks, create_sender
from service.opener import create_opener
from service.processing import Processor
from service.settings import Settings
from service.waits import Waits
from service.web.app import create_app
from service.web.server import serve_http

log = logging.getLogger(__name__)

CYCLE_GRACE_SECONDS = 5


@dataclass(frozen=True, slots=True)
class Resources:
    """What a running service is made of, for those who work beside it (`demo`)."""

    db: Database
    urls: list[str]


async def serve(
    settings: Settings,
    database_url: str,
    keys: MultiFernet,
    *,
    beside: Callable[[Resources], Awaitable[None]] | None = None,
) -> None:
    """Run the service until it is told to stop; `beside` runs with it and stops it by ending."""
    collect_garbage_rarely()
    health = Health()
    sender = create_sender(settings)
    http_may_end = trio.Event()
    async with (
        open_llm(settings) as llm,
        open_domain_check(settings) as domain_check,
        open_readers(settings.pipeline_concurrency, settings.read_limits) as readers,
        open_database(database_url) as db,
        trio.open_nursery() as services,
    ):
        opener = create_opener(settings, keys)
        waits = Waits(opener, settings, health.stopping)
        services.start_soon(stop_on_signals, health)
        await services.start(waits.run, name="waits")
        async with trio.open_nursery() as http:
            app = create_app(db, health, settings, Listings(opener, settings), waits)
            urls = await http.start(serve_http, app, settings.bind, http_may_end.wait)
            log.info("listening on %s", ", ".join(urls))
            async with move_on_when(health.stopping.wait):
                await connect_to_known_schema(db)
            mailboxes = MailboxPoller(db, settings, opener)
            processor = Processor(db, settings, readers, llm)
            async with trio.open_nursery() as loops:
                loops.start_soon(end_cycles, health, loops)
                loops.start_soon(Poller(db, settings, mailboxes, health).run, name="poller")
                loops.start_soon(Pipeline(db, settings, processor, health).run, name="pipeline")
                loops.start_soon(watchdog.run, db, settings, health, name="watchdog")
                if sender is not None:
                    loops.start_soon(Webhooks(db, sender, health).run, name="webhooks")
                if settings.enrich_enabled:
                    enricher = Enricher(db, settings, domain_check, health)
                    loops.start_soon(enricher.run, name="enricher")
                if beside is not None:
                    await beside(Resources(db, urls))
                    health.stopping.set()
            http_may_end.set()
        services.cancel_scope.cancel()
    log.info("stopped")


async def connect_to_known_schema(db: Database) -> None:
    """Connect, however long it takes. SchemaError when the schema is not that of this version."""
    while True:
        await db.connect_when_reachable()
        try:
            async with db.connection() as conn:
                await check_schema(conn)
        except DatabaseUnreachable as error:  # gone again
            log.warning("%s; trying again", error)
            await db.aclose()
        else:
            return


def collect_garbage_rarely() -> None:
    """What waits is no garbage, yet Python would look through all of it again and again.

    With 4,000 waiting clients that was more than half of the time that answering them took.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 100)


async def end_cycles(health: Health, loops: trio.Nursery) -> None:
    """Once stopping, the cycles under way have a moment to come to their end."""
    await health.stopping.wait()
    log.info("stopping: no new claims, cycles come to their end")
    loops.cancel_scope.deadline = trio.current_time() + CYCLE_GRACE_SECONDS


async def stop_on_signals(health: Health) -> None:
    """The first signal asks for the stop, the second one ends the process."""
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for number in signals:
            if health.stopping.is_set():
                os._exit(128 + number)
            health.stopping.set()
