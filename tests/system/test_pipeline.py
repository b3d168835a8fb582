"""Two replicas and 500 attachments; workers, a replica and PostgreSQL die in the middle."""

import hashlib
import signal
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil
import psycopg
import trio
from cryptography.fernet import Fernet
from psycopg.rows import dict_row

from service.db.migrate import migrate
from service.sandbox.files import make_csv, make_pdf, make_xlsx
from tests.servers import PostgresCluster, wait_until
from tests.servers.service import Replica

ATTACHMENTS = 500
STUCK_AFTER_SECONDS = 8
CHILD_MODULE = "service.extract"
START_SECONDS = 1

# Every end of an attachment, so that a second one would show.
KEEP_ENDS = """
    CREATE TABLE ends (attachment_id bigint, status text);
    CREATE FUNCTION keep_ends() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO ends VALUES (NEW.id, NEW.status);
        RETURN NEW;
    END $$;
    CREATE TRIGGER keep_ends AFTER UPDATE ON attachment FOR EACH ROW
        WHEN (OLD.finished_at IS NULL AND NEW.finished_at IS NOT NULL)
        EXECUTE FUNCTION keep_ends();
"""
INSERT = """
    WITH stored AS (
        INSERT INTO request (source_ref, content_fingerprint, received_at, body_text)
        VALUES (%(ref)s, %(digest)s, now(), 'The text of the mail') RETURNING id)
    INSERT INTO attachment (request_id, kind, part_id, filename, content_type, size_bytes, sha256,
                            verdict, status, content)
    SELECT id, %(kind)s, CASE WHEN %(kind)s = 'file' THEN '2' END, %(ref)s, 'application/pdf',
           %(size)s, %(digest)s, 'extract', 'pending', %(content)s
    FROM stored
"""


def make_content(number: int) -> bytes | None:
    """A PDF, a workbook, a CSV, a damaged file, or None for the mail's text itself."""
    rows = [["Order", "Price"], *([f"{number}-{row}", f"{row}.50"] for row in range(40))]
    match number % 5:
        case 0:
            return make_pdf([f"Invoice {number}, line {line}" for line in range(40)])
        case 1:
            return make_xlsx(rows)
        case 2:
            return make_csv(rows).encode()
        case 3:
            return b"%PDF-1.4\n" + number.to_bytes(4) * 20
        case _:
            return None


def insert(url: str) -> None:
    with psycopg.connect(url) as conn:
        conn.execute(KEEP_ENDS)
        for number in range(ATTACHMENTS):
            content = make_content(number)
            values = {
                "ref": f"file-{number}",
                "kind": "file" if content is not None else "body",
                "content": content,
                "size": len(content or b""),
                "digest": hashlib.sha256(str(number).encode()).hexdigest(),
            }
            conn.execute(INSERT, values)


def execute(url: str, statement: str) -> None:
    with psycopg.connect(url) as conn:
        conn.execute(statement)  # type: ignore[call-overload]


def count(url: str, where: str) -> int:
    """0 also while PostgreSQL is away."""
    with (
        suppress(psycopg.OperationalError),
        psycopg.connect(url, autocommit=True) as conn,
    ):
        row = conn.execute(f"SELECT count(*) FROM attachment WHERE {where}").fetchone()  # type: ignore[call-overload]
        assert row is not None
        return int(row[0])
    return 0


def children_of(replica: Replica) -> list[psutil.Process]:
    """The processes in which it reads files now, without those that are being started."""
    with suppress(psutil.NoSuchProcess):
        return [
            child
            for child in psutil.Process(replica.process.pid).children()
            if CHILD_MODULE in child.cmdline() and time.time() - child.create_time() > START_SECONDS
        ]
    return []


def kill_a_child(replica: Replica) -> None:
    """One that reads: a file whose process did not start waits for a minute."""
    wait_until(lambda: bool(children_of(replica)), seconds=20)
    with suppress(psutil.NoSuchProcess):
        children_of(replica)[0].kill()


def test_every_attachment_ends_once_although_workers_a_replica_and_the_database_die(
    tmp_path: Path,
) -> None:
    with PostgresCluster() as cluster, ExitStack() as replicas:
        url = cluster.create_database("pipeline")
        trio.run(migrate, url)
        insert(url)
        # Half of them is for after the first deaths, however fast the machine is.
        execute(url, "UPDATE attachment SET not_before = now() + interval '1 day' WHERE id % 2 = 0")
        environment = {
            "DATABASE_URL": url,
            "SERVICE_SECRET_KEY": Fernet.generate_key().decode(),
            "WATCHDOG_STUCK_AFTER_SECONDS": str(STUCK_AFTER_SECONDS),
            "READ_TIMEOUT_SECONDS": "2",
        }
        first, second = (replicas.enter_context(Replica(tmp_path, environment)) for _ in range(2))
        wait_until(lambda: count(url, "finished_at IS NOT NULL") >= 50, seconds=30)
        kill_a_child(first)
        kill_a_child(second)
        wait_until(lambda: count(url, "finished_at IS NOT NULL") >= 100, seconds=30)
        execute(url, "UPDATE attachment SET not_before = NULL")
        wait_until(lambda: count(url, "status = 'processing'") > 0, seconds=30)
        assert first.stop(signal.SIGKILL) == -signal.SIGKILL
        left = count(url, "finished_at IS NULL")
        assert left > 50
        cluster.restart("immediate")
        kill_a_child(second)
        third = replicas.enter_context(Replica(tmp_path, environment))
        wait_until(lambda: count(url, "finished_at IS NOT NULL") == ATTACHMENTS, seconds=90)
        check_ends(url)
        pids = {replica.process.pid for replica in (second, third)}
        assert {psutil.Process(pid).status() for pid in pids} <= {"running", "sleeping"}
        assert second.stop() == 0
        assert third.stop() == 0
        assert children_of(second) == children_of(third) == []


def check_ends(url: str) -> None:
    with psycopg.connect(url, row_factory=dict_row) as conn:
        rows: list[dict[str, Any]] = conn.execute(
            "SELECT id, filename, status, result, error, attempts FROM attachment ORDER BY id"
        ).fetchall()
        ends = conn.execute("SELECT attachment_id AS id, status FROM ends ORDER BY id").fetchall()
    assert [(one["id"], one["status"]) for one in ends] == [
        (row["id"], row["status"]) for row in rows
    ]
    for number, row in enumerate(rows):
        if number % 5 == 3:
            assert (row["status"], row["error"].partition(":")[0]) == ("failed", "damaged"), row
        else:
            assert (row["status"], row["error"]) == ("done", None), row
            assert str(row["result"]).count(f"{number}") or number % 5 == 4, row
    bodies = [row["result"] for number, row in enumerate(rows) if number % 5 == 4]
    assert bodies == [{"text": "The text of the mail", "pages": [], "warnings": []}] * 100


def test_a_stop_gives_back_what_was_claimed(database_url: str, tmp_path: Path) -> None:
    """At once, with no attempt counted: nobody has to wait until it counts as stuck."""
    insert(database_url)
    environment = {
        "DATABASE_URL": database_url,
        "SERVICE_SECRET_KEY": Fernet.generate_key().decode(),
    }
    with Replica(tmp_path, environment) as replica:
        wait_until(lambda: count(database_url, "finished_at IS NOT NULL") >= 20, seconds=30)
        began = time.monotonic()
        assert replica.stop() == 0
        assert time.monotonic() - began < 10
    assert count(database_url, "status = 'processing'") == 0
    assert count(database_url, "attempts > 0") == 0
    assert count(database_url, "status = 'pending'") > 0
