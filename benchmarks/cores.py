"""The machine's cores as two machines: one of the service, one of the database and its clients.

A process keeps the cores on which it was started. Needs Linux and two cores.
"""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TypeVar

import psutil
import psycopg

T = TypeVar("T")

_CORES = sorted(os.sched_getaffinity(0))
SERVICE_CORES = _CORES[: len(_CORES) // 2]
DATABASE_CORES = _CORES[len(_CORES) // 2 :]


@contextmanager
def on_cores(cores: list[int]) -> Iterator[None]:
    """What this thread starts meanwhile runs there, and the thread itself."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def started_on(cores: list[int], process: AbstractContextManager[T]) -> Iterator[T]:
    """`process`, which starts when it is entered."""
    with ExitStack() as stack:
        with on_cores(cores):
            value = stack.enter_context(process)
        yield value


def move_postgres(url: str, cores: list[int]) -> None:
    """The server at `url`; connections of before stay where they are."""
    with psycopg.connect(url) as conn:
        server = psutil.Process(conn.info.backend_pid).parent()
    assert server is not None
    server.cpu_affinity(cores)
