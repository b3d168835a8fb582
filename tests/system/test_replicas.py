"""Three replicas, one database, one mail server; one replica is killed and PostgreSQL restarted."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import trio
from cryptography.fernet import Fernet, MultiFernet

from service.db.mailboxes import insert_mailbox
from service.db.migrate import migrate
from service.db.pool import open_connection
from service.model import ImapConnection
from tests.servers import Dovecot, PostgresCluster, wait_until
from tests.servers.service import Replica

MAILBOXES = 30
MAILS_EACH = 20

OLDEST_TRANSACTION = """
    SELECT extract(epoch FROM clock_timestamp() - xact_start)::float8, state, wait_event, query
    FROM pg_stat_activity
    WHERE datname = current_database() AND xact_start IS NOT NULL AND pid <> pg_backend_pid()
      AND backend_type = 'client backend'
    ORDER BY xact_start LIMIT 1
"""


def mail(user: str, number: int) -> bytes:
    lines = [
        "From: sender@example.com",
        f"To: {user}",
        f"Subject: Mail {number}",
        "Date: Mon, 02 Mar 2026 10:00:00 +0100",
        f"Message-ID: <{number}.{user}>",
        "",
        f"Text of {number} for {user}",
    ]
    return "\r\n".join(lines).encode()


async def add_mailboxes(url: str, keys: MultiFernet, users: list[str], port: int) -> None:
    async with open_connection(url) as conn:
        for user in users:
            await insert_mailbox(
                conn,
                address=user,
                connection=ImapConnection("127.0.0.1", port, "none", user),
                secret=keys.encrypt(b"secret"),
                poll_interval_seconds=3,
                ingest_all=True,
                ingest_since=None,
            )


class TransactionWatch:
    """The age of the oldest open transaction, looked at all the time."""

    def __init__(self, url: str) -> None:
        self.oldest_seconds = 0.0
        self.oldest: tuple[str, ...] = ()
        self.looks = 0
        self._url = url
        self._ended = threading.Event()

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self._watch)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.02):
            try:
                with psycopg.connect(self._url, autocommit=True) as conn:
                    self._look(conn)
            except psycopg.OperationalError:
                continue  # PostgreSQL is being restarted

    def _look(self, conn: psycopg.Connection[Any]) -> None:
        while not self._ended.wait(0.02):
            row = conn.execute(OLDEST_TRANSACTION).fetchone()
            self.looks += 1
            if row is not None and row[0] > self.oldest_seconds:
                self.oldest_seconds = row[0]
                self.oldest = row[1:]


def count(url: str, query: str) -> int:
    with psycopg.connect(url, autocommit=True) as conn:
        row = conn.execute(query).fetchone()  # type: ignore[arg-type]
        assert row is not None
        return int(row[0])


def test_every_mail_is_one_request_although_a_replica_and_the_database_die(
    dovecot: Dovecot, tmp_path: Path
) -> None:
    key = Fernet.generate_key()
    users = [dovecot.new_user() for _ in range(MAILBOXES)]
    with PostgresCluster() as cluster, ExitStack() as replicas:
        url = cluster.create_database("replicas")
        trio.run(migrate, url)
        trio.run(add_mailboxes, url, MultiFernet([Fernet(key)]), users, dovecot.imap_port)
        watch = TransactionWatch(url)
        environment = {"DATABASE_URL": url, "SERVICE_SECRET_KEY": key.decode()}
        first, second, third = (
            replicas.enter_context(Replica(tmp_path, environment)) for _ in range(3)
        )
        for replica in (first, second, third):
            replica.wait_ready()
        with watch.running():
            half = MAILS_EACH // 2
            for user in users:
                dovecot.write_maildir(user, (mail(user, n) for n in range(half)))
            wait_until(lambda: first.is_connected_to(dovecot.imap_port), seconds=20)
            assert first.stop(signal.SIGKILL) == -signal.SIGKILL

            wait_until(lambda: count(url, "SELECT count(*) FROM request") >= 50, seconds=30)
            cluster.restart()
            for user in users:
                # every second one comes twice
                twice = (n for n in range(half, MAILS_EACH) for _ in range(1 + n % 2))
                dovecot.write_maildir(user, (mail(user, n) for n in twice))
            wait_until(
                lambda: count(url, "SELECT count(*) FROM request") == MAILBOXES * MAILS_EACH,
                seconds=60,
            )
            # Every mailbox is polled to its end once more: now a mail taken twice would show.
            since = time.time()
            polled = (
                "SELECT count(*) FROM email_mailbox_config"
                f" WHERE last_success_at > to_timestamp({since})"
            )
            wait_until(lambda: count(url, polled) == MAILBOXES, seconds=30)
        with psycopg.connect(url) as conn:
            stored = conn.execute("SELECT message_id FROM request").fetchall()
        assert sorted(row[0] for row in stored) == sorted(
            f"<{number}.{user}>" for user in users for number in range(MAILS_EACH)
        )
        assert count(url, "SELECT count(*) FROM quarantine WHERE resolved_at IS NULL") == 0
        assert count(url, "SELECT count(*) FROM attachment WHERE kind = 'body'") == 600
        assert watch.looks > 50
        assert watch.oldest_seconds < 1, watch.oldest
        assert second.stop() == 0
        assert third.stop() == 0
