"""Who holds the pool? `python -m benchmarks.pool_hold [--quick] [part…]`.

A foreign client asks `SELECT 1` through PgBouncer while nobody else is there, beside the enricher,
and beside the specimen, which calls its API inside the transaction. Prints one table of figures
beside their targets. Needs PgBouncer, and the extra `test`.
"""

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import psycopg

from benchmarks.await_api import percentile
from benchmarks.cores import DATABASE_CORES, SERVICE_CORES, move_postgres, on_cores, started_on
from benchmarks.enrich_rows import insert_rows
from benchmarks.foreign_client import ForeignClient
from benchmarks.report import Figure
from benchmarks.slow_api import SlowApi
from benchmarks.stage import Part, Stage, announce, create_command
from tests.servers import IdleWatch, PgBouncer, wait_until

API_SECONDS = 0.5
PARTITIONS = 12  # the default of ENRICH_PARTITIONS
BATCH_SIZE = 16  # the specimen holds its connection for 8 s; with the 200 of the story, for 100 s
ROWS = 4000  # more than anybody gets through, each with a domain of its own
QUERIES_PER_SECOND = 200
WARM_UP_SECONDS = 1
NAMES = ("nobody", "enricher", "specimen")


@dataclass(frozen=True, slots=True)
class Run:
    """What the foreign client felt, and what PostgreSQL showed meanwhile."""

    milliseconds: Sequence[float]
    longest_idle_milliseconds: float
    most_idle: int
    api_calls: int


def measure(
    stage: Stage, *, quick: bool, server_connections: int, has_targets: bool
) -> list[Figure]:
    """The three in alternation, each with servers of its own."""
    seconds, count = (8, 1) if quick else (15, 5)
    runs: dict[str, list[Run]] = {name: [] for name in NAMES}
    with on_cores(SERVICE_CORES):
        for number in range(count):
            for name, of_name in runs.items():
                announce(f"pool of {server_connections}: {name}, run {number + 1} of {count}")
                of_name.append(_run(stage, name, server_connections, seconds))
    return _figures(f"pool of {server_connections}", runs, has_targets=has_targets)


def _run(stage: Stage, name: str, server_connections: int, seconds: float) -> Run:
    with (
        SlowApi(API_SECONDS) as api,
        stage.database() as url,
        started_on(DATABASE_CORES, _pgbouncer(url, server_connections)) as bouncer,
    ):
        move_postgres(url, DATABASE_CORES)
        with psycopg.connect(url) as conn:
            insert_rows(conn, ROWS, domains=ROWS)
        with _beside(stage, name, bouncer.url, api):
            calls_before = api.counts().calls
            foreign = ForeignClient(bouncer.url, QUERIES_PER_SECOND, seconds)
            with IdleWatch(url) as watch, started_on(DATABASE_CORES, foreign) as client:
                milliseconds = [1000 * one for one in client.wait()]
            calls = api.counts().calls - calls_before
    return Run(milliseconds, 1000 * watch.longest_seconds, watch.most, calls)


def _pgbouncer(url: str, server_connections: int) -> PgBouncer:
    # In the deployed file it is 20: who waits would be cut off instead of being measured.
    return PgBouncer(url, server_connections=server_connections, query_wait_timeout="120")


@contextmanager
def _beside(stage: Stage, name: str, url: str, api: SlowApi) -> Iterator[None]:
    """Who else is there, at work."""
    if name == "nobody":
        yield
    elif name == "specimen":
        with _specimen(url, api.url):
            _wait_until_at_work(api)
            yield
    else:
        settings = {
            "ENRICH_API_URL": api.url,
            "ENRICH_PARTITIONS": str(PARTITIONS),
            "ENRICH_BATCH_SIZE": str(BATCH_SIZE),
        }
        with stage.replicas(url, 1, **settings):
            _wait_until_at_work(api)
            yield


@contextmanager
def _specimen(url: str, api_url: str) -> Iterator[None]:
    values = (url, api_url, str(PARTITIONS), str(BATCH_SIZE))
    command = [sys.executable, "-m", "benchmarks.pool_hold_specimen", *values]
    with subprocess.Popen(command) as process:
        try:
            yield
            if process.poll() is not None:
                raise RuntimeError("the specimen ended by itself")
        finally:
            process.kill()


def _wait_until_at_work(api: SlowApi) -> None:
    wait_until(lambda: api.counts().calls, seconds=20)
    time.sleep(WARM_UP_SECONDS)


def _figures(part: str, runs: dict[str, list[Run]], *, has_targets: bool) -> list[Figure]:
    nobody, enricher, specimen = (runs[name] for name in NAMES)
    felt = [
        Figure(part, f"SELECT 1 beside {name}, p{percent}", "ms", _percentiles(of_name, percent))
        for name, of_name in runs.items()
        for percent in (50, 99)
    ]
    ratios = [
        Figure(
            part,
            "p99 beside the enricher / nobody",
            "",
            _ratios(enricher, nobody),
            at_most=1.2 if has_targets else None,
        ),
        Figure(part, "p99 beside the specimen / nobody", "", _ratios(specimen, nobody)),
    ]
    if len(nobody) > 1:
        noise = _ratios(nobody[1:], nobody[:-1])
        ratios.append(Figure(part, "p99 beside nobody / run before", "", noise))
    return felt + ratios + _idle_figures(part, runs)


def _idle_figures(part: str, runs: dict[str, list[Run]]) -> list[Figure]:
    targets = {"enricher": 50}
    figures = []
    for name in ("enricher", "specimen"):
        longest = max(run.longest_idle_milliseconds for run in runs[name])
        what = f"{name}: idle in transaction, longest of all"
        figures += [
            Figure(part, what, "ms", [longest], at_most=targets.get(name)),
            Figure(
                part, f"{name}: so many at once", "", [float(run.most_idle) for run in runs[name]]
            ),
            Figure(part, f"{name}: API calls", "", [float(run.api_calls) for run in runs[name]]),
        ]
    return figures


def _percentiles(runs: Sequence[Run], percent: int) -> list[float]:
    return [percentile(run.milliseconds, percent) for run in runs]


def _ratios(ours: Sequence[Run], theirs: Sequence[Run]) -> list[float]:
    """Of the 99th percentiles."""
    pairs = zip(_percentiles(ours, 99), _percentiles(theirs, 99), strict=True)
    return [a / b for a, b in pairs]


PARTS: dict[str, Part] = {
    "pool-of-4": partial(measure, server_connections=4, has_targets=True),
    "pool-of-12": partial(measure, server_connections=12, has_targets=False),
}

main = create_command("Who holds the pool", PARTS)


if __name__ == "__main__":
    main()
