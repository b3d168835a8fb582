"""The cadence and the shield that every background loop shares: loops never die.

An exception of a cycle is logged, counted and swallowed; `trio.Cancelled`, also inside an
exception group, passes.
"""

import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import trio
from trio_util import move_on_when

from service import metrics
from service.errors import DatabaseUnreachable
from service.health import Heartbeat

log = logging.getLogger(__name__)

PAUSE_AFTER_FAILURE_SECONDS = 5


async def run_cycles(
    cycle: Callable[[], Awaitable[float]],
    *,
    heartbeat: Heartbeat,
    stopping: trio.Event,
    sleep: Callable[[float], Awaitable[None]] = trio.sleep,
) -> None:
    """Run `cycle` until `stopping`; it returns the seconds to `sleep` before the next one.

    The watchdog may break a cycle off (`Heartbeat.restart`): the next one follows.
    """
    while not stopping.is_set():
        heartbeat.beat()
        failures = heartbeat.failures_in_a_row + 1
        pause_seconds = min(PAUSE_AFTER_FAILURE_SECONDS, heartbeat.interval_seconds)
        with trio.CancelScope() as heartbeat.cycle_scope, shield(heartbeat.name):
            pause_seconds = await cycle()
            failures = 0
        heartbeat.failures_in_a_row = failures
        if heartbeat.cycle_scope.cancelled_caught:
            metrics.CYCLE_FAILURES.labels(heartbeat.name).inc()
        heartbeat.beat()
        async with move_on_when(stopping.wait):
            await sleep(pause_seconds)


@contextmanager
def shield(name: str) -> Iterator[None]:
    """Swallow, log and count whatever goes wrong inside, but for a cancellation."""
    try:
        yield
    except Exception as error:
        _report(name, error)
    except BaseExceptionGroup as group:
        passing, errors = group.split(_must_pass)
        if errors is not None:
            _report(name, errors)
        if passing is not None:
            raise passing from None


def _must_pass(error: BaseException) -> bool:
    """A cancellation and the like; a group is split by what is in it."""
    return not isinstance(error, Exception | BaseExceptionGroup)


def _report(name: str, error: BaseException) -> None:
    metrics.CYCLE_FAILURES.labels(name).inc()
    if isinstance(error, DatabaseUnreachable):
        log.warning("%s: %s; trying again", name, error)
    else:
        log.error("%s: a cycle failed; the next one follows", name, exc_info=error)
