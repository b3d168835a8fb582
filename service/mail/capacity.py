"""What the mail sessions of a process share."""

from dataclasses import dataclass

import trio


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the sessions of a process share.

    `connections` caps the sessions, each with its connections. `parsing` lets one thread at a time
    make sense of answers: several would win nothing under the interpreter's lock, but keep the
    event loop, and with it every open transaction, waiting for its turn.
    """

    connections: trio.CapacityLimiter
    parsing: trio.CapacityLimiter


def create_capacity(max_connections: int) -> Capacity:
    """The capacity of one process."""
    return Capacity(trio.CapacityLimiter(max_connections), trio.CapacityLimiter(1))
