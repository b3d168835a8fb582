"""The parts that the other tests stand on, each proved by a short real use."""

import os
import re
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest
from imapclient import IMAPClient, exceptions

from service.db.pool import open_connection
from tests.scripted_imap import Close, Drip, Hang, HangMidLiteral, Message, ScriptedImap
from tests.servers import Dovecot, PgBouncer, PostgresCluster, wait_until
from tests.servers.process import Daemon, require_program

PLAIN = b"Message-ID: <plain@example.com>\r\nSubject: plain\r\n\r\nHello,\r\nworld\r\n"
MIXED = (
    b"Message-ID: <mixed@example.com>\r\n"
    b"Content-Type: multipart/mixed; boundary=outer\r\n\r\n"
    b"--outer\r\nContent-Type: text/plain; charset=utf-8\r\n\r\nsee below\r\n"
    b"--outer\r\nContent-Type: application/pdf; name=a.pdf\r\n"
    b"Content-Transfer-Encoding: base64\r\n"
    b"Content-Disposition: attachment; filename=a.pdf\r\n\r\nJVBERi0=\r\n--outer--\r\n"
)
TABLES = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"


def test_a_clone_has_the_tables_and_settings_of_the_migration(database_url: str) -> None:
    with psycopg.connect(database_url) as conn:
        assert conn.execute("SELECT count(*) FROM request").fetchone() == (0,)
        timeout = conn.execute("SHOW idle_in_transaction_session_timeout").fetchone()
    assert timeout == ("5s",)


@pytest.mark.parametrize("_test", ["first", "second"])
def test_every_test_has_a_database_of_its_own(database_url: str, _test: str) -> None:
    with psycopg.connect(database_url) as conn:
        conn.execute("CREATE TABLE only_here ()")


async def test_the_service_connects_to_a_clone(database_url: str) -> None:
    async with open_connection(database_url) as conn:
        assert await conn.fetchval("SELECT 1") == 1


def test_postgres_restarts_and_keeps_what_was_committed() -> None:
    with PostgresCluster() as cluster:
        with psycopg.connect(cluster.url, autocommit=True) as conn:
            conn.execute("CREATE TABLE kept ()")
            cluster.restart("immediate")
            with pytest.raises(psycopg.OperationalError):
                conn.execute("SELECT 1")
        with psycopg.connect(cluster.url) as conn:
            assert conn.execute(TABLES).fetchone() == (1,)
        cluster.stop()
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(cluster.url)


def test_pgbouncer_serves_many_clients_over_few_connections(pgbouncer: PgBouncer) -> None:
    clients = [psycopg.connect(pgbouncer.url, autocommit=True) for _ in range(6)]
    backends = {client.execute("SELECT pg_backend_pid()").fetchone() for client in clients}
    for client in clients:
        client.close()
    assert 1 <= len(backends) <= 2


def test_pgbouncer_has_nothing_to_say_against_the_deployed_file(pgbouncer: PgBouncer) -> None:
    with psycopg.connect(pgbouncer.url, autocommit=True) as conn:
        conn.execute("SELECT 1")
    assert "process up" in pgbouncer.log
    assert not re.search("WARNING|ERROR|FATAL", pgbouncer.log)


def test_pgbouncer_refuses_unknown_startup_parameters(pgbouncer: PgBouncer) -> None:
    with pytest.raises(psycopg.OperationalError, match="unsupported startup parameter"):
        psycopg.connect(pgbouncer.url, options="-c statement_timeout=1000")


def test_a_mail_delivered_over_lmtp_is_found_over_imap(dovecot: Dovecot) -> None:
    user = dovecot.new_user()
    dovecot.deliver(user, PLAIN)
    with dovecot.client(user) as client:
        client.select_folder("INBOX", readonly=True)
        assert client.search(["SUBJECT", "plain"]) == [1]


def test_an_appended_mail_keeps_its_bytes_and_date(dovecot: Dovecot) -> None:
    user, when = dovecot.new_user(), datetime(2026, 3, 1, 23, 48, 28, tzinfo=UTC)
    dovecot.append(user, PLAIN, MIXED, folder="Büro", internaldate=when)
    with dovecot.client(user) as client:
        client.normalise_times = False
        client.select_folder("Büro", readonly=True)
        found = client.fetch([1, 2], ["BODY.PEEK[]", "INTERNALDATE"])
    assert [found[uid][b"BODY[]"] for uid in (1, 2)] == [PLAIN, MIXED]
    assert found[1][b"INTERNALDATE"] == when


