"""A circuit breaker: who fails again and again is left alone for a while.

After some failures in a row nobody asks until a time is over; then one probe at a time decides
whether it closes or stays open twice as long. Not the library `circuitbreaker`: there a half-open
one lets everybody through at once, a cancelled call counts as a success, and the time never grows.
"""

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager

import trio

log = logging.getLogger(__name__)

PROBE_SECONDS = 1  # a probe is under way: what comes of it is known soon


class Breaker:
    """One for each that is asked; `name` is what the log calls it."""

    def __init__(
        self, name: str, *, failures: int, first_open_seconds: float, max_open_seconds: float
    ) -> None:
        self._name = name
        self._failures_allowed = failures
        self._first_open_seconds = first_open_seconds
        self._max_open_seconds = max_open_seconds
        self._failures = 0
        self._open_seconds = 0.0  # 0: closed
        self._open_until = -math.inf
        self._is_probing = False

    @property
    def open_seconds(self) -> float:
        """For how long nobody is to ask; 0: one may."""
        if not self._open_seconds:
            return 0
        left_seconds = max(0.0, self._open_until - trio.current_time())
        return left_seconds or (PROBE_SECONDS if self._is_probing else 0)

    @contextmanager
    def call(self) -> Iterator["Call"]:
        """Around one call, made while `open_seconds` is 0. One that reports nothing counts not."""
        call = Call(self, is_probe=self._open_seconds > 0)
        self._is_probing |= call.is_probe
        try:
            yield call
        finally:
            if call.is_probe:
                self._is_probing = False

    def count_failure(self, reason: str, *, is_probe: bool) -> None:
        """See `Call.failed`."""
        if self._open_seconds and not is_probe:
            return  # it began before this was opened, and says nothing new
        self._failures += 1
        if is_probe:
            self._open(min(2 * self._open_seconds, self._max_open_seconds))
        elif self._failures >= self._failures_allowed:
            self._open(self._first_open_seconds)
            log.warning(
                "%s failed %d times in a row, the last time: %s; it is left alone for %g s",
                self._name,
                self._failures,
                reason,
                self._open_seconds,
            )

    def count_success(self, *, is_probe: bool) -> None:
        """See `Call.succeeded`."""
        if self._open_seconds and not is_probe:
            return
        if is_probe:
            log.info("%s answers again, after %d failures", self._name, self._failures)
        self._failures = 0
        self._open_seconds = 0

    def _open(self, seconds: float) -> None:
        self._open_seconds = seconds
        self._open_until = trio.current_time() + seconds


class Call:
    """One call under a breaker, to be told how it went."""

    def __init__(self, breaker: Breaker, *, is_probe: bool) -> None:
        self._breaker = breaker
        self.is_probe = is_probe

    def succeeded(self) -> None:
        """The other side works."""
        self._breaker.count_success(is_probe=self.is_probe)

    def failed(self, reason: str) -> None:
        """It does not."""
        self._breaker.count_failure(reason, is_probe=self.is_probe)
