"""A pause that the other side asked for (429): nobody asks before it is over."""

import math

import trio


class Pause:
    """One for all who ask the same; without a time given it grows from one to the next."""

    def __init__(self, *, first_seconds: float, max_seconds: float) -> None:
        self._first_seconds = first_seconds
        self._max_seconds = max_seconds
        self._next_seconds = first_seconds
        self._set_at = -math.inf
        self._until = -math.inf

    @property
    def seconds(self) -> float:
        """What is left of it, 0 when it is over."""
        return max(0.0, self._until - trio.current_time())

    def throttle(self, sent_at: float, retry_after_seconds: float | None) -> None:
        """A request sent at that time was refused for now.

        Of many that were under way together only the first makes the pause grow.
        """
        now = trio.current_time()
        if retry_after_seconds:
            self._until = max(self._until, now + retry_after_seconds)
        elif sent_at > self._set_at:
            self._until = max(self._until, now + self._next_seconds)
            self._next_seconds = min(2 * self._next_seconds, self._max_seconds)
        self._set_at = now

    def relax(self, sent_at: float) -> None:
        """A request sent at that time was taken."""
        if sent_at > self._set_at:
            self._next_seconds = self._first_seconds

    async def wait(self, give_up_at: float) -> bool:
        """Wait until it is over; False at once when that is later than `give_up_at`."""
        while self.seconds:
            if self._until > give_up_at:
                return False
            await trio.sleep_until(self._until)
        return True
