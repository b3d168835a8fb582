"""The command line, as real processes: what it prints, its exit codes, and what it never prints."""

import json
import os
import pty
import signal
import socket
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from fcntl import ioctl
from pathlib import Path

import click
import httpx
import psycopg
import pytest
from click.testing import CliRunner
from cryptography.fernet import Fernet
from psycopg.rows import dict_row

from service.cli import cli
from service.db.migrate import known_version
from service.settings import Settings
from tests.scripted_imap import Close, Hang, ScriptedImap
from tests.servers import PostgresCluster, wait_until
from tests.servers.process import free_port
from tests.servers.service import Replica

PASSWORD = "geheim-5 Wörter"
KEY = Fernet.generate_key().decode()
Result = subprocess.CompletedProcess[str]

UNSET = {name.upper() for name in Settings.model_fields} | {"MAILBOX_PASSWORD"}
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in UNSET}


@pytest.fixture
def environment(database_url: str) -> dict[str, str]:
    """All that the commands need: a migrated database and a key."""
    return {"DATABASE_URL": database_url, "SERVICE_SECRET_KEY": KEY}


def run(*arguments: str, **variables: str) -> Result:
    """`python -m service ARGUMENTS` with these variables and no terminal."""
    return subprocess.run(
        [sys.executable, "-m", "service", *arguments],
        env={**ENVIRONMENT, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def run_all(commands: Sequence[Sequence[str]], **variables: str) -> list[Result]:
    """Several at once: most of their time is the start of Python."""
    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(lambda arguments: run(*arguments, **variables), commands))


def succeed(*arguments: str, **variables: str) -> str:
    """The standard output of a command that has to succeed."""
    result = run(*arguments, **variables)
    assert result.returncode == 0, result.stderr
    return result.stdout


def failure(result: Result) -> str:
    """The one line on standard error of a command that has failed."""
    assert result.returncode == 1, result.stderr
    (line,) = result.stderr.splitlines()
    assert line.startswith("mailroom: ")
    return line.removeprefix("mailroom: ")


def add(address: str = "anna@example.com", *options: str, **variables: str) -> Result:
    variables = {"MAILBOX_PASSWORD": PASSWORD, **variables}
    return run("mailbox", "add", address, "--host", "mail.example.com", *options, **variables)


def select(url: str, statement: str) -> list[dict[str, object]]:
    with psycopg.connect(url, row_factory=dict_row) as conn:
        return conn.execute(statement).fetchall()


def stored_passwords(url: str) -> dict[str, str]:
    """By address, decrypted."""
    with psycopg.connect(url) as conn:
        rows = conn.execute("SELECT address, secret FROM email_mailbox_config").fetchall()
    return {address: Fernet(KEY).decrypt(bytes(secret)).decode() for address, secret in rows}


def commands_of(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from commands_of(inner, (*path, name))


def test_every_command_explains_itself() -> None:
    commands = list(commands_of(cli))
    assert ("mailbox", "add") in commands
    assert ("quarantine", "replay") in commands
    assert ("attachment", "retry") in commands
    assert ("webhook", "retry") in commands
    for path in commands:
        result = CliRunner().invoke(cli, [*path, "--help"], prog_name="mailroom")
        assert (result.exit_code, result.stderr) == (0, ""), path
        assert result.stdout.startswith(" ".join(["Usage: mailroom", *path])), path
    assert succeed("mailbox", "--help").startswith("Usage: python -m service mailbox ")


WRONG_USAGE = [
    ["no-such-command"],
    ["--no-such-option"],
    ["mailbox", "add"],
    ["mailbox", "add", "anna@example.com"],
    ["mailbox", "add", "anna", "--host", "mail.example.com"],
    ["mailbox", "add", "anna@example.com", "--host", "mail.example.com", "--tls", "maybe"],
    ["mailbox", "add", "anna@example.com", "--host", "mail.example.com", "--port", "65536"],
    ["mailbox", "add", "anna@example.com", "--host", "mail.example.com", "--since", "yesterday"],
    ["mailbox", "add", "anna@example.com", "--host", "mail.example.com", "--since", "0001-01-01"],
    ["mailbox", "add", "anna@example.com", "--host", "mail.example.com", "--poll-interval", "0"],
    ["mailbox", "add", "anna@example.com", "--host", "mail.example.com", "--password", "x"],
    ["mailbox", "add", "anna@example.com", "--host", "h", "--password-file", "/no/such/file"],
    ["mailbox", "show"],
    ["quarantine", "replay"],
    ["quarantine", "replay", "--all", "7"],
    ["quarantine", "show", "seven"],
    ["attachment", "list", "--status", "lost"],
    ["attachment", "retry"],
    ["attachment", "retry", "--all", "7"],
    ["webhook", "retry"],
    ["webhook", "retry", "--all", "7"],
]


def test_wrong_usage_is_exit_code_2_before_anything_is_done() -> None:
    for arguments in WRONG_USAGE:
        result = CliRunner().invoke(cli, arguments)
        assert (result.exit_code, result.stdout) == (2, ""), arguments
        assert "Error: " in result.stderr, arguments
    wrong = run("mailbox", "add")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "Error: Missing argument 'ADDRESS'." in wrong.stderr


INJECTIONS = [
    ["add", "anna@example.com\r\nA1 LOGOUT", "--host", "mail.example.com"],
    ["add", "anna@example.com", "--host", "mail.example.com\r\n"],
    ["add", "anna@example.com", "--host", "mail.example.com", "--username", "anna\r\nA1 LOGOUT"],
    ["add", "anna@example.com", "--host", "mail.example.com", "--folder", "INBOX\nA1 LOGOUT"],
    ["update", "bob@example.com", "--host", "mail.example.com\n"],
    ["update", "bob@example.com", "--username", "bob\r"],
    ["update", "bob@example.com", "--folder", "\x1b[2J"],
]


@pytest.mark.parametrize("arguments", INJECTIONS)
def test_line_breaks_and_control_characters_are_refused(arguments: list[str]) -> None:
    result = CliRunner().invoke(cli, ["mailbox", *arguments])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "must be text without control characters" in result.stderr


def test_a_mailbox_from_its_beginning_to_its_end(
    database_url: str, environment: dict[str, str]
) -> None:
    assert json.loads(succeed("mailbox", "list", "--json", **environment)) == []
    options = ["--tls", "starttls", "--username", "anna", "--folder", "Entwürfe & mehr"]
    options += ["--since", "2026-03-02T04:48:00", "--poll-interval", "30"]
    added = add("Anna@example.com", *options, **environment)
    assert added.returncode == 0
    assert "added Anna@example.com" in added.stdout
    assert add("bob@example.com", "--since", "all", **environment).returncode == 0

    line = failure(add("ANNA@example.com", **environment))
    assert line.startswith("mailbox ANNA@example.com exists already (")

    anna, bob = json.loads(succeed("mailbox", "list", "--json", **environment))
    assert json.loads(succeed("mailbox", "show", "anna@EXAMPLE.com", "--json", **environment)) == (
        anna
    )
    assert anna["connection"] == {
        "host": "mail.example.com",
        "port": 143,
        "tls": "starttls",
        "username": "anna",
        "folder": "Entwürfe & mehr",
    }
    assert (anna["poll_interval_seconds"], anna["enabled"], anna["state"]) == (30, True, "active")
    assert anna["ingest_since"] == "2026-03-02T04:48:00+00:00"
    assert (bob["connection"]["port"], bob["connection"]["tls"]) == (993, "implicit")
    assert (bob["connection"]["username"], bob["ingest_since"]) == ("bob@example.com", None)
    assert "Entwürfe & mehr" in succeed("mailbox", "show", "anna@example.com", **environment)
    table = succeed("mailbox", "list", **environment)
    assert "bob@example.com" in table
    assert "mail.example.com:993" in table

    changes = ["--host", "mail.example.net", "--port", "1143", "--tls", "none"]
    succeed("mailbox", "update", "anna@example.com", *changes, **environment)
    (row,) = select(database_url, "SELECT connection FROM email_mailbox_config WHERE id = 1")
    assert row["connection"] == {
        **anna["connection"],
        "host": "mail.example.net",
        "port": 1143,
        "tls": "none",
    }
    assert stored_passwords(database_url) == {
        "Anna@example.com": PASSWORD,
        "bob@example.com": PASSWORD,
    }
    succeed("mailbox", "update", "anna@example.com", **environment, MAILBOX_PASSWORD="another one")
    assert stored_passwords(database_url)["Anna@example.com"] == "another one"

    succeed("mailbox", "disable", "anna@example.com", **environment)
    assert "disabled" in succeed("mailbox", "show", "anna@example.com", **environment)
    succeed("mailbox", "enable", "anna@example.com", **environment)
    shown = json.loads(succeed("mailbox", "show", "anna@example.com", "--json", **environment))
    assert shown["enabled"] is True

    succeed("mailbox", "remove", "anna@example.com", "--yes", **environment)
    unknown = [["show"], ["test"], ["poll"], ["enable"], ["disable"], ["remove", "--yes"]]
    unknown += [["update", "--host", "mail.example.org"]]
    commands = [["mailbox", *command, "anna@example.com"] for command in unknown]
    for result in run_all(commands, **environment):
        assert failure(result) == "there is no mailbox anna@example.com (see: mailbox list)"


def test_the_password_comes_from_a_file_or_the_environment(
    database_url: str, environment: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "password"
    file.write_text(f"{PASSWORD}\r\n", "utf-8-sig")
    added = add("file@example.com", "--password-file", str(file), **environment)
    assert added.returncode == 0
    assert add("environment@example.com", **environment).returncode == 0
    assert stored_passwords(database_url) == {
        "file@example.com": PASSWORD,
        "environment@example.com": PASSWORD,
    }
    arguments = ["mailbox", "add", "bad@example.com", "--host", "mail.example.com"]
    commands = [arguments]
    for number, content in enumerate((b"\n", b"two\nlines", b"W\xf6rter")):
        file = tmp_path / f"bad {number}"
        file.write_bytes(content)
        commands.append([*arguments, "--password-file", str(file)])
    no_terminal, *bad = map(failure, run_all(commands, **environment))
    assert "no terminal to ask for the password" in no_terminal
    assert set(bad) == {"the password is empty, not UTF-8 or holds control characters"}
    assert len(stored_passwords(database_url)) == 2


def test_the_password_is_asked_for_without_showing_it(
    database_url: str, environment: dict[str, str]
) -> None:
    ours, theirs = pty.openpty()

    def become_the_terminals_process() -> None:
        os.setsid()
        ioctl(0, termios.TIOCSCTTY, 0)

    process = subprocess.Popen(
        [sys.executable, "-m", "service", "mailbox", "add", "anna@example.com", "--host", "h"],
        env={**ENVIRONMENT, **environment},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        preexec_fn=become_the_terminals_process,
    )
    os.close(theirs)
    shown = read_until(ours, b"Password: ")
    os.write(ours, f"{PASSWORD}\n".encode())
    shown += read_until(ours, b"added anna@example.com")
    assert process.wait(20) == 0
    os.close(ours)
    assert PASSWORD.encode() not in shown
    assert stored_passwords(database_url) == {"anna@example.com": PASSWORD}


def read_until(descriptor: int, wanted: bytes) -> bytes:
    seen = b""
    while wanted not in seen:
        seen += os.read(descriptor, 1024)
    return seen


def test_the_password_appears_in_no_output_no_log_and_no_table(
    database_url: str, environment: dict[str, str]
) -> None:
    environment |= {"LOG_LEVEL": "debug", "LOG_FORMAT": "console"}
    with ScriptedImap() as server:
        options = ["--port", str(server.port), "--tls", "none"]
        local = ["mailbox", "add", "anna@example.com", "--host", server.host, *options]
        outputs = [run(*local, **environment, MAILBOX_PASSWORD="geheim-5-ascii")]
        outputs += run_all(
            [
                ["mailbox", *one, "anna@example.com"]
                for one in (["show", "--json"], ["test"], ["poll"])
            ],
            **environment,
        )
        assert [result.returncode for result in outputs] == [0, 0, 0, 0]
        for no in (b"{tag} NO [AUTHENTICATIONFAILED] wrong\r\n", b"{tag} BAD what?\r\n", Close()):
            server.script |= {"LOGIN": no, "AUTHENTICATE": no}
            outputs.append(run("mailbox", "poll", "anna@example.com", **environment))
        assert [result.returncode for result in outputs[4:]] == [1, 1, 1]
        assert any("geheim-5-ascii" in line for line in server.received), "it was sent"
    dump = select(database_url, "SELECT m::text AS text FROM email_mailbox_config m")
    everything = "".join([repr(outputs), repr(dump)])
    for form in ("geheim", b"geheim".hex(), KEY):
        assert form not in everything


def test_a_command_that_cannot_work_says_why_in_one_line(
    postgres: PostgresCluster, database_url: str, environment: dict[str, str]
) -> None:
    unmigrated = postgres.create_database("unmigrated")
    newer = postgres.create_database("newer", template="migrated_template")
    with psycopg.connect(newer) as conn:
        conn.execute("UPDATE schema_version SET version = 99")
    nobody_there = f"postgresql://postgres@127.0.0.1:{free_port()}/postgres"
    listing, adding = ["mailbox", "list"], ["mailbox", "add", "a@example.com", "--host", "h"]
    cases: list[tuple[Sequence[str], Mapping[str, str], str]] = [
        (adding, {"SERVICE_SECRET_KEY": ""}, "SERVICE_SECRET_KEY: needed with DATABASE_URL"),
        ([], {"SERVICE_SECRET_KEY": ""}, "SERVICE_SECRET_KEY: needed with DATABASE_URL"),
        (listing, {"DATABASE_URL": "postgresql://a:geheim/5@h/x"}, "DATABASE_URL: is no valid"),
        (listing, {"DATABASE_URL": nobody_there}, "PostgreSQL cannot be reached: "),
        (["migrate"], {"DATABASE_URL": nobody_there}, "PostgreSQL cannot be reached: "),
        (listing, {"DATABASE_URL": unmigrated}, "the database's schema is at version 0"),
        ([], {"DATABASE_URL": unmigrated}, "(run: python -m service migrate)"),
        ([], {"DATABASE_URL": newer}, "the database's schema is at version 99, newer than"),
        (listing, {"POLL_INTERVAL_SECONDS": "0"}, "POLL_INTERVAL_SECONDS: "),
        (["serve"], {"HTTP_BIND": "here"}, "HTTP_BIND: must be HOST:PORT"),
        (["quarantine", "show", "7"], {}, "there is no quarantine row 7"),
        (["attachment", "show", "7"], {}, "there is no attachment 7"),
        (["attachment", "retry", "7"], {}, "there is no attachment 7"),
        (["webhook", "retry", "7"], {}, "there is no undelivered event 7"),
        ([], {"WEBHOOK_URL": "http://h.example.com:99999/"}, "WEBHOOK_SECRET: needed with WEBHOOK"),
        ([], {"LLM_BASE_URL": "http://h.example.com/v1"}, "LLM_MODEL: needed with LLM_BASE_URL"),
    ]

    def run_case(case: tuple[Sequence[str], Mapping[str, str], str]) -> Result:
        arguments, variables, _ = case
        usual = {"HTTP_BIND": "127.0.0.1:0", "LOG_LEVEL": "error", "MAILBOX_PASSWORD": PASSWORD}
        return run(*arguments, **{**environment, **usual, **variables})

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(run_case, cases))
    for (arguments, variables, expected), result in zip(cases, results, strict=True):
        assert expected in failure(result), (arguments, variables)
        assert "geheim" not in result.stderr


def test_migrate_says_what_it_did_also_when_several_start_at_once(
    postgres: PostgresCluster,
) -> None:
    url = postgres.create_database("to_migrate")
    results = run_all([["migrate"]] * 3, DATABASE_URL=url)
    assert [result.returncode for result in results] == [0, 0, 0]
    assert sorted(result.stdout for result in results) == [
        f"schema is at version {known_version()}\n",
        f"schema is at version {known_version()}\n",
        f"schema is at version {known_version()}, was 0\n",
    ]


def test_without_a_database_url_the_embedded_postgresql_and_a_key_of_its_own_serve(
    tmp_path: Path,
) -> None:
    variables = {"SERVICE_DATA_DIR": str(tmp_path / "data")}
    assert add(**variables).returncode == 0
    (mailbox,) = json.loads(succeed("mailbox", "list", "--json", **variables))
    assert mailbox["address"] == "anna@example.com"
    key = tmp_path / "data" / "secret.key"
    assert key.stat().st_mode & 0o077 == 0
    Fernet(key.read_bytes())


@pytest.fixture
def cluster() -> Iterator[PostgresCluster]:
    """A PostgreSQL that may be stopped, its database migrated."""
    with PostgresCluster() as cluster:
        succeed("migrate", DATABASE_URL=cluster.url)
        yield cluster


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., Replica]:
    """Makes a service on this database; enter it to start it."""

    def make(url: str, **variables: str) -> Replica:
        usual = dict.fromkeys(UNSET, "") | {"LOG_FORMAT": "json"}
        keys = {"DATABASE_URL": url, "SERVICE_SECRET_KEY": KEY}
        return Replica(tmp_path, {**usual, **keys, **variables})

    return make


def get(service: Replica, path: str) -> httpx.Response:
    return httpx.get(f"http://127.0.0.1:{service.http_port}{path}", timeout=10)


def log_lines(service: Replica) -> list[dict[str, str]]:
    return [json.loads(line) for line in service.log.read_text().splitlines()]


def messages(service: Replica) -> list[str]:
    return [line["message"] for line in log_lines(service)]


def test_the_service_answers_and_outlives_a_postgresql_that_goes_and_comes_back(
    cluster: PostgresCluster, start: Callable[..., Replica]
) -> None:
    with start(cluster.url) as service:
        service.wait_ready()
        ready = get(service, "/readyz")
        assert ready.json() == {
            "status": "ready",
            "checks": dict.fromkeys(
                ("database", "enricher", "loops", "pipeline", "poller", "watchdog"), "ok"
            ),
        }
        assert get(service, "/healthz").json() == {"status": "alive"}
        metrics = get(service, "/metrics")
        assert metrics.headers["content-type"].startswith("text/plain")
        assert 'mailroom_http_requests_total{route="/healthz",status="200"} 1.0' in metrics.text

        cluster.stop()
        away = get(service, "/readyz")
        assert away.status_code == 503
        assert away.json()["status"] == "not ready"
        assert away.json()["checks"]["database"].startswith("PostgreSQL cannot be reached: ")
        assert service.status("/healthz") == 200
        cluster.start()
        service.wait_ready(seconds=10)

        began = time.monotonic()
        assert service.stop(signal.SIGTERM) == 0
        assert time.monotonic() - began < 10
    assert "Traceback" not in service.log.read_text()
    assert messages(service)[0] == f"listening on http://127.0.0.1:{service.http_port}"
    assert messages(service)[-1] == "stopped"


def test_errors_are_problem_documents(database_url: str, start: Callable[..., Replica]) -> None:
    with start(database_url) as service:
        service.wait_ready()
        missing = get(service, "/no/such/page")
        posted = httpx.post(f"http://127.0.0.1:{service.http_port}/healthz", timeout=10)
        assert service.stop(signal.SIGINT) == 0
    for response, status, title in (
        (missing, 404, "Not Found"),
        (posted, 405, "Method Not Allowed"),
    ):
        assert response.status_code == status
        assert response.headers["content-type"] == "application/problem+json"
        problem = response.json()
        assert set(problem) == {"type", "title", "status", "detail", "instance"}
        assert (problem["title"], problem["status"]) == (title, status)
        assert problem["detail"]
    assert missing.json()["instance"] == f"http://127.0.0.1:{service.http_port}/no/such/page"
    assert {"GET", "HEAD"} <= set(posted.headers["allow"].split(", "))


def test_a_service_waits_for_a_postgresql_that_is_away_at_its_start(
    cluster: PostgresCluster, start: Callable[..., Replica]
) -> None:
    cluster.stop()
    with start(cluster.url) as service:
        wait_until(lambda: service.status("/healthz") == 200, seconds=20)
        assert service.status("/readyz") == 503
        wait_until(lambda: any("trying again until it can" in line for line in messages(service)))
        cluster.start()
        service.wait_ready(seconds=10)
        assert service.stop() == 0
    assert "Traceback" not in service.log.read_text()


def test_a_service_that_waits_for_postgresql_can_be_stopped(start: Callable[..., Replica]) -> None:
    with start(f"postgresql://postgres@127.0.0.1:{free_port()}/postgres") as service:
        wait_until(lambda: service.status("/healthz") == 200, seconds=20)
        began = time.monotonic()
        assert service.stop() == 0
        assert time.monotonic() - began < 10
    assert "Traceback" not in service.log.read_text()


def test_a_taken_port_is_one_clear_line(environment: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        bind = f"127.0.0.1:{taken.getsockname()[1]}"
        result = run(**environment, HTTP_BIND=bind)
    assert failure(result).startswith(f"HTTP_BIND: cannot listen on {bind}: ")


@pytest.fixture
def hanging_service(
    database_url: str, environment: dict[str, str], start: Callable[..., Replica]
) -> Iterator[Replica]:
    """A service in the middle of a poll: its mail server accepts and says nothing."""
    with ScriptedImap(script={"GREETING": Hang()}) as server:
        options = ["--port", str(server.port), "--tls", "none"]
        local = ["mailbox", "add", "anna@example.com", "--host", server.host, *options]
        succeed(*local, **environment, MAILBOX_PASSWORD=PASSWORD)
        with start(database_url) as service:
            service.wait_ready()
            wait_until(lambda: server.connections_open == 1)
            yield service


def test_the_first_signal_ends_a_poll_that_hangs_within_10_seconds(
    hanging_service: Replica,
) -> None:
    began = time.monotonic()
    assert hanging_service.stop() == 0
    assert time.monotonic() - began < 10
    assert "Traceback" not in hanging_service.log.read_text()


def test_while_it_stops_it_is_not_ready_and_the_second_signal_ends_it_at_once(
    hanging_service: Replica,
) -> None:
    hanging_service.process.send_signal(signal.SIGTERM)
    wait_until(lambda: hanging_service.status("/readyz") == 503)
    assert get(hanging_service, "/readyz").json()["checks"]["service"] == "stopping"
    began = time.monotonic()
    assert hanging_service.stop(signal.SIGTERM) == 128 + signal.SIGTERM
    assert time.monotonic() - began < 2
