"""What `/readyz` and the stop need to know: the loops' heartbeats and the wish to stop."""

from dataclasses import dataclass, field

import trio

LATE_AFTER_INTERVALS = 3


@dataclass
class Heartbeat:
    """The sign of life of one loop, which beats at least once per interval while it is well."""

    name: str
    interval_seconds: float
    last_beat: float = field(default_factory=trio.current_time)
    failures_in_a_row: int = 0
    cycle_scope: trio.CancelScope = field(default_factory=trio.CancelScope)

    def beat(self) -> None:
        """Record a sign of life."""
        self.last_beat = trio.current_time()

    def restart(self) -> None:
        """Break off the cycle under way, so that the loop begins a new one."""
        self.cycle_scope.cancel()

    @property
    def age_seconds(self) -> float:
        """Seconds since the last sign of life."""
        return trio.current_time() - self.last_beat

    @property
    def is_late(self) -> bool:
        """Whether the loop has been silent for three intervals."""
        return self.age_seconds > LATE_AFTER_INTERVALS * self.interval_seconds


@dataclass
class Health:
    """The service's state; `stopping` is set by the first signal and never cleared."""

    stopping: trio.Event = field(default_factory=trio.Event)
    heartbeats: list[Heartbeat] = field(default_factory=list)

    def add_heartbeat(self, name: str, interval_seconds: float) -> Heartbeat:
        """Watch one more loop."""
        heartbeat = Heartbeat(name, interval_seconds)
        self.heartbeats.append(heartbeat)
        return heartbeat
