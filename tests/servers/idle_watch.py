"""Looks for transactions that nobody works on, on a connection of its own past any pooler."""

import threading
from types import TracebackType
from typing import Self

import psycopg

LOOK_SECONDS = 0.01

_IDLE = """
    SELECT count(*),
           coalesce(max(extract(epoch FROM clock_timestamp() - state_change)), 0)::float8
    FROM pg_stat_activity
    WHERE datname = current_database() AND state LIKE 'idle in transaction%'
"""


class IdleWatch:
    """Looks every few ms while entered; afterwards the figures of all looks.

    `longest_seconds`: the longest that a connection had been idle in transaction; `most`: how many
    were at once; `looks`: how many there were.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self.looks, self.most, self.longest_seconds = 0, 0, 0.0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._done.set()
        self._thread.join()

    def _look(self) -> None:
        with psycopg.connect(self._url, autocommit=True) as conn:
            while not self._done.wait(LOOK_SECONDS):
                ((count, seconds),) = conn.execute(_IDLE).fetchall()
                self.looks += 1
                self.most = max(self.most, count)
                self.longest_seconds = max(self.longest_seconds, seconds)
