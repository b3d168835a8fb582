"""The watchdog: gives back what got stuck, and starts anew the loop that has fallen silent."""

import logging

from service.db.pool import Database
from service.health import Health
from service.loops.cycle import run_cycles
from service.recovery import recover_stuck_requests
from service.settings import Settings

log = logging.getLogger(__name__)

INTERVAL_SECONDS = 60


async def run(db: Database, settings: Settings, health: Health) -> None:
    """Watch until the service stops."""
    interval_seconds = min(INTERVAL_SECONDS, settings.watchdog_stuck_after_seconds)

    async def cycle() -> float:
        await watch_once(db, settings, health)
        return interval_seconds

    heartbeat = health.add_heartbeat("watchdog", interval_seconds)
    await run_cycles(cycle, heartbeat=heartbeat, stopping=health.stopping)


async def watch_once(db: Database, settings: Settings, health: Health) -> int:
    """One look; returns how many attachments were given back."""
    restart_silent_loops(health)
    return await recover_stuck_requests(db, settings)


def restart_silent_loops(health: Health) -> None:
    """Break off the cycle of each loop that has not beaten for three intervals."""
    for heartbeat in health.heartbeats:
        if heartbeat.is_late:
            log.error(
                "%s has not beaten for %.0f s: its cycle is broken off and starts anew",
                heartbeat.name,
                heartbeat.age_seconds,
            )
            heartbeat.restart()
