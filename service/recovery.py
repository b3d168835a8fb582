"""Giving back attachments that got stuck: at the end of a poll cycle, and by the watchdog."""

import logging

from service import metrics
from service.db.attachments import recover_stuck_attachments
from service.db.outbox import announce_completed
from service.db.pool import Database
from service.settings import Settings

log = logging.getLogger(__name__)


async def recover_stuck_requests(db: Database, settings: Settings) -> int:
    """Release, or fail after the last attempt, what is `processing` for too long; how many."""
    async with db.transaction() as conn:
        rows = await recover_stuck_attachments(
            conn,
            stuck_after_seconds=settings.watchdog_stuck_after_seconds,
            max_attempts=settings.pipeline_max_attempts,
        )
        failed = {row["request_id"] for row in rows if row["status"] == "failed"}
        if failed and settings.sends_webhooks:
            await announce_completed(conn, sorted(failed))
    for row in rows:
        log.warning("attachment %s is %s: %s", row["id"], row["status"], row["error"])
    metrics.ATTACHMENTS_RELEASED.inc(len(rows))
    return len(rows)
