"""The shield and the cadence of the loops: they never die, and stop when they are told to."""

import logging
from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing
from prometheus_client import REGISTRY

from service.errors import DatabaseUnreachable
from service.health import Health, Heartbeat
from service.loops.cycle import PAUSE_AFTER_FAILURE_SECONDS, run_cycles, shield
from service.loops.watchdog import restart_silent_loops


def failures(loop: str) -> float:
    return REGISTRY.get_sample_value("mailroom_cycle_failures_total", {"loop": loop}) or 0


class Loop:
    """Runs cycles that do what the steps say; a step is a pause in seconds or an error."""

    def __init__(self, *steps: float | Exception, interval_seconds: float = 60) -> None:
        self.heartbeat = Heartbeat("loop", interval_seconds)
        self.stopping = trio.Event()
        self.started_at: list[float] = []
        self._steps = list(steps)
        self._epoch = trio.current_time()

    async def run(self) -> float:
        """Until stopped; seconds on the clock at the end."""
        await run_cycles(self._cycle, heartbeat=self.heartbeat, stopping=self.stopping)
        return self._seconds()

    def _seconds(self) -> float:
        return round(trio.current_time() - self._epoch, 3)

    async def _cycle(self) -> float:
        self.started_at.append(self._seconds())
        step = self._steps.pop(0)
        if not self._steps:
            self.stopping.set()
        if isinstance(step, Exception):
            raise step
        return step


async def test_cycles_follow_each_other_after_the_pause_they_ask_for(
    autojump_clock: trio.testing.MockClock,
) -> None:
    loop = Loop(3, 0.5, 100, 1)
    await loop.run()
    assert loop.started_at == [0, 3, 3.5, 103.5]


@pytest.mark.expects_errors
async def test_an_error_is_logged_with_its_traceback_and_counted_and_the_next_cycle_runs(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    before = failures("loop")
    loop = Loop(ValueError("grumpy"), ExceptionGroup("two", [KeyError(1), OSError(2)]), 7, 1)
    await loop.run()
    pause = PAUSE_AFTER_FAILURE_SECONDS
    assert loop.started_at == [0, pause, 2 * pause, 2 * pause + 7]
    assert failures("loop") == before + 2
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 2
    assert "raise step\nValueError: grumpy" in caplog.text
    assert "KeyError: 1" in caplog.text


async def test_a_database_that_is_away_is_one_warning_without_a_traceback(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    before = failures("loop")
    await Loop(DatabaseUnreachable("PostgreSQL cannot be reached: gone"), 1).run()
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == "loop: PostgreSQL cannot be reached: gone; trying again"
    assert record.exc_info is None
    assert failures("loop") == before + 1


@pytest.mark.expects_errors
async def test_failures_in_a_row_are_counted_until_a_cycle_works(
    autojump_clock: trio.testing.MockClock,
) -> None:
    failing = Loop(*[ValueError()] * 4)
    await failing.run()
    assert failing.heartbeat.failures_in_a_row == 4
    recovered = Loop(ValueError(), ValueError(), 1)
    await recovered.run()
    assert recovered.heartbeat.failures_in_a_row == 0


@pytest.mark.expects_errors
async def test_a_fast_loop_tries_again_after_its_own_interval(
    autojump_clock: trio.testing.MockClock,
) -> None:
    loop = Loop(ValueError(), 1, interval_seconds=0.25)
    await loop.run()
    assert loop.started_at == [0, 0.25]


async def test_the_loop_beats_before_and_after_each_cycle(
    autojump_clock: trio.testing.MockClock,
) -> None:
    heartbeat, stopping = Heartbeat("loop", 10), trio.Event()
    ages: list[float] = []

    async def cycle() -> float:
        ages.append(heartbeat.age_seconds)
        await trio.sleep(8)
        return 5

    async with trio.open_nursery() as nursery:
        await trio.sleep(100)  # the heart has been silent when the loop begins
        nursery.start_soon(lambda: run_cycles(cycle, heartbeat=heartbeat, stopping=stopping))
        await trio.sleep(8 + 1)
        assert heartbeat.age_seconds == pytest.approx(1)
        stopping.set()
    assert ages == [0]


async def test_stopping_interrupts_the_pause(autojump_clock: trio.testing.MockClock) -> None:
    loop = Loop(3600, 1)

    async def stop_later() -> None:
        await trio.sleep(4)
        loop.stopping.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stop_later)
        assert await loop.run() == 4
    assert loop.started_at == [0]


async def test_nothing_runs_once_it_is_stopping(autojump_clock: trio.testing.MockClock) -> None:
    loop = Loop(1)
    loop.stopping.set()
    assert await loop.run() == 0
    assert loop.started_at == []


async def test_a_cancelled_loop_ends(autojump_clock: trio.testing.MockClock) -> None:
    loop = Loop(1000, 1000)
    with trio.move_on_after(10) as scope:
        await loop.run()
    assert scope.cancelled_caught
    assert loop.started_at == [0]


async def fail() -> None:
    raise ValueError("ordinary")


async def fail_when_cancelled() -> None:
    try:
        await trio.sleep_forever()
    finally:
        raise ValueError("ordinary")


async def cancelled_alone() -> None:
    await trio.sleep_forever()


async def cancelled_in_a_group() -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep_forever)
        await trio.sleep_forever()


