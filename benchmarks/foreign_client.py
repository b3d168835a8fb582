"""A program that shares PgBouncer with the service: it asks `SELECT 1` again and again.

`python -m benchmarks.foreign_client URL PER_SECOND SECONDS` prints, as JSON, the seconds that each
query took. It asks at a steady rate whether or not it is answered, as a web backend does whose
users do not know of each other; a query waits for a free one of its connections first. What has no
answer at the end counts with the time that it has waited by then.
"""

import asyncio
import gc
import json
import subprocess
import sys
import time
from types import TracebackType
from typing import Any, Self

import asyncpg

CONNECTIONS = 20
CONNECT_TIMEOUT_SECONDS = 10
LAST_ANSWERS_SECONDS = 1


class ForeignClient:
    """The process; it asks from its entry on."""

    def __init__(self, url: str, per_second: float, seconds: float) -> None:
        values = (url, str(per_second), str(seconds))
        self._command = [sys.executable, "-m", "benchmarks.foreign_client", *values]

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.__exit__(kind, error, traceback)

    def wait(self) -> list[float]:
        """Seconds of each query, at its end; RuntimeError when one failed."""
        output, _ = self._process.communicate()
        if self._process.returncode:
            raise RuntimeError("a foreign query failed")
        seconds: list[float] = json.loads(output)
        return seconds


async def ask(url: str, per_second: float, seconds: float) -> list[float]:
    """Seconds that each query took."""
    connections = [await _connect(url) for _ in range(CONNECTIONS)]
    free: asyncio.Queue[Any] = asyncio.LifoQueue()
    for conn in connections:
        free.put_nowait(conn)
    gc.freeze()
    taken: list[float] = []
    began = time.perf_counter()
    tasks = []
    for number in range(round(per_second * seconds)):
        await asyncio.sleep(began + number / per_second - time.perf_counter())
        tasks.append(asyncio.create_task(_ask_once(free, taken)))
    answered, unanswered = await asyncio.wait(tasks, timeout=LAST_ANSWERS_SECONDS)
    for task in answered:
        task.result()  # raises when the query failed
    for conn in connections:
        conn.terminate()
    await asyncio.sleep(0)
    for task in unanswered:
        task.cancel()
    await asyncio.gather(*unanswered, return_exceptions=True)
    return taken


async def _connect(url: str) -> Any:
    return await asyncpg.connect(url, timeout=CONNECT_TIMEOUT_SECONDS, statement_cache_size=0)


async def _ask_once(free: asyncio.Queue[Any], taken: list[float]) -> None:
    began = time.perf_counter()
    try:
        conn = await free.get()
        await conn.execute("SELECT 1")
        free.put_nowait(conn)
    finally:
        taken.append(time.perf_counter() - began)


if __name__ == "__main__":
    print(json.dumps(asyncio.run(ask(sys.argv[1], float(sys.argv[2]), float(sys.argv[3])))))