def test_mails_written_into_the_maildir_are_served_in_order(dovecot: Dovecot) -> None:
    user, when = dovecot.new_user(), datetime(2026, 3, 1, 12, tzinfo=UTC)
    raws = [b"Subject: %d\r\n\r\n" % number for number in range(2000)]
    for folder in ("INBOX", "Büro"):
        dovecot.write_maildir(user, raws, folder=folder, internaldate=when)
        with dovecot.client(user) as client:
            client.normalise_times = False
            client.select_folder(folder, readonly=True)
            found = client.fetch(client.search(), ["BODY.PEEK[]", "INTERNALDATE"])
        assert [found[uid][b"BODY[]"] for uid in sorted(found)] == raws
        assert found[1][b"INTERNALDATE"] == when


@pytest.mark.parametrize("folder", ["INBOX", "Büro"])
def test_uidvalidity_changes_and_uids_restart(dovecot: Dovecot, folder: str) -> None:
    user = dovecot.new_user()
    dovecot.append(user, PLAIN, PLAIN, folder=folder)
    with dovecot.client(user) as client:
        client.select_folder(folder)
        client.delete_messages([1])
        client.expunge()
        before = client.select_folder(folder, readonly=True)
    dovecot.change_uidvalidity(user, folder)
    with dovecot.client(user) as client:
        after = client.select_folder(folder, readonly=True)
        assert client.search() == [1]
    assert after[b"UIDVALIDITY"] > before[b"UIDVALIDITY"]


def test_tls_verifies_with_the_ca_file_and_fails_without(dovecot_tls: Dovecot) -> None:
    trusting = ssl.create_default_context(cafile=dovecot_tls.ca_file)
    with IMAPClient("localhost", dovecot_tls.imaps_port, ssl_context=trusting) as client:
        client.login("anna@example.com", dovecot_tls.password)
    with pytest.raises(ssl.SSLCertVerificationError):
        IMAPClient("localhost", dovecot_tls.imaps_port)


def test_the_ca_file_reaches_other_processes_by_the_environment(dovecot_tls: Dovecot) -> None:
    code = f"import imapclient; imapclient.IMAPClient('localhost', {dovecot_tls.imaps_port})"
    environment = os.environ | {"SSL_CERT_FILE": str(dovecot_tls.ca_file)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=20)


def test_starttls_is_offered(dovecot_tls: Dovecot) -> None:
    with IMAPClient("localhost", dovecot_tls.imap_port, ssl=False) as client:
        client.starttls(ssl.create_default_context(cafile=dovecot_tls.ca_file))
        client.login("anna@example.com", dovecot_tls.password)


@contextmanager
def scripted_client(server: ScriptedImap) -> Iterator[IMAPClient]:
    with IMAPClient(server.host, server.port, ssl=False, timeout=0.5) as client:
        client.login("anna@example.com", "secret")
        client.select_folder("INBOX", readonly=True)
        yield client


def test_the_scripted_server_serves_a_two_pass_client() -> None:
    late = datetime(2026, 3, 4, tzinfo=UTC)
    given = '("text" "plain" NIL NIL NIL "7bit" 14 2)'
    messages = [Message(7, PLAIN, structure=given), Message(9, MIXED, internaldate=late)]
    with ScriptedImap(messages, uidvalidity=5) as server, scripted_client(server) as client:
        client.normalise_times = False
        assert client.folder_status("INBOX")[b"UIDVALIDITY"] == 5
        assert client.search(["UID", "100:*"]) == [9]
        assert client.search(["SINCE", "03-Mar-2026"]) == [9]
        items = ["BODYSTRUCTURE", "INTERNALDATE", "RFC822.SIZE", "BODY.PEEK[HEADER]<0.12>"]
        first_pass = client.fetch([6, 7, 8], items)
        second_pass = client.fetch([9], ["BODY.PEEK[2]<4.100>", "BODY.PEEK[3]", "BODY.PEEK[]"])
    assert list(first_pass) == [7]
    assert first_pass[7][b"BODYSTRUCTURE"][:2] == (b"text", b"plain")
    assert first_pass[7][b"INTERNALDATE"] == messages[0].internaldate
    assert first_pass[7][b"RFC822.SIZE"] == len(PLAIN)
    assert first_pass[7][b"BODY[HEADER]<0>"] == PLAIN[:12]
    assert second_pass[9][b"BODY[2]<4>"] == b"Ri0="
    assert second_pass[9][b"BODY[3]"] is None
    assert second_pass[9][b"BODY[]"] == MIXED


