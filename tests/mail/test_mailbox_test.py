"""`mailbox test` as its users meet it: what it says of a mailbox that works and of one that does
not, and what to do about it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import trio
from cryptography.fernet import Fernet

from service.db.mailboxes import insert_mailbox
from service.db.pool import open_connection
from service.model import ImapConnection
from service.settings import Settings
from tests.scripted_imap import ScriptedImap
from tests.servers import Dovecot
from tests.servers.process import free_port

REPOSITORY = Path(__file__).parents[2]
USER = "anna@example.com"
KEY = Fernet.generate_key().decode()
UNSET = {name.upper() for name in Settings.model_fields} | {"SSL_CERT_FILE"}
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in UNSET}


def add(database_url: str, connection: ImapConnection, password: str) -> None:
    async def insert() -> None:
        async with open_connection(database_url) as conn:
            await insert_mailbox(
                conn,
                address=USER,
                connection=connection,
                secret=Fernet(KEY).encrypt(password.encode()),
                poll_interval_seconds=120,
                ingest_all=True,
                ingest_since=None,
            )

    trio.run(insert)


def check(
    database_url: str,
    port: int,
    tls: str = "none",
    *,
    host: str = "localhost",
    folder: str = "INBOX",
    password: str = "secret",
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    """`mailbox test` for such a mailbox; the password appears nowhere."""
    connection = ImapConnection(host, port, tls, USER, folder)  # type: ignore[arg-type]
    add(database_url, connection, password)
    given = {"DATABASE_URL": database_url, "SERVICE_SECRET_KEY": KEY, **variables}
    result = subprocess.run(
        [sys.executable, "-m", "service", "mailbox", "test", USER],
        cwd=REPOSITORY,
        env={"IMAP_TIMEOUT_SECONDS": "10", **ENVIRONMENT, **given},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert password not in result.stdout + result.stderr
    return result


def steps(result: subprocess.CompletedProcess[str]) -> list[tuple[str, str]]:
    """(verdict, step) of each line."""
    return re.findall(r"^  (\S+) +(\S+) ", result.stdout, re.MULTILINE)


def failure(result: subprocess.CompletedProcess[str], *passed: str) -> tuple[str, str]:
    """What failed after these steps, and the one line on standard error with what to do."""
    assert result.returncode == 1
    *before, (verdict, step) = steps(result)
    assert before == [("ok", name) for name in passed]
    assert verdict == "FAIL"
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"mailroom: mailbox test failed at: {step} (")
    return result.stdout.splitlines()[-1], line


def test_a_mailbox_that_works(database_url: str, dovecot_tls: Dovecot) -> None:
    dovecot_tls.append(USER, b"Subject: one\r\n\r\ntext\r\n", b"Subject: two\r\n\r\ntext\r\n")
    result = check(
        database_url, dovecot_tls.imaps_port, "implicit", SSL_CERT_FILE=str(dovecot_tls.ca_file)
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert steps(result) == [
        ("ok", step) for step in ("resolve", "connect", "TLS", "login", "folder", "search")
    ]
    for text in ("127.0.0.1", "TLSv1.3", f"as {USER}", "INBOX: 2 messages", "2 messages since"):
        assert text in result.stdout


def test_a_name_that_does_not_exist(database_url: str) -> None:
    what, to_do = failure(check(database_url, 993, "implicit", host="mail.nowhere.invalid"))
    assert "the name mail.nowhere.invalid cannot be resolved" in what
    assert "check the spelling of the host and this machine's DNS" in to_do


def test_a_port_where_nobody_listens(database_url: str) -> None:
    port = free_port()
    what, to_do = failure(check(database_url, port), "resolve")
    assert f"cannot connect to localhost:{port}: " in what
    assert "refused" in what.lower()
    assert "check host and port" in to_do


def test_tls_from_the_start_where_the_server_wants_starttls(
    database_url: str, dovecot_tls: Dovecot
) -> None:
    what, to_do = failure(
        check(database_url, dovecot_tls.imap_port, "implicit"), "resolve", "connect"
    )
    assert f"no TLS with localhost:{dovecot_tls.imap_port}" in what
    assert "on port 143 use --tls starttls" in to_do


def test_starttls_where_the_server_wants_tls_from_the_start(
    database_url: str, dovecot_tls: Dovecot
) -> None:
    result = check(database_url, dovecot_tls.imaps_port, "starttls", IMAP_TIMEOUT_SECONDS="1")
    what, to_do = failure(result, "resolve", "connect")
    assert "no answer for 1 s" in what
    assert "the right --tls for it? implicit is usual on port 993" in to_do


def test_starttls_where_there_is_no_tls(database_url: str, dovecot: Dovecot) -> None:
    what, to_do = failure(check(database_url, dovecot.imap_port, "starttls"), "resolve", "connect")
    assert "localhost did not start TLS" in what
    assert "use --tls implicit if the server offers it" in to_do


def test_a_certificate_that_nobody_vouches_for(database_url: str, dovecot_tls: Dovecot) -> None:
    result = check(database_url, dovecot_tls.imaps_port, "implicit")
    what, to_do = failure(result, "resolve", "connect")
    assert "the certificate of localhost is not valid: " in what
    assert "for a CA of your own set SSL_CERT_FILE" in to_do


def test_a_wrong_password(database_url: str) -> None:
    # Dovecot lets everybody on this machine wait for seconds after one.
    refusal = b"{tag} NO [AUTHENTICATIONFAILED] Authentication failed.\r\n"
    with ScriptedImap(script={"LOGIN": refusal}) as server:
        result = check(database_url, server.port, password="geheim-Wort")
    what, to_do = failure(result, "resolve", "connect", "TLS")
    assert "the server refused the user name or password: [AUTHENTICATIONFAILED]" in what
    assert "check both; many providers want an app password" in to_do


def test_a_server_that_gives_the_password_back(database_url: str) -> None:
    def echo(args: str) -> bytes:
        return f"{{tag}} NO who is {args}\r\n".encode()

    with ScriptedImap(script={"LOGIN": echo}) as server:
        result = check(database_url, server.port, password='geheim"Wort')
    what, _ = failure(result, "resolve", "connect", "TLS")
    assert f'who is "{USER}"' in what
    assert "geheim" not in what


def test_a_folder_that_is_not_there(database_url: str, dovecot: Dovecot) -> None:
    dovecot.append(USER, b"Subject: one\r\n\r\ntext\r\n", folder="Rechnungen März")
    result = check(database_url, dovecot.imap_port, folder="Rechnungen")
    what, to_do = failure(result, "resolve", "connect", "TLS", "login")
    assert "folder 'Rechnungen' cannot be opened" in what
    assert "folders there: " in to_do
    assert "Rechnungen März" in to_do
    assert "INBOX" in to_do
