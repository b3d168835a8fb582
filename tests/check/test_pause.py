"""Pauses and breakers by the clock: who is left alone, for how long, and who finds out."""

import logging

import pytest
import trio
from trio.testing import MockClock

from service.check.breaker import PROBE_SECONDS, Breaker
from service.check.pause import Pause


async def test_a_pause_doubles_up_to_its_limit_until_something_is_taken(
    autojump_clock: MockClock,
) -> None:
    pause = Pause(first_seconds=1, max_seconds=5)
    lengths = []
    for _ in range(4):
        pause.throttle(trio.current_time(), None)
        lengths.append(pause.seconds)
        await trio.sleep(pause.seconds + 0.1)
    assert lengths == pytest.approx([1, 2, 4, 5])
    pause.relax(trio.current_time())
    await trio.sleep(0.1)
    pause.throttle(trio.current_time(), None)
    assert pause.seconds == pytest.approx(1)


async def test_of_many_that_are_refused_together_one_makes_the_pause_grow(
    autojump_clock: MockClock,
) -> None:
    pause = Pause(first_seconds=1, max_seconds=60)
    sent_at = trio.current_time()
    await trio.sleep(0.1)
    for _ in range(10):
        pause.throttle(sent_at, None)
    assert pause.seconds == pytest.approx(1)


async def test_the_time_that_is_asked_for_is_waited_for_unless_it_is_too_long(
    autojump_clock: MockClock,
) -> None:
    pause = Pause(first_seconds=1, max_seconds=5)
    began = trio.current_time()
    pause.throttle(began, 30)
    assert not await pause.wait(began + 29)
    assert trio.current_time() == began
    assert await pause.wait(began + 31)
    assert trio.current_time() == pytest.approx(began + 30)


def create() -> Breaker:
    return Breaker("it", failures=2, first_open_seconds=10, max_open_seconds=35)


def fail(breaker: Breaker) -> None:
    with breaker.call() as call:
        call.failed("500")


async def test_a_breaker_stays_open_twice_as_long_each_time_up_to_its_limit(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    breaker = create()
    fail(breaker)
    assert breaker.open_seconds == 0
    lengths = []
    for _ in range(4):
        fail(breaker)
        lengths.append(breaker.open_seconds)
        await trio.sleep(breaker.open_seconds)
    assert lengths == pytest.approx([10, 20, 35, 35])
    assert len(caplog.records) == 1, "one warning, however long it lasts"


@pytest.mark.parametrize("is_reported", [True, False])
async def test_one_probe_at_a_time_and_only_its_success_closes(
    is_reported: bool, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    breaker = create()
    with breaker.call() as late:
        fail(breaker)
        fail(breaker)
        late.succeeded()
    assert breaker.open_seconds == 10, "it began before, and says nothing"
    await trio.sleep(10)
    with breaker.call() as probe:
        assert breaker.open_seconds == PROBE_SECONDS
        if is_reported:
            probe.succeeded()
    assert breaker.open_seconds == 0
    fail(breaker)
    # Closed, one failure is none yet; one that was cancelled leaves it half open.
    assert breaker.open_seconds == (0 if is_reported else 20)
    assert ("answers again" in caplog.text) is is_reported
