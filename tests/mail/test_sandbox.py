"""The mail sandbox as users meet it: a real child process, smtplib and IMAPClient."""

import base64
import json
import os
import signal
import smtplib
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.message import EmailMessage
from email.policy import SMTP
from pathlib import Path
from typing import Any

import pytest
import trio
from imapclient import IMAPClient
from imapclient.exceptions import LoginError

from service.errors import MailroomError
from service.outbound import holding_connection
from service.sandbox.client import Sandbox, open_sandbox, send_mail
from service.sandbox.samples import sample_mails
from tests.servers import Dovecot, wait_until

USER = "demo@example.com"
PASSWORD = 'pass "word" \\ 1'
REPOSITORY = Path(__file__).parents[2]
COMMAND = (sys.executable, "-m", "service.sandbox")
EIGHT_BIT = (
    "Subject: Grüße\r\nContent-Type: text/plain; charset=utf-8\r\n"
    "Content-Transfer-Encoding: 8bit\r\n\r\nÀ bientôt, 価格\r\n"
).encode()
DOTS = b"Subject: dots\r\n\r\n.\r\n..\r\n.end\r\n\r\n.\r\n"
LONG_LINE = b"Subject: long\r\n\r\n" + b"x" * 100_000 + b"\r\n"
NO_BODY = b"Subject: no blank line\r\n"
BAD_DATE = (
    b"Subject: forward\r\nContent-Type: message/rfc822\r\n\r\n"
    b"Date: Sat, 32 Jan 2026 25:61:00\r\nSubject: inner\r\n\r\ninner text\r\n"
)
OUTLOOK_ID = b"Subject: id\r\nMessage-ID: <[83c48dddbea7492e@example.com]>\r\n\r\ntext\r\n"
TOO_DEEP = b"Content-Type: message/rfc822\r\n\r\n" * 2000


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    with trio.fail_after(20):
        async with open_sandbox(USER, PASSWORD) as running:
            yield running


@contextmanager
def connected(port: int) -> Iterator[IMAPClient]:
    with IMAPClient("127.0.0.1", port, ssl=False, timeout=10) as client:
        yield client


@contextmanager
def logged_in(port: int) -> Iterator[IMAPClient]:
    with connected(port) as client:
        client.login(USER, PASSWORD)
        client.select_folder("INBOX", readonly=True)
        yield client


def fetch(client: IMAPClient, uid: int, item: str) -> Any:
    """The one value that the server gives for `item`."""
    response = client.fetch([uid], [item])[uid]
    (value,) = (value for key, value in response.items() if key not in (b"SEQ", b"FLAGS"))
    return value


def sections(structure: Any, prefix: str = "") -> Iterator[str]:
    """The section numbers of all leaves of a BODYSTRUCTURE (RFC 3501 section 6.4.5)."""
    if structure.is_multipart:
        for number, child in enumerate(structure[0], start=1):
            yield from sections(child, f"{prefix}{number}.")
    else:
        yield prefix.rstrip(".") or "1"


@contextmanager
def child(*arguments: str, command: Sequence[str] = COMMAND) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        [*command, *arguments],
        cwd=REPOSITORY,
        env={**os.environ, "SANDBOX_PASSWORD": PASSWORD},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def read_ports(process: subprocess.Popen[bytes]) -> dict[str, int]:
    assert process.stdout is not None
    ports: dict[str, int] = json.loads(process.stdout.readline())
    return ports


