"""Speed of the pipeline: `python -m benchmarks.pipeline [--quick] [part…]`.

Prints one table of figures and ratios beside their targets. Needs the extra `test`.
"""

import hashlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.pipeline_files import make_files
from benchmarks.report import Figure
from benchmarks.stage import GIVE_UP_SECONDS, Part, Stage, announce, create_command

WATCH_SECONDS = 0.1  # each look costs PostgreSQL a scan
WATCH_ONE_SECONDS = 0.01
WARM_UP_FILES = 8

_INSERT_REQUEST = """
    INSERT INTO request (source_ref, content_fingerprint, received_at, body_text)
    VALUES (%s, %s, now(), 'Please find the file attached.') RETURNING id
"""
_INSERT_ATTACHMENT = """
    INSERT INTO attachment (request_id, kind, part_id, filename, content_type, size_bytes, sha256,
                            verdict, status, content, not_before)
    VALUES (%s, 'file', '2', %s, 'application/octet-stream', %s, %s, 'extract', 'pending', %s,
            now() + %s * interval '1 second')
"""
# The stamp of a claim is cleared when its work is done, so it is kept here.
_KEEP_TIMES = """
    CREATE TABLE done (filename text, claim_to_done_seconds float8);
    CREATE FUNCTION keep_times() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO done VALUES (NEW.filename, extract(epoch FROM
            clock_timestamp() - OLD.processing_started_at));
        RETURN NEW;
    END $$;
    CREATE TRIGGER keep_times AFTER UPDATE ON attachment FOR EACH ROW
        WHEN (OLD.status = 'processing' AND NEW.status = 'done') EXECUTE FUNCTION keep_times();
"""
_ENDED = "SELECT count(*) FILTER (WHERE status IN ('done', 'failed')) FROM attachment"


def measure_throughput(stage: Stage, *, quick: bool) -> list[Figure]:
    """The loop, one worker and two workers in alternation, each service on its own database."""
    count, runs = (400, 1) if quick else (2000, 3)
    rates: dict[str, list[float]] = {"loop": [], "one": [], "two": []}
    with _files(count) as folder:
        for number in range(runs):
            for name, values in rates.items():
                announce(f"throughput: {name}, run {number + 1} of {runs}")
                values.append(count / _seconds(stage, name, folder))
    loop, one, two = rates.values()
    return [
        Figure("throughput", "plain loop", "files/s", loop),
        Figure("throughput", "service, one worker", "files/s", one),
        Figure("throughput", "service, two workers", "files/s", two),
        Figure("throughput", "one worker / loop", "", _ratios(one, loop), at_least=0.7),
        Figure("throughput", "two workers / one", "", _ratios(two, one), at_least=1.6),
    ]


def measure_overhead(stage: Stage, *, quick: bool) -> list[Figure]:
    """Files one after the other: from claim to done, without what the loop takes for the file."""
    count = 100 if quick else 400
    with _files(count) as folder:
        announce("overhead: loop")
        plain = _loop_seconds(folder)
        with stage.database() as url, psycopg.connect(url, autocommit=True) as conn:
            conn.execute(_KEEP_TIMES)
            with stage.replicas(url, 1, PIPELINE_CONCURRENCY="1"):
                announce("overhead: service")
                for done, path in enumerate(sorted(folder.iterdir())):
                    _insert(conn, path, delay_seconds=0)
                    _watch(conn, done + 1, WATCH_ONE_SECONDS)
            rows = conn.execute(
                'SELECT claim_to_done_seconds FROM done ORDER BY filename COLLATE "C"'
            )
            ours = [seconds for (seconds,) in rows.fetchall()]
    assert len(ours) == len(plain) == count
    over = [1000 * (a - b) for a, b in zip(ours, plain, strict=True)][WARM_UP_FILES:]
    return [
        Figure("overhead", "plain loop, a file, p50", "ms", [1000 * statistics.median(plain)]),
        Figure("overhead", "claim to done, p50", "ms", [1000 * statistics.median(ours)]),
        Figure("overhead", "claim to done - loop, p50", "ms", [_percentile(over, 50)], at_most=15),
        Figure("overhead", "claim to done - loop, p99", "ms", [_percentile(over, 99)]),
    ]


def _percentile(values: list[float], percent: int) -> float:
    return statistics.quantiles(values, n=100)[percent - 1]


def _ratios(ours: list[float], theirs: list[float]) -> list[float]:
    return [a / b for a, b in zip(ours, theirs, strict=True)]


@contextmanager
def _files(count: int) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for filename, content in make_files(count):
            (folder / filename).write_bytes(content)
        yield folder


def _seconds(stage: Stage, name: str, folder: Path) -> float:
    if name == "loop":
        return sum(_loop_seconds(folder))
    return _service_seconds(stage, folder, workers=1 if name == "one" else 2)


def _loop_seconds(folder: Path) -> list[float]:
    command = [sys.executable, "-m", "benchmarks.pipeline_files", str(folder)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    seconds: list[float] = json.loads(done.stdout)
    return seconds


def _service_seconds(stage: Stage, folder: Path, *, workers: int) -> float:
    """From the instant when all files become due until the last is done, with warm workers."""
    paths = sorted(folder.iterdir())
    with stage.database() as url, psycopg.connect(url, autocommit=True) as conn:
        with stage.replicas(url, 1, PIPELINE_CONCURRENCY=str(workers)):
            for path in paths[:WARM_UP_FILES]:
                _insert(conn, path, delay_seconds=0)
            _watch(conn, WARM_UP_FILES)
            conn.execute("TRUNCATE request CASCADE")
            with conn.transaction():
                for path in paths:
                    _insert(conn, path, delay_seconds=3600)
            conn.execute("ANALYZE attachment")
            began = time.monotonic()
            conn.execute("UPDATE attachment SET not_before = NULL")
            conn.execute("NOTIFY mailroom_attachment")
            _watch(conn, len(paths))
            seconds = time.monotonic() - began
        failed = conn.execute("SELECT count(*) FROM attachment WHERE status <> 'done'").fetchone()
    if failed != (0,):
        raise RuntimeError(f"{failed} attachments are not done")
    return seconds


def _insert(conn: psycopg.Connection[Any], path: Path, *, delay_seconds: float) -> None:
    """One request with one file; the hint that the intake would give is given too."""
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    with conn.transaction():
        row = conn.execute(_INSERT_REQUEST, (path.name, digest)).fetchone()
        assert row is not None
        values = (row[0], path.name, len(content), digest, content, delay_seconds)
        conn.execute(_INSERT_ATTACHMENT, values)
        conn.execute("NOTIFY mailroom_attachment")


def _watch(conn: psycopg.Connection[Any], count: int, every_seconds: float = WATCH_SECONDS) -> None:
    """Return once so many attachments have ended; RuntimeError when that takes too long."""
    until = time.monotonic() + GIVE_UP_SECONDS
    while conn.execute(_ENDED).fetchone() != (count,):
        if time.monotonic() > until:
            raise RuntimeError(f"not {count} attachments ended within {GIVE_UP_SECONDS} s")
        time.sleep(every_seconds)


PARTS: dict[str, Part] = {"throughput": measure_throughput, "overhead": measure_overhead}

main = create_command("Speed of the pipeline", PARTS)


if __name__ == "__main__":
    main()