@pytest.mark.parametrize("work", [cancelled_alone, cancelled_in_a_group])
async def test_a_cancellation_passes_in_silence(
    work: Callable[[], Awaitable[None]], autojump_clock: trio.testing.MockClock
) -> None:
    before = failures("quiet")
    with trio.move_on_after(1) as scope:
        with shield("quiet"):
            await work()
        pytest.fail("the cancellation was swallowed")
    assert scope.cancelled_caught
    assert failures("quiet") == before


@pytest.mark.expects_errors
async def test_of_a_cancellation_with_an_error_one_passes_and_the_other_is_logged(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    before = failures("mixed")
    with trio.move_on_after(1) as scope:
        with shield("mixed"):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(fail_when_cancelled)
                nursery.start_soon(trio.sleep_forever)
                await trio.sleep_forever()
        pytest.fail("the cancellation was swallowed")
    assert scope.cancelled_caught
    logged = caplog.records[0].exc_info
    assert logged is not None
    assert isinstance(logged[1], ExceptionGroup)
    assert [str(one) for one in logged[1].exceptions] == ["ordinary"]
    assert failures("mixed") == before + 1


@pytest.mark.expects_errors
async def test_an_error_whose_siblings_were_cancelled_by_it_is_swallowed_whole() -> None:
    with shield("siblings"):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail)
            nursery.start_soon(trio.sleep_forever)
    await trio.lowlevel.checkpoint()  # nobody here is cancelled


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_the_wish_to_end_the_process_passes(error: type[BaseException]) -> None:
    with pytest.raises(error), shield("ending"):
        raise error


@pytest.mark.expects_errors
def test_the_wish_to_end_the_process_passes_out_of_a_group(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(BaseExceptionGroup) as caught, shield("ending"):
        raise BaseExceptionGroup("both", [KeyboardInterrupt(), ValueError("ordinary")])
    assert [type(one) for one in caught.value.exceptions] == [KeyboardInterrupt]
    assert "ValueError: ordinary" in caplog.text


@pytest.mark.expects_errors
async def test_a_cycle_that_hangs_is_broken_off_by_the_watchdog_and_starts_anew(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    health = Health()
    stuck = health.add_heartbeat("stuck", 10)
    well = health.add_heartbeat("well", 1000)
    started_at: list[float] = []
    before = failures("stuck")
    epoch = trio.current_time()

    async def hang() -> float:
        started_at.append(trio.current_time() - epoch)
        if len(started_at) == 3:
            health.stopping.set()
            return 0
        await trio.sleep_forever()
        return 0

    async def watch() -> None:
        while not health.stopping.is_set():
            await trio.sleep(1)
            restart_silent_loops(health)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        nursery.start_soon(lambda: run_cycles(hang, heartbeat=stuck, stopping=health.stopping))
    late_after = 31  # three intervals, and the watchdog's next look
    pause = PAUSE_AFTER_FAILURE_SECONDS
    assert started_at == pytest.approx([0, late_after + pause, 2 * (late_after + pause)])
    assert failures("stuck") == before + 2
    assert [record.getMessage() for record in caplog.records] == [
        "stuck has not beaten for 31 s: its cycle is broken off and starts anew"
    ] * 2
    assert not well.is_late
