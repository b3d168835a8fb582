"""`/healthz`: the process lives. `/readyz`: the database answers and the loops beat."""

from dataclasses import dataclass

import trio
from quart import Blueprint, Response, jsonify
from quart_schema import document_response

from service.db.pool import Database
from service.errors import MailroomError
from service.health import Health, Heartbeat

DATABASE_TIMEOUT_SECONDS = 2
FAILURES_IN_A_ROW = 3


@dataclass(frozen=True, slots=True)
class Readiness:
    """What each check found, and whether all are well."""

    status: str
    checks: dict[str, str]


def create_health_blueprint(db: Database, health: Health) -> Blueprint:
    """The two probes over this database and these heartbeats."""
    blueprint = Blueprint("health", __name__)

    @blueprint.get("/healthz")
    async def healthz() -> Response:
        """Say that the process lives."""
        return jsonify(status="alive")

    @blueprint.get("/readyz")
    @document_response(Readiness)
    @document_response(Readiness, 503)
    async def readyz() -> tuple[Response, int]:
        """Say whether this replica can serve, and what each check found."""
        checks = {beat.name: _beat_check(beat) for beat in health.heartbeats}
        checks["database"] = await _database_check(db)
        checks["loops"] = "ok" if health.heartbeats else "not started yet"
        if health.stopping.is_set():
            checks["service"] = "stopping"
        ready = all(check == "ok" for check in checks.values())
        status = "ready" if ready else "not ready"
        return jsonify(status=status, checks=checks), 200 if ready else 503

    return blueprint


def _beat_check(beat: Heartbeat) -> str:
    if beat.is_late:
        return f"silent for {beat.age_seconds:.0f} s"
    if beat.failures_in_a_row >= FAILURES_IN_A_ROW:
        return f"failed {beat.failures_in_a_row} times in a row, see the log"
    return "ok"


async def _database_check(db: Database) -> str:
    with trio.move_on_after(DATABASE_TIMEOUT_SECONDS):
        try:
            async with db.connection() as conn:
                await conn.fetchval("SELECT 1")
        except MailroomError as error:
            return str(error)
        return "ok"
    return f"no answer within {DATABASE_TIMEOUT_SECONDS} s"
