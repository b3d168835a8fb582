"""`python -m service enrich import` and `status`, as processes: what they say, and that an import
which is killed, interrupted, cut off or run twice at once neither doubles nor loses a row."""

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner

from service.cli import cli
from service.cli.enrich.address_file import BATCH_RECORDS
from service.cli.enrich.status import MAX_REASON_CHARS
from tests.bounds import at_most
from tests.servers import PgBouncer, wait_until
from tests.system.test_cli import ENVIRONMENT, failure, run, select, succeed

ROWS = 2 * BATCH_RECORDS + 500

# Holds the transaction of the second batch after its rows were copied, while somebody else has the
# advisory lock.
_HOLD_SECOND_BATCH = f"""
    CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF (SELECT max(rows_stored) FROM enrich_import) = {2 * BATCH_RECORDS - 2} THEN
            SET LOCAL lock_timeout = 0;
            PERFORM pg_advisory_xact_lock(5);
        END IF;
        RETURN NULL;
    END $$;
    CREATE TRIGGER hold AFTER INSERT ON job_advertisement
        FOR EACH STATEMENT EXECUTE FUNCTION hold();
"""
_WAITING = """
    SELECT pid FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event_type = 'Lock' AND wait_event = %s
"""


@pytest.fixture
def leads(tmp_path: Path) -> Path:
    """A file of more than two batches, with a bad line in each."""
    path = tmp_path / "leads.csv"
    lines = [f"{n},user{n}@example.com" for n in range(ROWS)]
    lines[7], lines[BATCH_RECORDS + 7] = "7,", "no such column"
    path.write_text("\n".join(["id,email", *lines, ""]))
    return path


def numbers(url: str) -> list[int]:
    """Those of the addresses that are stored."""
    emails = [row["email"] for row in select(url, "SELECT email FROM job_advertisement")]
    return sorted(int(str(email).removeprefix("user").partition("@")[0]) for email in emails)


EXPECTED = sorted(set(range(ROWS)) - {7, BATCH_RECORDS + 7})


def test_a_file_is_imported_once_unless_asked_for(database_url: str, leads: Path) -> None:
    command = ["enrich", "import", str(leads)]
    first = run(*command, DATABASE_URL=database_url)
    assert first.stdout.startswith(f"{len(EXPECTED)} rows imported from column email, 2 bad lines")
    assert first.stderr.splitlines() == [
        "line 9: there is no address",
        f"line {BATCH_RECORDS + 9}: there are only 1 cells",
    ]
    assert numbers(database_url) == EXPECTED
    second = succeed(*command, DATABASE_URL=database_url)
    assert second.startswith("already imported on 2")
    assert second.endswith("; --again imports it once more\n")
    as_json = json.loads(succeed(*command, "--json", DATABASE_URL=database_url))
    assert as_json["already_imported_at"] is not None
    assert numbers(database_url) == EXPECTED
    again = json.loads(succeed(*command, "--again", "--json", DATABASE_URL=database_url))
    assert (again["rows_imported"], again["rows_before"]) == (len(EXPECTED), 0)
    assert numbers(database_url) == sorted(EXPECTED * 2)


def test_options_say_which_column_and_where_bad_lines_go(database_url: str, tmp_path: Path) -> None:
    source, bad = tmp_path / "leads.csv", tmp_path / "bad.csv"
    source.write_text("from:to\na@example.com:b@example.com\n:\n" * 30)
    command = ["enrich", "import", str(source), "--delimiter", ":", "--bad-lines", str(bad)]
    unclear = failure(run(*command, DATABASE_URL=database_url))
    assert unclear == (
        "no column is called email, e-mail or the like; there are: 1 from, 2 to"
        " (say --column NAME or --column NUMBER)"
    )
    assert select(database_url, "SELECT * FROM enrich_import") == []
    result = run(*command, "--column", "To", "--json", DATABASE_URL=database_url)
    summary = json.loads(result.stdout)
    assert summary.pop("seconds") > 0
    assert len(summary.pop("file_sha256")) == 64
    assert summary == {
        "column": "to",
        "rows_imported": 59,
        "rows_before": 0,
        "bad_lines": 30,
        "already_imported_at": None,
    }
    shown = result.stderr.splitlines()
    assert len(shown) == 21
    assert shown[-1] == "… and 10 more"
    written = bad.read_text().splitlines()
    assert written[:2] == ["line,reason,from,to", "3,there is no address,,"]
    assert len(written) == 31


@pytest.fixture
def hold(database_url: str) -> Iterator[psycopg.Connection]:
    """While this connection holds its lock, the second batch of an import comes to no end."""
    with closing(psycopg.connect(database_url, autocommit=True)) as conn:
        conn.execute(_HOLD_SECOND_BATCH)
        conn.execute("SELECT pg_advisory_lock(5)")
        yield conn


