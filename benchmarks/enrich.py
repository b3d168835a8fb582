"""Speed of the enricher: `python -m benchmarks.enrich [--quick]`.

Prints one table of figures and ratios beside their targets. Needs the extra `test`.
"""

import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

import httpx
import psutil
import psycopg
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.enrich_rows import insert_rows
from benchmarks.report import Figure
from benchmarks.slow_api import Counts, SlowApi
from benchmarks.stage import GIVE_UP_SECONDS, Part, Stage, announce, create_command
from tests.servers.service import Replica

API_SECONDS = 0.2
CONCURRENCY = 16  # the default of ENRICH_CONCURRENCY
WATCH_SECONDS = 0.05

_FIRST_CLAIM = "SELECT min(email_check_claimed_at) FROM job_advertisement"
_IS_OPEN = "SELECT EXISTS (SELECT FROM job_advertisement WHERE email_verified IS NULL)"
_LAST_DECISION = """
    SELECT extract(epoch FROM max((email_check->>'checked_at')::timestamptz) - %s)::float8
    FROM job_advertisement
"""
_NOT_AS_THEY_SHOULD = """
    SELECT count(*) FROM job_advertisement
    WHERE email_verified IS NOT true OR email_check->>'reason' <> 'api'
       OR email_check->'evidence'->>'domain' <> split_part(email, '@', 2)
       OR email_check_claimed_at IS NOT NULL
"""


@dataclass(frozen=True, slots=True)
class Amount:
    rows: int
    domains: int


@dataclass(frozen=True, slots=True)
class Run:
    """From the first claim to the last decision."""

    seconds: float
    api: Counts
    cores_busy_percent: float
    replica_busy_percent: float


def measure_enricher(stage: Stage, *, quick: bool) -> list[Figure]:
    """The service and the bare loop in alternation, each with an API of its own."""
    amount, count = (Amount(10_000, 400), 1) if quick else (Amount(100_000, 2_000), 3)
    runs, rival = [], []
    for number in range(count):
        announce(f"enrich: bare loop, run {number + 1} of {count}")
        rival.append(_rival_seconds(amount))
        announce(f"enrich: service, run {number + 1} of {count}")
        runs.append(_run(stage, amount))
    return _figures(amount, runs, rival)


def _figures(amount: Amount, runs: list[Run], rival: list[float]) -> list[Figure]:
    part = f"{amount.rows:,} rows, {amount.domains:,} domains"
    seconds = [run.seconds for run in runs]
    ratios = [ours / theirs for ours, theirs in zip(seconds, rival, strict=True)]
    return [
        Figure(part, "bare loop over the domains", "s", rival),
        Figure(part, "service, one replica", "s", seconds),
        Figure(part, "service / bare loop", "", ratios, at_most=1.3),
        Figure(part, "service", "rows/s", [amount.rows / one for one in seconds]),
        Figure(part, "API calls a domain", "", [run.api.calls / amount.domains for run in runs]),
        Figure(part, "most calls at once", "", [float(run.api.most_at_once) for run in runs]),
        Figure(part, "first to last call", "s", [run.api.busy_seconds for run in runs]),
        Figure(part, "replica busy", "% of a core", [run.replica_busy_percent for run in runs]),
        Figure(part, "all cores busy", "%", [run.cores_busy_percent for run in runs]),
    ]


def _rival_seconds(amount: Amount) -> float:
    with SlowApi(API_SECONDS) as api:
        values = (api.url, str(amount.domains), str(CONCURRENCY))
        command = [sys.executable, "-m", "benchmarks.enrich_rival", *values]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
        _check_calls(api.counts(), amount)
        return float(done.stdout)


def _run(stage: Stage, amount: Amount) -> Run:
    with (
        SlowApi(API_SECONDS) as api,
        stage.database() as url,
        psycopg.connect(url, autocommit=True) as conn,
        stage.replicas(url, 1, ENRICH_API_URL=api.url) as (replica,),
    ):
        insert_rows(conn, amount.rows, domains=amount.domains)
        first_claim = _wait_for_first_claim(conn)
        process = psutil.Process(replica.process.pid)
        process.cpu_percent()  # the next calls count from here
        psutil.cpu_percent()
        _wait_for_end(conn)
        busy = psutil.cpu_percent(), process.cpu_percent()
        run = Run(_number(conn, _LAST_DECISION, first_claim), api.counts(), *busy)
        _check_decisions(conn, replica, amount)
    _check_calls(run.api, amount)
    return run


def _wait_for_first_claim(conn: psycopg.Connection[Any]) -> object:
    """Its stamp; the enricher, which had nothing to do, looks every few seconds."""
    until = time.monotonic() + GIVE_UP_SECONDS
    while (row := conn.execute(_FIRST_CLAIM).fetchone()) in (None, (None,)):
        _give_up_at(until)
    assert row is not None
    return row[0]


def _wait_for_end(conn: psycopg.Connection[Any]) -> None:
    until = time.monotonic() + GIVE_UP_SECONDS
    while conn.execute(_IS_OPEN).fetchone() == (True,):
        _give_up_at(until)


def _give_up_at(until: float) -> None:
    if time.monotonic() > until:
        raise RuntimeError(f"rows are not decided within {GIVE_UP_SECONDS} s")
    time.sleep(WATCH_SECONDS)


def _check_decisions(conn: psycopg.Connection[Any], replica: Replica, amount: Amount) -> None:
    """Each row is decided as it should be, and as many decisions were written as there are rows."""
    wrong = _number(conn, _NOT_AS_THEY_SHOULD)
    text = httpx.get(f"http://127.0.0.1:{replica.http_port}/metrics", trust_env=False).text
    samples = [one for family in text_string_to_metric_families(text) for one in family.samples]
    written = sum(one.value for one in samples if one.name == "mailroom_enriched_rows_total")
    if wrong or written != amount.rows:
        raise RuntimeError(f"{wrong:g} rows are decided wrongly, {written:g} decisions written")


def _check_calls(counts: Counts, amount: Amount) -> None:
    if not counts.calls == counts.domains == amount.domains:
        raise RuntimeError(f"the API was asked {counts}, for {amount}")


def _number(conn: psycopg.Connection[Any], query: str, *values: object) -> float:
    row = conn.execute(query, values).fetchone()
    assert row is not None
    return float(row[0])


PARTS: dict[str, Part] = {"enrich": measure_enricher}

main = create_command("Speed of the enricher", PARTS)


if __name__ == "__main__":
    main()
