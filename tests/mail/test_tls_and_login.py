"""The line to a mailbox: TLS that is verified and never downgraded, and a login that takes any
character or says that it cannot.
"""

import base64

import pytest

from service.db.mailboxes import insert_mailbox
from service.errors import CredentialsRefused, MailboxUnreachable, MailError
from service.loops.poller import PollReport
from service.model import ImapConnection, Tls
from tests.mail import cases
from tests.mail.station import Station, subjects
from tests.scripted_imap import Close, Message, Reply, ScriptedImap
from tests.servers import Dovecot

USER = "user@example.com"


async def poll_over(
    station: Station, connection: ImapConnection, password: str = "secret"
) -> PollReport:
    """Add a mailbox with this connection and poll it once."""
    async with station.db.transaction() as conn:
        await insert_mailbox(
            conn,
            address=USER,
            connection=connection,
            secret=station.keys.encrypt(password.encode()),
            poll_interval_seconds=120,
            ingest_all=True,
            ingest_since=None,
        )
    return await station.poll(USER)


@pytest.mark.parametrize("tls", ["implicit", "starttls"])
async def test_tls_with_a_ca_of_ones_own(
    station: Station, dovecot_tls: Dovecot, monkeypatch: pytest.MonkeyPatch, tls: Tls
) -> None:
    port = dovecot_tls.imaps_port if tls == "implicit" else dovecot_tls.imap_port
    user = dovecot_tls.new_user()
    dovecot_tls.append(user, cases.numbered(1))
    monkeypatch.setenv("SSL_CERT_FILE", str(dovecot_tls.ca_file))
    report = await poll_over(station, ImapConnection("localhost", port, tls, user))
    assert (report.error, report.counts) == (None, {"stored": 1})


@pytest.mark.parametrize("tls", ["implicit", "starttls"])
async def test_a_certificate_of_an_unknown_ca_is_refused(
    station: Station, dovecot_tls: Dovecot, monkeypatch: pytest.MonkeyPatch, tls: Tls
) -> None:
    port = dovecot_tls.imaps_port if tls == "implicit" else dovecot_tls.imap_port
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    report = await poll_over(station, ImapConnection("localhost", port, tls, USER))
    assert isinstance(report.error, MailboxUnreachable)
    assert "certificate" in str(report.error)
    assert "SSL_CERT_FILE" in str(report.error.hint)


async def test_a_certificate_of_another_name_is_refused(
    station: Station, dovecot_tls: Dovecot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(dovecot_tls.ca_file))
    # The resolver's short form of 127.0.0.1, which the certificate does not name.
    connection = ImapConnection("127.1", dovecot_tls.imaps_port, "implicit", USER)
    report = await poll_over(station, connection)
    assert isinstance(report.error, MailboxUnreachable)
    assert "Hostname mismatch" in str(report.error)


NO_STARTTLS: dict[str, tuple[str, dict[str, Reply]]] = {
    "not offered": ("IMAP4rev1", {}),
    "refused": ("IMAP4rev1 STARTTLS", {"STARTTLS": b"{tag} NO not now\r\n"}),
    "unknown": ("IMAP4rev1 STARTTLS", {"STARTTLS": b"{tag} BAD unknown command\r\n"}),
    "no handshake": ("IMAP4rev1 STARTTLS", {"STARTTLS": Close(b"{tag} OK begin\r\n")}),
    "preauth": ("IMAP4rev1 STARTTLS", {"GREETING": b"* PREAUTH you are in\r\n"}),
}


@pytest.mark.parametrize("how", NO_STARTTLS)
async def test_starttls_is_never_downgraded(station: Station, how: str) -> None:
    capabilities, script = NO_STARTTLS[how]
    messages = [Message(1, cases.numbered(1))]
    with ScriptedImap(messages, script, capabilities=capabilities) as server:
        connection = ImapConnection(server.host, server.port, "starttls", USER)
        report = await poll_over(station, connection)
    assert isinstance(report.error, MailError)
    commands = {line.split(" ")[1] for line in server.received if " " in line}
    assert not commands & {"LOGIN", "AUTHENTICATE", "EXAMINE", "UID"}
    assert not any("secret" in line for line in server.received)
    assert await subjects(station) == []


QUOTED = [
    ("plain@example.com", "secret", '"plain@example.com" "secret"'),
    ('us"er', 'pass"word', r'"us\"er" "pass\"word"'),
    (r"DOMAIN\user", r"back\slash", r'"DOMAIN\\user" "back\\slash"'),
    ("two words", " {7} (a b) % * ", '"two words" " {7} (a b) % * "'),
]


@pytest.mark.parametrize(("username", "password", "on_the_wire"), QUOTED)
async def test_login_quotes_user_name_and_password(
    station: Station, username: str, password: str, on_the_wire: str
) -> None:
    with ScriptedImap() as server:
        connection = ImapConnection(server.host, server.port, "none", username)
        report = await poll_over(station, connection, password)
    assert report.error is None
    (login,) = [line for line in server.received if " LOGIN " in line]
    assert login.split(" ", 2)[2] == on_the_wire


@pytest.mark.parametrize(
    ("username", "password"),
    [
        *((username, password) for username, password, _ in QUOTED),
        ("jürgen@example.com", "Schlüssel 鍵"),
        (USER, "x" * 100),
    ],
)
async def test_sasl_plain_takes_any_character(
    station: Station, username: str, password: str
) -> None:
    with ScriptedImap(capabilities="IMAP4rev1 AUTH=PLAIN") as server:
        connection = ImapConnection(server.host, server.port, "none", username)
        report = await poll_over(station, connection, password)
    assert report.error is None
    at = next(i for i, line in enumerate(server.received) if "AUTHENTICATE PLAIN" in line)
    decoded = base64.b64decode(server.received[at + 1], validate=True)
    assert decoded.decode() == f"\0{username}\0{password}"
    assert not any(" LOGIN " in line for line in server.received)


@pytest.mark.parametrize(
    ("username", "password"), [("jürgen", "secret"), (USER, "Schlüssel"), (USER, "鍵")]
)
async def test_login_does_not_garble_what_it_cannot_say(
    station: Station, username: str, password: str
) -> None:
    with ScriptedImap() as server:
        connection = ImapConnection(server.host, server.port, "none", username)
        report = await poll_over(station, connection, password)
    assert isinstance(report.error, CredentialsRefused)
    assert "only ASCII" in str(report.error)
    assert not any("LOGIN" in line for line in server.received)


@pytest.mark.parametrize("password", ["secret\r\nA1 DELETE INBOX", "secret\nA1 NOOP", "nul\0"])
async def test_a_line_break_in_a_password_is_no_second_command(
    station: Station, password: str
) -> None:
    with ScriptedImap() as server:
        connection = ImapConnection(server.host, server.port, "none", USER)
        report = await poll_over(station, connection, password)
    assert isinstance(report.error, CredentialsRefused)
    assert not any("LOGIN" in line or line.startswith("A1") for line in server.received)


async def test_no_password_is_said_where_login_is_disabled(station: Station) -> None:
    with ScriptedImap(capabilities="IMAP4rev1 LOGINDISABLED") as server:
        connection = ImapConnection(server.host, server.port, "none", USER)
        report = await poll_over(station, connection)
    assert isinstance(report.error, CredentialsRefused)
    assert not any("secret" in line for line in server.received)
