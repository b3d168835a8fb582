"""Rule 1, commit before I/O, as one small mechanism.

`db.pool` marks the context in which a database connection is held; every outbound client calls
`refuse_inside_transaction` before it starts. A context variable travels into nested calls, task
groups and threads, so none of them is a way around it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from service.errors import IOInsideTransaction

_held_at: ContextVar[str | None] = ContextVar("database_connection_held_at", default=None)


@contextmanager
def holding_connection(place: str) -> Iterator[None]:
    """Mark the block as one that holds a database connection, opened at `place` (file:line)."""
    token = _held_at.set(place)
    try:
        yield
    finally:
        _held_at.reset(token)


def refuse_inside_transaction(call: str) -> None:
    """Raise `IOInsideTransaction` if this context holds a database connection."""
    place = _held_at.get()
    if place is not None:
        raise IOInsideTransaction(
            f"{call} may not start while the database connection taken at {place} is held",
            hint="commit first, do the I/O, and write the result in a new short transaction",
        )
