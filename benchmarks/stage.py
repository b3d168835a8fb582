"""The stage of all measurements: a Dovecot, a PostgreSQL, and replicas that wait for their start.

Mailboxes become due at one instant that the replicas know in advance, as in production: each
sleeps until it. The end is read from the cursors, which move together with the rows; what was
stored is counted afterwards, so that a wrong run raises instead of giving a figure.
"""

import itertools
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import click
import psutil
import psycopg
import trio
from cryptography.fernet import Fernet

from benchmarks.report import Figure, print_figures
from service.db.migrate import migrate
from tests.servers import Dovecot, PostgresCluster
from tests.servers.service import Replica
from tests.system.api import Api, open_api

TEMPLATE = "migrated"
# Longer than the replicas' look for due mailboxes (POLL_INTERVAL_SECONDS below).
LEAD_SECONDS = 2
WATCH_SECONDS = 0.01
GIVE_UP_SECONDS = 600

_ADD_MAILBOX = """
    INSERT INTO email_mailbox_config
        (address, provider, connection, secret, poll_interval, ingest_since, enabled,
         last_polled_at)
    VALUES (%s, 'imap', %s, %s, '1 hour', NULL, %s, CASE WHEN %s THEN now() END)
"""
_MAKE_DUE = """
    UPDATE email_mailbox_config
    SET enabled = true, not_before = now() + make_interval(secs => %s)
    RETURNING extract(epoch FROM not_before)::float8
"""
# UIDs of a new maildir count from 1, so the cursors add up to the mails that were taken.
_PROGRESS = """
    SELECT coalesce(sum((cursor->>'uid')::int), 0), max(last_error) FROM email_mailbox_config
"""
_COUNTS_STORED = (
    "SELECT count(*) FROM request",
    "SELECT count(content) FROM attachment WHERE verdict = 'extract'",
    "SELECT count(*) FROM quarantine",
)


@dataclass(frozen=True, slots=True)
class Amount:
    """What is there to take: `files` are those whose content is to be stored."""

    mailboxes: int
    mails_each: int
    files: int

    @property
    def mails(self) -> int:
        return self.mailboxes * self.mails_each


@dataclass(frozen=True, slots=True)
class Run:
    """From the instant when all is due until all is stored; how busy all cores were meanwhile."""

    seconds: float
    cores_busy_percent: float


class Stage:
    """Ready from `open_stage`."""

    def __init__(self, dovecot: Dovecot, cluster: PostgresCluster, folder: Path) -> None:
        self.dovecot = dovecot
        self._cluster = cluster
        self._folder = folder
        self._key = Fernet.generate_key()
        self._secret = Fernet(self._key).encrypt(dovecot.password.encode())
        self._numbers = itertools.count(1)

    def fill_mailbox(self, user: str, mails: Iterator[bytes]) -> None:
        """Write a maildir and have Dovecot index it, so that nobody pays for the first look."""
        self.dovecot.write_maildir(user, mails)
        with self.dovecot.client(user) as client:
            client.select_folder("INBOX")
            for uid in client.search("ALL"):
                # One by one, because Dovecot is silent while it reads large ones.
                client.fetch(
                    uid, ["BODY.PEEK[HEADER]", "BODYSTRUCTURE", "INTERNALDATE", "RFC822.SIZE"]
                )

    @contextmanager
    def database(self) -> Iterator[str]:
        """The URL of an empty migrated database."""
        name = f"run_{next(self._numbers)}"
        yield self._cluster.create_database(name, template=TEMPLATE)
        self._cluster.drop_database(name)

    def add_mailboxes(self, url: str, users: Sequence[str], port: int, *, idle: bool) -> None:
        """Add them disabled, or enabled and just polled (`idle`)."""
        rows = [
            (user, json.dumps(self._connection(user, port)), self._secret, idle, idle)
            for user in users
        ]
        with psycopg.connect(url) as conn:
            conn.cursor().executemany(_ADD_MAILBOX, rows)

    def _connection(self, user: str, port: int) -> dict[str, object]:
        return {
            "host": self.dovecot.host,
            "port": port,
            "tls": "none",
            "username": user,
            "folder": "INBOX",
        }

    @contextmanager
    def replicas(self, url: str, count: int, **environment: str) -> Iterator[list[Replica]]:
        """`count` replicas of the service, ready and with nothing to do yet."""
        common = {
            "DATABASE_URL": url,
            "SERVICE_SECRET_KEY": self._key.decode(),
            "LOG_LEVEL": "warning",
        }
        with ExitStack() as stack:
            replicas = [
                stack.enter_context(Replica(self._folder, {**common, **environment}))
                for _ in range(count)
            ]
            for replica in replicas:
                replica.wait_ready()
            yield replicas

    @contextmanager
    def api(self, **environment: str) -> Iterator[Api]:
        """A replica with a database of its own, ready to be asked; requests are not limited."""
        with (
            self.database() as url,
            open_api(self._folder, url, LOG_LEVEL="warning", **environment) as api,
        ):
            yield api

    def ingest(self, url: str, amount: Amount) -> Run:
        """Make all mailboxes due at one instant, and wait until every mail is stored."""
        with psycopg.connect(url, autocommit=True) as conn:
            due_at = _number(conn, _MAKE_DUE, (LEAD_SECONDS,))
            time.sleep(max(0, due_at - time.time()))
            psutil.cpu_percent()  # the next call counts from here
            _watch(conn, amount.mails, until=due_at + GIVE_UP_SECONDS)
            run = Run(time.time() - due_at, psutil.cpu_percent())
        check_stored(url, amount)
        return run


