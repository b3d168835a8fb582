"""Bounds that a test sets for what it does."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

MEGABYTE = 1024 * 1024


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Fails if it took longer."""
    start = time.monotonic()
    yield
    assert time.monotonic() - start < seconds