def let_go(conn: psycopg.Connection) -> None:
    """Later imports are not held, and nobody is left from this one."""
    conn.execute("SELECT pg_advisory_unlock_all()")
    wait_until(lambda: not held_pids(conn))
    conn.execute("DROP TRIGGER hold ON job_advertisement")


def held_pids(conn: psycopg.Connection, event: str = "advisory") -> list[int]:
    return [row[0] for row in conn.execute(_WAITING, [event])]


@contextmanager
def started(leads: Path, url: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    """An import as a process, which is gone at the end."""
    with subprocess.Popen(
        [sys.executable, "-m", "service", "enrich", "import", str(leads), *options],
        env={**ENVIRONMENT, "DATABASE_URL": url},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def held(leads: Path, url: str, conn: psycopg.Connection) -> Iterator[subprocess.Popen[str]]:
    """An import in the middle of its second batch; the first one is stored."""
    with started(leads, url) as process:
        wait_until(lambda: held_pids(conn), seconds=20)
        yield process


def check_resumes(leads: Path, url: str, database_url: str) -> None:
    """The next run stores the rest; every row is there once, every bad line is reported."""
    before = len(numbers(database_url))
    assert before == BATCH_RECORDS - 1
    result = run("enrich", "import", str(leads), DATABASE_URL=url)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(
        f"{len(EXPECTED) - before} rows imported ({before} before) from column email, 2 bad lines"
    )
    assert len(result.stderr.splitlines()) == 2
    assert numbers(database_url) == EXPECTED


def test_an_import_that_is_killed_goes_on_where_it_was(
    database_url: str, leads: Path, hold: psycopg.Connection
) -> None:
    with held(leads, database_url, hold) as process:
        process.kill()
    let_go(hold)
    check_resumes(leads, database_url, database_url)


def test_through_pgbouncer_as_well(
    database_url: str, pgbouncer: PgBouncer, leads: Path, hold: psycopg.Connection
) -> None:
    with held(leads, pgbouncer.url, hold) as process:
        process.kill()
    let_go(hold)
    check_resumes(leads, pgbouncer.url, database_url)


def test_ctrl_c_says_that_it_can_go_on(
    database_url: str, leads: Path, hold: psycopg.Connection
) -> None:
    with held(leads, database_url, hold) as process:
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=20)
    assert (process.returncode, output) == (130, "")
    assert errors == "stopped; the same command goes on where it was\n"
    let_go(hold)
    check_resumes(leads, database_url, database_url)


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_does_not_wait_for_what_is_slow_to_read(
    database_url: str, tmp_path: Path, stop: signal.Signals
) -> None:
    slow = tmp_path / "slow.csv"
    slow.write_text("email,note\n" + f'x","{"y" * 40_000}\n' * 600)
    with started(slow, database_url, "--bad-lines", str(tmp_path / "bad.csv")) as process:
        wait_until(lambda: select(database_url, "SELECT * FROM enrich_import") != [], seconds=20)
        process.send_signal(stop)
        with at_most(5):
            output, errors = process.communicate()
    assert (process.returncode, output) == (130, "")
    assert errors == "stopped; the same command goes on where it was\n"
    assert select(database_url, "SELECT lines_done FROM enrich_import") == [{"lines_done": 0}]


def test_a_database_that_goes_away_is_one_line_that_says_so(
    database_url: str, leads: Path, hold: psycopg.Connection
) -> None:
    with held(leads, database_url, hold) as process:
        hold.execute("SELECT pg_terminate_backend(%s)", held_pids(hold))
        output, errors = process.communicate(timeout=20)
    assert (process.returncode, output) == (1, "")
    assert errors.startswith("mailroom: PostgreSQL cannot be reached: ")
    assert errors.endswith(" (run the same command again: it goes on where it was)\n")
    assert errors.count("\n") == 1
    let_go(hold)
    check_resumes(leads, database_url, database_url)


def test_two_imports_of_a_file_at_once_store_each_row_once(
    database_url: str, leads: Path, hold: psycopg.Connection
) -> None:
    with (
        held(leads, database_url, hold) as first,
        started(leads, database_url, "--json") as second,
    ):
        # It has read as far as the other and waits for the count of lines.
        wait_until(lambda: held_pids(hold, "transactionid"), seconds=20)
        hold.execute("SELECT pg_advisory_unlock_all()")
        outputs = [process.communicate(timeout=20) for process in (first, second)]
    assert [process.returncode for process in (first, second)] == [0, 0], outputs
    assert numbers(database_url) == EXPECTED
    summary = json.loads(outputs[1][0])
    assert summary["bad_lines"] == 2
    assert outputs[0][0].startswith(f"{len(EXPECTED) - summary['rows_imported']} rows imported")


def test_on_a_terminal_there_is_a_progress_bar(database_url: str, leads: Path) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "service", "enrich", "import", str(leads)],
        env={**ENVIRONMENT, "DATABASE_URL": database_url, "TERM": "xterm", "COLUMNS": "120"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
    ) as process:
        os.close(theirs)
        shown = read_all(ours)
        assert process.stdout is not None
        assert process.stdout.read().startswith(f"{len(EXPECTED)} rows imported from column email")
    assert process.returncode == 0
    assert "importing" in shown
    assert "rows/s" in shown
    assert "line 9: there is no address" in shown


