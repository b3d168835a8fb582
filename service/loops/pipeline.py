"""The pipeline: claims pending attachments and works on them side by side.

A cycle claims until nothing is due; a NOTIFY wakes it, and it looks by itself every few seconds.
More is claimed than can be read at once, so that no reader waits for the database.
"""

from collections.abc import Sequence

import trio

from service.db.attachments import Claim, claim_attachments
from service.db.notifications import ATTACHMENT_CHANNEL, listen
from service.db.pool import Database
from service.health import Health
from service.loops.claims import ClaimedWork
from service.loops.cycle import run_cycles
from service.processing import Processor
from service.settings import Settings

LOOK_SECONDS = 2
PATIENCE_SECONDS = 10
SILENCE_SECONDS = 20  # PostgreSQL may take that long over a claim
CLAIMS_PER_READER = 8
INLINE_BYTES = 256 * 1024  # a larger file is loaded when its turn comes


class Pipeline:
    """The loop around `Processor`."""

    def __init__(
        self, db: Database, settings: Settings, processor: Processor, health: Health
    ) -> None:
        self._db = db
        self._processor = processor
        self._stopping = health.stopping
        self._heartbeat = health.add_heartbeat("pipeline", SILENCE_SECONDS)
        self._hint = trio.Event()
        slots = settings.pipeline_concurrency * CLAIMS_PER_READER
        if processor.wants_texts:  # reading is not what takes the time
            slots = settings.pipeline_concurrency + 2 * settings.llm_concurrency
        self._work = ClaimedWork(
            "pipeline",
            self._claim,
            processor.process,
            slots=slots,
            at_least=slots // 2,
            stopping=health.stopping,
        )

    async def run(self) -> None:
        """Work until the service stops; then what is under way comes to its end."""
        async with trio.open_nursery() as nursery, trio.open_nursery() as listening:
            listening.start_soon(listen, self._db, ATTACHMENT_CHANNEL, self.hint)

            async def cycle() -> float:
                return await self.claim_due_once(nursery)

            await run_cycles(
                cycle, heartbeat=self._heartbeat, stopping=self._stopping, sleep=self._sleep
            )
            listening.cancel_scope.cancel()

    def hint(self) -> None:
        """There may be something to claim: do not sleep on."""
        self._hint.set()

    async def claim_due_once(self, nursery: trio.Nursery) -> float:
        """Claim until nothing is due, each claim worked on in `nursery`; seconds to sleep then."""
        self._hint = trio.Event()
        while await self._work.start(nursery, patience_seconds=PATIENCE_SECONDS):
            self._heartbeat.beat()
        return LOOK_SECONDS

    async def _claim(self, limit: int) -> Sequence[Claim]:
        return await claim_attachments(
            self._db,
            limit=limit,
            inline_bytes=INLINE_BYTES,
            with_texts=self._processor.wants_texts,
        )

    async def _sleep(self, seconds: float) -> None:
        with trio.move_on_after(seconds):
            await self._hint.wait()