def is_open(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True


@pytest.mark.parametrize("raw", [EIGHT_BIT, DOTS, LONG_LINE, NO_BODY, BAD_DATE, OUTLOOK_ID])
async def test_a_mail_survives_byte_for_byte(sandbox: Sandbox, raw: bytes) -> None:
    before = datetime.now(UTC) - timedelta(seconds=1)
    await send_mail(sandbox.smtp_port, raw)
    with logged_in(sandbox.imap_port) as client:
        client.normalise_times = False
        (uid,) = client.search()
        assert fetch(client, uid, "BODY.PEEK[]") == raw
        assert fetch(client, uid, "RFC822.SIZE") == len(raw)
        assert before <= fetch(client, uid, "INTERNALDATE") <= datetime.now(UTC)
        assert fetch(client, uid, "BODYSTRUCTURE")
        assert fetch(client, uid, "ENVELOPE").subject
        assert client.search(["HEADER", "Message-ID", "nowhere"]) == []


async def test_a_mail_of_5_mb_survives(sandbox: Sandbox) -> None:
    content = os.urandom(5_000_000)
    mail = EmailMessage(policy=SMTP)
    mail.set_content("See the file.\n")
    mail.add_attachment(content, "application", "pdf", filename="big.pdf")
    await send_mail(sandbox.smtp_port, mail)
    with logged_in(sandbox.imap_port) as client:
        (uid,) = client.search()
        encoded = fetch(client, uid, "BODY.PEEK[2]")
        assert base64.b64decode(encoded) == content
        assert fetch(client, uid, "BODYSTRUCTURE")[0][1][6] == len(encoded)


async def test_bare_line_feeds_become_crlf(sandbox: Sandbox) -> None:
    await send_mail(sandbox.smtp_port, b"Subject: unix\n\none\n.two\r\nthree\n")
    with logged_in(sandbox.imap_port) as client:
        (uid,) = client.search()
        expected = b"Subject: unix\r\n\r\none\r\n.two\r\nthree\r\n"
        assert fetch(client, uid, "BODY.PEEK[]") == expected


async def test_a_mail_to_several_recipients_is_stored_once(sandbox: Sandbox) -> None:
    recipients = ["demo@example.com", "other@example.org"]
    await send_mail(sandbox.smtp_port, DOTS, recipients=recipients)
    with logged_in(sandbox.imap_port) as client:
        assert len(client.search()) == 1


async def test_what_the_poller_asks_of_a_server(sandbox: Sandbox) -> None:
    for number in range(3):
        await send_mail(sandbox.smtp_port, b"Subject: %d\r\n\r\ntext %d\r\n" % (number, number))
    with logged_in(sandbox.imap_port) as client:
        assert b"IDLE" in client.capabilities()
        first, second, third = client.search(["SINCE", datetime.now(UTC).date()])
        assert client.search(["SINCE", datetime.now(UTC).date() + timedelta(days=1)]) == []
        assert client.search(["UID", f"{second}:*"]) == [second, third]
        # RFC 3501: the range always holds the last mail, also when it begins after it.
        assert client.search(["UID", f"{third + 1}:*"]) == [third]
        items = ["BODY.PEEK[HEADER]<0.262144>", "BODYSTRUCTURE", "INTERNALDATE", "RFC822.SIZE"]
        answer = client.fetch([first], items)[first]
        assert answer[b"BODY[HEADER]<0>"] == b"Subject: 0\r\n\r\n"
        assert client.fetch([first], ["BODY.PEEK[1]<2.4>"])[first][b"BODY[1]<2>"] == b"xt 0"
        assert client.get_flags([first]) == {first: ()}


async def test_the_parts_of_a_forwarded_mail_have_the_numbers_of_the_rfc(sandbox: Sandbox) -> None:
    forward = sample_mails("run")[3]
    await send_mail(sandbox.smtp_port, forward)
    with logged_in(sandbox.imap_port) as client:
        (uid,) = client.search()
        pdf = base64.b64decode(fetch(client, uid, "BODY.PEEK[2.2]"))
        assert pdf.startswith(b"%PDF")
        assert pdf.endswith(b"%%EOF\n")
        assert fetch(client, uid, "BODY.PEEK[2.1]").startswith(b"The contract")
        assert b"\r\nSubject: Signed contract\r\n" in fetch(client, uid, "BODY.PEEK[2.HEADER]")
        message, kind = fetch(client, uid, "BODYSTRUCTURE")[0][1], (b"message", b"rfc822")
        assert message[:2] == kind
        assert message[6] == len(fetch(client, uid, "BODY.PEEK[2]"))


async def test_it_answers_like_dovecot(sandbox: Sandbox, dovecot: Dovecot) -> None:
    raws = [mail.as_bytes(policy=SMTP) for mail in sample_mails("run")]
    user = dovecot.new_user()
    dovecot.append(user, *raws)
    for raw in raws:
        await send_mail(sandbox.smtp_port, raw)
    with dovecot.client(user) as theirs, logged_in(sandbox.imap_port) as ours:
        theirs.select_folder("INBOX", readonly=True)
        for our_uid, their_uid in zip(ours.search(), theirs.search(), strict=True):
            structure = fetch(theirs, their_uid, "BODYSTRUCTURE")
            assert _comparable(fetch(ours, our_uid, "BODYSTRUCTURE")) == _comparable(structure)
            for section in sections(structure):
                item = f"BODY.PEEK[{section}]"
                assert fetch(ours, our_uid, item) == fetch(theirs, their_uid, item)


def _comparable(node: Any) -> Any:
    """Without the case of letters, and without the envelope of a forwarded mail."""
    if isinstance(node, bytes):
        return node.lower()
    if not isinstance(node, tuple | list):
        return node
    if node[:2] == (b"message", b"rfc822"):
        node = (*node[:7], *node[8:])
    return tuple(_comparable(item) for item in node)


@pytest.mark.parametrize(
    ("user", "password"),
    [(USER, "wrong"), (USER, "control \x01"), ("else@example.com", PASSWORD)],
)
def test_wrong_credentials_are_refused_and_nothing_is_said(user: str, password: str) -> None:
    with child("--user", USER) as process:
        with connected(read_ports(process)["imap_port"]) as client:
            with pytest.raises(LoginError, match="AUTHENTICATIONFAILED"):
                client.login(user, password)
            with pytest.raises(LoginError, match="AUTHENTICATIONFAILED"):
                client.plain_login(user, password)
            client.plain_login(USER, PASSWORD)
        assert process.communicate(timeout=10) == (b"", b"")


async def test_a_password_may_be_written_in_any_script() -> None:
    password = "Schlüssel 鍵 \x01"
    async with open_sandbox(USER, password) as sandbox:
        with connected(sandbox.imap_port) as client:
            client.plain_login(USER, password)


async def test_a_mail_that_cannot_be_read_is_refused_and_harms_no_other(sandbox: Sandbox) -> None:
    with pytest.raises(MailroomError, match="did not take the mail"):
        await send_mail(sandbox.smtp_port, TOO_DEEP)
    await send_mail(sandbox.smtp_port, DOTS)
    with logged_in(sandbox.imap_port) as client:
        (uid,) = client.search()
        assert fetch(client, uid, "BODY.PEEK[]") == DOTS


async def test_a_sandbox_that_cannot_start_says_why() -> None:
    with pytest.raises(MailroomError, match="did not start: SANDBOX_PASSWORD is not set"):
        async with open_sandbox(USER, ""):
            pytest.fail("it started")


async def test_neither_starts_inside_a_transaction() -> None:
    with holding_connection("test.py:1"):
        with pytest.raises(MailroomError, match="may not start"):
            async with open_sandbox(USER, PASSWORD):
                pytest.fail("it started")
        with pytest.raises(MailroomError, match="may not start"):
            await send_mail(1, DOTS)


async def test_it_ends_with_the_block() -> None:
    async with open_sandbox(USER, PASSWORD) as sandbox:
        assert is_open(sandbox.imap_port)
    assert not is_open(sandbox.imap_port)
    assert not is_open(sandbox.smtp_port)


def test_it_ends_when_its_standard_input_closes() -> None:
    with child("--user", USER) as process:
        ports = read_ports(process)
        # Open connections do not keep it up.
        with logged_in(ports["imap_port"]) as client:
            client.idle()
            with smtplib.SMTP("127.0.0.1", ports["smtp_port"], "localhost", timeout=5):
                stdout, stderr = process.communicate(timeout=10)
        assert (process.returncode, stdout, stderr) == (0, b"", b"")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_when_told_to(number: signal.Signals) -> None:
    with child("--user", USER) as process:
        read_ports(process)
        process.send_signal(number)
        assert process.wait(timeout=10) == 0


def test_it_ends_when_its_parent_is_killed() -> None:
    program = (
        "import sys, trio\n"
        "from service.sandbox.client import open_sandbox\n"
        "async def main():\n"
        "    async with open_sandbox('demo@example.com', 'secret') as sandbox:\n"
        "        print(f'{{\"imap_port\": {sandbox.imap_port}}}', flush=True)\n"
        "        await trio.sleep_forever()\n"
        "trio.run(main)\n"
    )
    with child(command=(sys.executable, "-c", program)) as parent:
        port = read_ports(parent)["imap_port"]
        assert is_open(port)
        parent.kill()
        parent.wait()
        wait_until(lambda: not is_open(port))


@pytest.mark.parametrize("option", ["--imap-port", "--smtp-port"])
def test_a_taken_port_is_one_clear_line(option: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with child(option, str(port)) as process:
            stdout, stderr = process.communicate(timeout=10)
    line = f"cannot listen on 127.0.0.1:{port}: Address already in use\n"
    assert (process.returncode, stdout, stderr.decode()) == (1, b"", line)


@pytest.mark.parametrize("package", ["pymap", "aiosmtpd"])
def test_a_missing_package_is_one_clear_line(package: str) -> None:
    program = (
        f"import runpy, sys; sys.modules[{package!r}] = None; "
        "runpy.run_module('service.sandbox', run_name='__main__')"
    )
    with child(command=(sys.executable, "-c", program)) as process:
        _, stderr = process.communicate(timeout=10)
    assert process.returncode == 1
    (line,) = stderr.decode().splitlines()
    assert "pip install 'mailroom[demo]'" in line


def test_sample_mails_are_new_in_each_run_and_the_last_is_a_duplicate() -> None:
    mails, others = sample_mails("one"), sample_mails("two")
    ids = [mail["Message-ID"] for mail in mails]
    assert len(set(ids)) == 5
    assert ids[0] == ids[-1]
    assert not {mail["Message-ID"] for mail in others} & set(ids)
