"""`/readyz`: what it says of loops that are silent, or whose cycles fail."""

from quart_trio import QuartTrio

from service.db.pool import Database
from service.health import Health
from service.web.health import FAILURES_IN_A_ROW, create_health_blueprint


async def test_a_loop_whose_cycles_fail_is_not_ready(db: Database) -> None:
    health = Health()
    loop, other = health.add_heartbeat("pipeline", 60), health.add_heartbeat("poller", 60)
    app = QuartTrio("test")
    app.register_blueprint(create_health_blueprint(db, health))
    client = app.test_client()

    async def look() -> tuple[int, str]:
        response = await client.get("/readyz")
        checks = (await response.get_json())["checks"]
        assert checks[other.name] == checks["database"] == "ok"
        return response.status_code, checks[loop.name]

    loop.failures_in_a_row = FAILURES_IN_A_ROW - 1
    assert await look() == (200, "ok")
    loop.failures_in_a_row = FAILURES_IN_A_ROW
    assert await look() == (503, f"failed {FAILURES_IN_A_ROW} times in a row, see the log")
    loop.failures_in_a_row = 0
    loop.last_beat -= 200
    assert await look() == (503, "silent for 200 s")
