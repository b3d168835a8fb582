"""The webhook loop: claims due events of the outbox and delivers them side by side.

An event is delivered at least once, under the same id each time. One that the receiver does not
take is tried again on a schedule of more than three days, then given up, visibly: in the log, in
the metric and in `webhook list`.
"""

import logging
import random
from collections.abc import Sequence
from contextlib import suppress

import trio

from service import metrics
from service.db.outbox import (
    EventClaim,
    claim_due,
    complete_delivery,
    fail_delivery,
    release_delivery,
)
from service.db.pool import Database
from service.errors import ClaimLost, DatabaseUnreachable, TryLater
from service.health import Health
from service.loops.claims import ClaimedWork
from service.loops.cycle import run_cycles
from service.settings import Settings
from service.webhook import WebhookSender

log = logging.getLogger(__name__)

LOOK_SECONDS = 2
SILENCE_SECONDS = 20  # PostgreSQL may take that long over a claim
CONCURRENCY = 8
RELEASE_TIMEOUT_SECONDS = 2
# After the first, second … failed attempt, as the Standard Webhooks specification suggests.
RETRY_DELAYS_SECONDS = (5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400)
JITTER = 0.2  # what failed together is not to come back together


def decide_delay(attempts_before: int, retry_after_seconds: float | None) -> float | None:
    """Seconds until the next attempt after one that failed; None: that was the last one."""
    if attempts_before >= len(RETRY_DELAYS_SECONDS):
        return None
    jitter = random.uniform(1, 1 + JITTER)  # noqa: S311 - nothing secret
    return max(RETRY_DELAYS_SECONDS[attempts_before] * jitter, retry_after_seconds or 0)


def create_sender(settings: Settings) -> WebhookSender | None:
    """The sender to the receiver of `settings`, None when there is none. SettingsError."""
    if settings.webhook_url is None or settings.webhook_secret is None:
        return None
    return WebhookSender(
        settings.webhook_url,
        settings.webhook_secret,
        allow_private=settings.webhook_allow_private,
    )


class Webhooks:
    """The loop around `WebhookSender`."""

    def __init__(self, db: Database, sender: WebhookSender, health: Health) -> None:
        self._db = db
        self._sender = sender
        self._stopping = health.stopping
        self._heartbeat = health.add_heartbeat("webhooks", SILENCE_SECONDS)
        self._work = ClaimedWork(
            "webhook", self._claim, self.deliver, slots=CONCURRENCY, stopping=health.stopping
        )

    async def run(self) -> None:
        """Deliver until the service stops; then the deliveries under way come to their end."""
        async with trio.open_nursery() as nursery:

            async def cycle() -> float:
                await self.deliver_due_once(nursery)
                return LOOK_SECONDS

            await run_cycles(cycle, heartbeat=self._heartbeat, stopping=self._stopping)

    async def deliver_due_once(self, nursery: trio.Nursery) -> None:
        """Claim until nothing is due or no slot gets free, each delivery in `nursery`."""
        while await self._work.start(nursery, patience_seconds=LOOK_SECONDS):
            self._heartbeat.beat()

    async def deliver(self, claim: EventClaim) -> None:
        """One attempt, recorded in the event's row; a cancelled one is given back."""
        try:
            await self._deliver(claim)
        except ClaimLost as lost:
            log.info("%s", lost)
        except trio.Cancelled:
            with trio.move_on_after(RELEASE_TIMEOUT_SECONDS, shield=True):
                with suppress(ClaimLost, DatabaseUnreachable):
                    async with self._db.connection() as conn:
                        await release_delivery(conn, claim)
            raise

    async def _claim(self, limit: int) -> Sequence[EventClaim]:
        async with self._db.connection() as conn:
            return await claim_due(conn, limit)

    async def _deliver(self, claim: EventClaim) -> None:
        try:
            await self._sender.send(claim.event_id, claim.stamp, claim.payload)
        except Exception as error:
            if not isinstance(error, TryLater):
                log.exception("webhook %s: an attempt crashed", claim.event_id)
            asked_seconds = getattr(error, "retry_after_seconds", None)
            delay_seconds = decide_delay(claim.attempts, asked_seconds)
            async with self._db.connection() as conn:
                await fail_delivery(conn, claim, str(error), delay_seconds=delay_seconds)
            self._report_failure(claim, error, delay_seconds)
        else:
            async with self._db.connection() as conn:
                await complete_delivery(conn, claim)
            metrics.WEBHOOKS.labels("delivered").inc()

    def _report_failure(
        self, claim: EventClaim, error: Exception, delay_seconds: float | None
    ) -> None:
        metrics.WEBHOOKS.labels("given_up" if delay_seconds is None else "failed").inc()
        what_next = (
            f"given up; to send it after all: python -m service webhook retry {claim.id}"
            if delay_seconds is None
            else f"next attempt in {delay_seconds:.0f} s"
        )
        log.warning(
            "webhook %s of request %d to %s, attempt %d: %s; %s",
            claim.event_id,
            claim.request_id,
            self._sender.receiver,
            claim.attempts + 1,
            error,
            what_next,
        )