def test_the_scripted_structure_is_the_one_of_a_real_server(dovecot: Dovecot) -> None:
    user = dovecot.new_user()
    dovecot.append(user, PLAIN, MIXED)
    messages = [Message(1, PLAIN), Message(2, MIXED)]
    items = ["BODYSTRUCTURE", "RFC822.SIZE", "BODY.PEEK[1]", "BODY.PEEK[1.MIME]", "BODY.PEEK[TEXT]"]
    with dovecot.client(user) as client, ScriptedImap(messages) as server:
        client.select_folder("INBOX", readonly=True)
        real = client.fetch([1, 2], items)
        with scripted_client(server) as scripted:
            played = scripted.fetch([1, 2], items)
    for uid in (1, 2):
        assert normalised(played[uid]) == normalised(real[uid])


def normalised(values: Mapping[bytes, object]) -> list[str]:
    """Without the order of the items, and the case of its words, which are the server's choice."""
    return sorted(str(item).lower() for item in values.items())


def test_the_scripted_server_records_what_clients_send() -> None:
    with ScriptedImap() as server:
        with scripted_client(server) as client:
            client.search(["SUBJECT", "März"], charset="UTF-8")
            assert server.connections_open == 1
        wait_until(lambda: server.connections_open == 0)
    assert any(" LOGIN " in line and "secret" in line for line in server.received)
    assert server.received[-2].endswith("UID SEARCH CHARSET UTF-8 SUBJECT {5}\r\nMärz")
    assert server.received[-1].endswith("LOGOUT")
    assert server.connections_total == 1


def test_the_scripted_server_hangs_mid_literal() -> None:
    with ScriptedImap([Message(1, PLAIN)], {"UID FETCH": HangMidLiteral(10)}) as server:
        with scripted_client(server) as client, pytest.raises(TimeoutError):
            client.fetch([1], ["BODY.PEEK[]"])
        wait_until(lambda: server.connections_open == 0)


def test_a_hanging_scripted_server_can_be_left() -> None:
    started = time.monotonic()
    with ScriptedImap(script={"GREETING": Hang()}) as server:
        client = socket.create_connection((server.host, server.port))
        wait_until(lambda: server.connections_open == 1)
    assert client.recv(1) == b""
    client.close()
    assert time.monotonic() - started < 5


def test_the_script_overrides_single_commands() -> None:
    def fetch(args: str) -> bytes | None:
        return b"{tag} NO System Error (Failure)\r\n" if args.startswith("3 ") else None

    messages = [Message(uid, PLAIN) for uid in (2, 3)]
    with ScriptedImap(messages, {"UID FETCH": fetch}) as server:
        with scripted_client(server) as client:
            with pytest.raises(exceptions.IMAPClientError, match="System Error"):
                client.fetch([3], ["RFC822.SIZE"])
            assert list(client.fetch([2], ["RFC822.SIZE"])) == [2]
            server.script["NOOP"] = Drip(b"* 3 EXISTS\r\n{tag} OK done\r\n", 0.001)
            assert client.noop()[1] == [(3, b"EXISTS")]
            server.script["NOOP"] = Close(b"* BYE going down\r\n")
            with pytest.raises(exceptions.IMAPClientAbortError):
                client.noop()
        server.script["LOGIN"] = b"{tag} NO [AUTHENTICATIONFAILED] no\r\n"
        with pytest.raises(exceptions.LoginError), scripted_client(server):
            pass


def test_a_script_that_raises_is_not_overlooked() -> None:
    def search(args: str) -> bytes:
        raise ValueError(args)

    with (
        pytest.raises(ExceptionGroup, match="script"),
        ScriptedImap(script={"UID SEARCH": search}) as server,
        scripted_client(server) as client,
        pytest.raises(exceptions.IMAPClientAbortError),
    ):
        client.search(["ALL"])


TESTS_THAT_LOG = """
import logging, pytest

def test_unexpected(): logging.error("oh")

@pytest.mark.expects_errors
def test_expected(): logging.error("well")
"""


def test_an_error_in_the_log_fails_a_test_that_does_not_expect_it(tmp_path: Path) -> None:
    (tmp_path / "test_log.py").write_text(TESTS_THAT_LOG)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider"]
    outcome = subprocess.run(
        [*command, "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "2 passed, 1 error" in outcome.stdout
    assert re.search(r"errors in the log:\s+E\s+oh", outcome.stdout)


def test_a_missing_program_skips_the_test_unless_it_is_required(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("MAILROOM_REQUIRE_SERVERS", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no-such-server is not installed"):
        require_program("no-such-server")
    monkeypatch.setenv("MAILROOM_REQUIRE_SERVERS", "1")
    with pytest.raises(pytest.fail.Exception, match="no-such-server is not installed"):
        require_program("no-such-server")


def test_a_server_that_does_not_start_shows_its_log(tmp_path: Path) -> None:
    daemon = Daemon([sys.executable, "-c", "raise SystemExit('bad config')"], tmp_path / "log")
    with pytest.raises(RuntimeError, match="bad config"):
        daemon.wait_ready(lambda: False)