def read_all(descriptor: int) -> str:
    """What is shown until the last one has closed the terminal."""
    pieces = []
    while True:
        try:
            pieces.append(os.read(descriptor, 65_536))
        except OSError:  # how Linux tells the end
            os.close(descriptor)
            return b"".join(pieces).decode()


def test_a_file_that_cannot_be_used_is_an_error(database_url: str, tmp_path: Path) -> None:
    (tmp_path / "empty.csv").touch()
    (tmp_path / "good.csv").write_text("email\na@example.com\n")
    good = str(tmp_path / "good.csv")
    for arguments, expected in (
        ([str(tmp_path / "empty.csv")], "the file holds no rows"),
        ([good, "--column", "2"], "there is no column 2; there are: 1 email"),
        ([good, "--bad-lines", str(tmp_path / "no" / "bad.csv")], "No such file or directory"),
    ):
        assert expected in failure(run("enrich", "import", *arguments, DATABASE_URL=database_url))
    assert select(database_url, "SELECT * FROM enrich_import") == []


def test_wrong_usage_is_exit_code_2(tmp_path: Path) -> None:
    good, pipe = tmp_path / "good.csv", tmp_path / "pipe"
    good.write_text("email\na@example.com\n")
    os.mkfifo(pipe)
    for arguments in (
        [],
        ["/no/such/file"],
        [str(tmp_path)],
        [str(pipe)],
        [str(good), "--delimiter", "comma"],
        [str(good), "--delimiter", '"'],
        [str(good), "--bad-lines", str(good)],
        [str(good), "--bad-lines", str(tmp_path)],
    ):
        result = CliRunner().invoke(cli, ["enrich", "import", *arguments])
        assert (result.exit_code, result.stdout) == (2, ""), arguments
        assert "Error: " in result.stderr
    assert good.read_text() == "email\na@example.com\n"


def test_the_status_counts_and_names_reasons(database_url: str, leads: Path) -> None:
    empty = json.loads(succeed("enrich", "status", "--json", DATABASE_URL=database_url))
    assert (empty["rows"], empty["reasons"], empty["unfinished_imports"]) == (0, [], [])
    succeed("enrich", "import", str(leads), DATABASE_URL=database_url)
    with psycopg.connect(database_url) as conn:
        conn.execute("UPDATE enrich_import SET finished_at = NULL")
        conn.execute(
            "UPDATE job_advertisement SET email_verified = false,"
            """ email_check = '{"reason": "null_mx"}' WHERE id <= 3"""
        )
        conn.execute(
            "UPDATE job_advertisement SET email_check_not_before = now() + interval '1 h',"
            """ email_check = '{"reason": "dns_timeout"}' WHERE id = 4"""
        )
    found = json.loads(succeed("enrich", "status", "--json", DATABASE_URL=database_url))
    counts = {"rows": len(EXPECTED), "invalid": 3, "waiting": 1, "never_checked": len(EXPECTED) - 4}
    assert {name: found[name] for name in counts} == counts
    assert [(one["verdict"], one["reason"], one["rows"]) for one in found["reasons"]] == [
        ("invalid", "null_mx", 3),
        ("unknown", "dns_timeout", 1),
    ]
    assert [one["next_due_at"] is None for one in found["reasons"]] == [True, False]
    assert found["unfinished_imports"][0]["rows_stored"] == len(EXPECTED)
    shown = succeed("enrich", "status", DATABASE_URL=database_url)
    for part in ("never checked", "null_mx", "dns_timeout", "unfinished import"):
        assert part in shown


def test_a_status_of_odd_reasons_and_times_can_be_shown(database_url: str) -> None:
    with psycopg.connect(database_url) as conn:
        conn.execute(
            "INSERT INTO job_advertisement (email, email_check, email_check_not_before)"
            """ VALUES ('a@example.com', jsonb_build_object('reason', repeat('x', 50000)),"""
            " 'infinity')"
        )
    (found,) = json.loads(succeed("enrich", "status", "--json", DATABASE_URL=database_url))[
        "reasons"
    ]
    assert len(found["reason"]) == 50_000
    for zone in ("Asia/Tokyo", "America/New_York"):
        shown = succeed("enrich", "status", DATABASE_URL=database_url, TZ=zone).splitlines()
        assert shown[-1].split() == ["unknown", "x" * MAX_REASON_CHARS, "1", "infinity"]
