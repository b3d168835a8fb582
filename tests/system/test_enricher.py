"""Two replicas of twelve partitions behind PgBouncer, a slow API, and a replica that dies."""

import itertools
import signal
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import psycopg
from cryptography.fernet import Fernet

from tests.scripted_http import Reply, ScriptedHttp
from tests.servers import IdleWatch, PgBouncer, wait_until
from tests.servers.service import Replica

ROWS, DOMAINS = 4_000, 120
PARTITIONS, BATCH_SIZE = 12, 50
CONCURRENCY = 16  # the default of ENRICH_CONCURRENCY
FIRST_ANSWERS = 30
IS_CLAIMED = "email_check_claimed_at IS NOT NULL"
API_SECONDS = 1.0
STUCK_AFTER_SECONDS = 12
# What a transaction may be seen idle for; one that holds it over a call would be at API_SECONDS.
MAX_IDLE_SECONDS = 0.5

# Every decision on a row, so that a second one would show.
KEEP_DECISIONS = """
    CREATE TABLE decisions (row_id bigint, verified boolean);
    CREATE FUNCTION keep_decisions() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO decisions VALUES (NEW.id, NEW.email_verified);
        RETURN NEW;
    END $$;
    CREATE TRIGGER keep_decisions AFTER UPDATE ON job_advertisement FOR EACH ROW
        WHEN (OLD.email_check IS DISTINCT FROM NEW.email_check)
        EXECUTE FUNCTION keep_decisions();
"""
# Every tenth row has no address that anybody would have to be asked about.
INSERT = """
    INSERT INTO job_advertisement (email)
    SELECT CASE WHEN mod(n, 10) = 0 THEN 'no address' ELSE
           'user' || n || '@host' || mod(n, %(domains)s) || '.example.com' END
    FROM generate_series(1, %(rows)s) AS n ORDER BY random()
"""


def count(url: str, where: str) -> int:
    with psycopg.connect(url, autocommit=True) as conn:
        row = conn.execute(f"SELECT count(*) FROM job_advertisement WHERE {where}").fetchone()  # type: ignore[call-overload]
        assert row is not None
        return int(row[0])


def test_every_row_is_decided_once_although_a_replica_dies_and_nothing_idles_in_a_transaction(
    database_url: str, tmp_path: Path
) -> None:
    with psycopg.connect(database_url) as conn:
        conn.execute(KEEP_DECISIONS)
        conn.execute(INSERT, {"domains": DOMAINS, "rows": ROWS})
    api_goes_on = threading.Event()
    calls = itertools.count(1)

    def answer_slowly() -> None:
        """Once some rows can have been decided, nothing is, until the one replica is dead."""
        if next(calls) > FIRST_ANSWERS:
            api_goes_on.wait()
        time.sleep(API_SECONDS)

    with (
        ScriptedHttp(Reply.json({"verdict": "valid"}, before=answer_slowly)) as api,
        PgBouncer(database_url, server_connections=4) as bouncer,
        IdleWatch(database_url) as idle,
        ExitStack() as stack,
    ):
        stack.callback(api_goes_on.set)
        environment = {
            "DATABASE_URL": bouncer.url,
            "SERVICE_SECRET_KEY": Fernet.generate_key().decode(),
            "ENRICH_API_URL": api.url,
            "ENRICH_PARTITIONS": str(PARTITIONS),
            "ENRICH_BATCH_SIZE": str(BATCH_SIZE),
            "ENRICH_TIMEOUT_SECONDS": "4",
            "WATCHDOG_STUCK_AFTER_SECONDS": str(STUCK_AFTER_SECONDS),
        }
        first, second = (stack.enter_context(Replica(tmp_path, environment)) for _ in range(2))
        # As many as only both of them together hold.
        claimed = 2 * PARTITIONS * BATCH_SIZE
        wait_until(lambda: count(database_url, IS_CLAIMED) == claimed, seconds=30)
        wait_until(lambda: count(database_url, "email_verified") > 0, seconds=30)
        wait_until(lambda: count(database_url, IS_CLAIMED) == claimed, seconds=30)
        assert first.stop(signal.SIGKILL) == -signal.SIGKILL
        api_goes_on.set()
        wait_until(lambda: count(database_url, "email_verified IS NULL") == 0, seconds=90)
        assert second.stop() == 0
    check_decisions(database_url)
    asked = Counter(request.query["domain"] for request in api.requests)
    assert asked.keys() == {f"host{n}.example.com" for n in range(DOMAINS) if n % 10}
    # Those that the dead replica was asking about are asked once more.
    assert sum(asked.values()) - len(asked) <= 2 * CONCURRENCY
    assert idle.looks > 200
    assert idle.longest_seconds < MAX_IDLE_SECONDS


def check_decisions(url: str) -> None:
    with psycopg.connect(url) as conn:
        decisions = conn.execute("SELECT row_id, verified FROM decisions ORDER BY 1").fetchall()
        rows = conn.execute(
            "SELECT id, email_verified, email, email_check FROM job_advertisement ORDER BY id"
        ).fetchall()
    assert decisions == [(row_id, verified) for row_id, verified, *_ in rows]
    for _, verified, email, check in rows:
        if "@" in email:
            assert (verified, check["reason"]) == (True, "api"), check
            assert check["evidence"]["domain"] == email.partition("@")[2]
        else:
            assert (verified, check["reason"]) == (False, "syntax"), check


def test_a_stop_gives_back_what_was_claimed(database_url: str, tmp_path: Path) -> None:
    """At once: nobody has to wait until its claims have expired."""
    with psycopg.connect(database_url) as conn:
        conn.execute(INSERT, {"domains": DOMAINS, "rows": 1_000})
    answer = Reply.json({"verdict": "valid"}, before=lambda: time.sleep(API_SECONDS))
    with ScriptedHttp(answer) as api:
        environment = {
            "DATABASE_URL": database_url,
            "SERVICE_SECRET_KEY": Fernet.generate_key().decode(),
            "ENRICH_API_URL": api.url,
            "ENRICH_CONCURRENCY": "4",
        }
        with Replica(tmp_path, environment) as replica:
            wait_until(lambda: len(api.requests) >= 8, seconds=30)
            assert count(database_url, "email_check_claimed_at IS NOT NULL") > 0
            began = time.monotonic()
            assert replica.stop() == 0
            assert time.monotonic() - began < 10
    assert count(database_url, "email_check_claimed_at IS NOT NULL") == 0
    with psycopg.connect(database_url) as conn:
        claimed = conn.execute("SELECT count(claimed_at) FROM email_domain").fetchone()
    assert claimed == (0,)
