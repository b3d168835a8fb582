"""How long transactions take: a metric by the place in the code, and two warnings for a long one.

The first comes while it is still open and says where its task is, so that one that hangs is seen;
the second says at its end how long it took.
"""

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from traceback import StackSummary

import trio

from service import metrics
from service.outbound import Place

log = logging.getLogger(__name__)

LONG_SECONDS = 1
MAX_FRAMES = 15  # the innermost


@dataclass(eq=False, slots=True)
class _Transaction:
    place: Place
    task: trio.lowlevel.Task
    began: float
    is_reported: bool = False


class OpenTransactions:
    """Those of one pool, under one timer: a timer each is a tenth of a short one's whole cost."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._open: dict[_Transaction, None] = {}  # the oldest first
        self._is_watched = False

    @contextmanager
    def measure(self, place: Place) -> Iterator[None]:
        """Around a transaction of this task, begun at `place`."""
        one = _Transaction(place, trio.lowlevel.current_task(), time.perf_counter())
        self._open[one] = None
        if not self._is_watched:
            self._watch()
        try:
            yield
        finally:
            del self._open[one]
            seconds = time.perf_counter() - one.began
            metrics.TRANSACTION_SECONDS.labels(place.function).observe(seconds)
            if seconds > LONG_SECONDS:
                log.warning("the transaction %s took %.1f s", _describe(place), seconds)

    def _watch(self) -> None:
        """Report those that are long, and come back when the next one is."""
        now = time.perf_counter()
        self._is_watched = False
        for one in self._open:
            if one.is_reported:
                continue
            left_seconds = one.began + LONG_SECONDS - now
            if left_seconds > 0:
                self._loop.call_later(left_seconds, self._watch)
                self._is_watched = True
                return
            one.is_reported = True
            _report(one)


def _report(one: _Transaction) -> None:
    stack = StackSummary.extract(one.task.iter_await_frames(), limit=-MAX_FRAMES)
    log.warning(
        "the transaction %s has been open for %g s; its task is at:\n%s",
        _describe(one.place),
        LONG_SECONDS,
        "".join(stack.format()).rstrip(),
    )


def _describe(place: Place) -> str:
    return f"{place.function}, begun at {place.at},"