class Part(Protocol):
    """One of the things that a benchmark measures."""

    def __call__(self, stage: Stage, *, quick: bool) -> list[Figure]: ...


def check_stored(url: str, amount: Amount) -> None:
    """Every mail is one request and every file is there; RuntimeError."""
    with psycopg.connect(url, autocommit=True) as conn:
        stored = [int(_number(conn, query)) for query in _COUNTS_STORED]
    if stored != [amount.mails, amount.files, 0]:
        raise RuntimeError(f"requests, files, quarantined: {stored}, not what {amount} says")


def _watch(conn: psycopg.Connection[Any], mails: int, *, until: float) -> None:
    """Return once this many mails are taken; RuntimeError when a poll fails, or at `until`."""
    taken, error = 0, None
    while taken < mails:
        time.sleep(WATCH_SECONDS)
        taken, error = conn.execute(_PROGRESS).fetchone() or (0, None)
        if error is not None or time.time() > until:
            raise RuntimeError(f"{taken} of {mails} mails taken: {error or 'out of time'}")


def _number(conn: psycopg.Connection[Any], query: str, values: Sequence[float] = ()) -> float:
    row = conn.execute(query, values).fetchone()
    assert row is not None
    return float(row[0])


@contextmanager
def open_stage() -> Iterator[Stage]:
    """Start the servers; logs of replicas go to a temporary folder."""
    with (
        Dovecot() as dovecot,
        PostgresCluster() as cluster,
        tempfile.TemporaryDirectory() as folder,
    ):
        trio.run(migrate, cluster.create_database(TEMPLATE))
        yield Stage(dovecot, cluster, Path(folder))


def create_command(what: str, parts: Mapping[str, Part]) -> click.Command:
    """The command line of a benchmark of these parts."""

    @click.command(help=f"{what}: all PARTS, or those that are named.")
    @click.option("--quick", is_flag=True, help="Smaller amounts, one run each.")
    @click.argument("names", metavar="[PARTS]...", nargs=-1, type=click.Choice(list(parts)))
    def main(names: tuple[str, ...], *, quick: bool) -> None:
        run_parts(parts, names, quick=quick)

    return main


def run_parts(parts: Mapping[str, Part], names: Sequence[str], *, quick: bool) -> None:
    """Measure these parts, or all of them, each on a stage of its own, and print the table."""
    figures: list[Figure] = []
    for name in names or parts:
        with open_stage() as stage:
            figures += parts[name](stage, quick=quick)
    print_figures(figures)


def announce(words: str) -> None:
    """Progress goes to standard error, the table to standard output."""
    print(words, file=sys.stderr, flush=True)
