"""Giving back attachments that got stuck: at the end of a poll cycle, and by the watchdog."""

import logging

from service import metrics
from service.db import attachments
from service.db.pool import Database
from service.settings import Settings

log = logging.getLogger(__name__)


async def recover_stuck_requests(db: Database, settings: Settings) -> int:
    """Release, or fail after the last attempt, what is `processing` for too long; how many."""
    async with db.transaction() as conn:
        rows = await attachments.recover_stuck_requests(
            conn,
            stuck_after_seconds=settings.watchdog_stuck_after_seconds,
            max_attempts=settings.pipeline_max_attempts,
        )
    for row in rows:
        log.warning("attachment %s is %s: %s", row["id"], row["status"], row["error"])
    metrics.ATTACHMENTS_RELEASED.inc(len(rows))
    return len(rows)
