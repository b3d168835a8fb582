"""Heartbeats: late after three intervals of silence, and well again with the next beat."""

import pytest
import trio
import trio.testing

from service.health import Health, Heartbeat


@pytest.mark.parametrize("interval_seconds", [0.5, 120])
async def test_a_loop_is_late_after_three_intervals(
    interval_seconds: float, autojump_clock: trio.testing.MockClock
) -> None:
    heartbeat = Heartbeat("poller", interval_seconds)
    assert heartbeat.age_seconds == 0
    await trio.sleep(2.9 * interval_seconds)
    assert not heartbeat.is_late
    await trio.sleep(0.2 * interval_seconds)
    assert heartbeat.is_late
    assert heartbeat.age_seconds == pytest.approx(3.1 * interval_seconds)
    heartbeat.beat()
    assert not heartbeat.is_late
    assert heartbeat.age_seconds == 0


async def test_health_starts_without_loops_and_without_a_wish_to_stop() -> None:
    health = Health()
    assert not health.stopping.is_set()
    assert health.heartbeats == []
    assert Health().stopping is not health.stopping


async def test_each_loop_has_a_heartbeat_of_its_own(
    autojump_clock: trio.testing.MockClock,
) -> None:
    health = Health()
    fast, slow = health.add_heartbeat("fast", 1), health.add_heartbeat("slow", 60)
    assert health.heartbeats == [fast, slow]
    await trio.sleep(10)
    assert [beat.name for beat in health.heartbeats if beat.is_late] == ["fast"]
