"""How long a request waits for the database: after that it counts as unreachable."""

from collections.abc import Iterator
from contextlib import contextmanager

import trio

from service.errors import DatabaseUnreachable

DATABASE_TIMEOUT_SECONDS = 5


@contextmanager
def database_deadline() -> Iterator[None]:
    """What a request asks of the database in the block. DatabaseUnreachable when it takes long."""
    try:
        with trio.fail_after(DATABASE_TIMEOUT_SECONDS):
            yield
    except trio.TooSlowError as error:
        raise DatabaseUnreachable(
            f"PostgreSQL did not answer within {DATABASE_TIMEOUT_SECONDS} s"
        ) from error
