"""Servers that are broken, hang, ask for patience or refuse the password: the reason is plain, each
poll ends in its time, and the mailbox heals.
"""

import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

import pytest

from service.errors import ConnectionLost, CredentialsRefused, MailboxThrottled, MailboxUnreachable
from service.intake import BATCH_MESSAGES
from tests.bounds import at_most
from tests.mail.hostile.polling import (
    POLL_MAX_SECONDS,
    hanging_at,
    mail,
    mails,
    poll,
    poll_until,
    quarantined,
    serving,
    taken,
)
from tests.mail.station import Station, open_station
from tests.scripted_imap import Close, Drip, Hang, Message, Reply, ScriptedImap

BAD = b"{tag} BAD Command Error. 12\r\n"
LATER = b"Temporary problem. Suggested Backoff Time: 297456 milliseconds\r\n"
ALL_COMMANDS = ("CAPABILITY", "LOGIN", "EXAMINE", "UID SEARCH", "UID FETCH", "LIST")
# The script, the kind of error, and what it says.
BROKEN: dict[str, tuple[dict[str, Reply], type[Exception], str]] = {
    "no greeting": ({"GREETING": Hang()}, ConnectionLost, "no answer for 1 s"),
    "closed at once": ({"GREETING": Close()}, ConnectionLost, "closed the connection"),
    "closed after the greeting": ({"CAPABILITY": Close()}, ConnectionLost, "closed the connection"),
    "HTTP": (
        {"GREETING": Close(b"HTTP/1.1 400 Bad Request\r\nServer: x\r\n\r\n")},
        ConnectionLost,
        "HTTP/1.1 400 Bad Request",
    ),
    "binary": ({"GREETING": Close(bytes(range(256)) * 4)}, ConnectionLost, "unterminated line"),
    "a BYE as greeting": ({"GREETING": Close(b"* BYE not today\r\n")}, ConnectionLost, "not today"),
    "too many connections": (
        {"GREETING": Close(b"* BYE Too many connections from your IP\r\n")},
        MailboxThrottled,
        "Too many connections",
    ),
    "capabilities outside ASCII": (
        {"CAPABILITY": b"* CAPABILITY IMAP4rev1 \xff\r\n{tag} OK\r\n"}, ConnectionLost, "no sense",
    ),
    "no IMAP4rev1": ({"CAPABILITY": b"* CAPABILITY POP3\r\n{tag} OK\r\n"}, ConnectionLost, "IMAP4"),
    "BAD to everything": (dict.fromkeys(ALL_COMMANDS, BAD), ConnectionLost, "Command Error. 12"),
    "BAD to everything inside": (
        dict.fromkeys(ALL_COMMANDS[2:], BAD), MailboxUnreachable, "Command Error. 12",
    ),
    "closed at LOGIN": ({"LOGIN": Close()}, ConnectionLost, "closed the connection"),
    "closed after LOGIN": ({"LOGIN": Close(b"{tag} OK in\r\n")}, ConnectionLost, "closed the conn"),
    "one byte at a time": (
        {"LOGIN": Drip(b"{tag} OK welcome in\r\n", 0.3)}, ConnectionLost, "no complete answer",
    ),
    "too many sessions": (
        {"LOGIN": b"{tag} NO [ALERT] Too many simultaneous connections. (Failure)\r\n"},
        MailboxThrottled,
        "Too many simultaneous connections",
    ),
    "later, at the folder": (
        {"EXAMINE": b"{tag} NO [UNAVAILABLE] come again\r\n"}, MailboxThrottled, "come again",
    ),
    "no folder": (
        {"EXAMINE": b"{tag} NO [NONEXISTENT] what folder\r\n", "LIST": BAD},
        MailboxUnreachable,
        "what folder",
    ),
    "a SEARCH that hangs": ({"UID SEARCH": Hang(b"* SEARCH 1 2")}, ConnectionLost, "no answer"),
    "a literal of a terabyte": (
        {"LOGIN": Hang(b"* OK {1000000000000}\r\n")}, ConnectionLost, "far more than asked for",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
async def test_a_server_that_is_broken(station: Station, name: str) -> None:
    script, kind, reason = BROKEN[name]
    with ScriptedImap(mails(3), script) as server:
        with at_most(seconds=POLL_MAX_SECONDS):
            report = await poll(station, server)
        assert type(report.error) is kind
        assert reason in str(report.error)
        mailbox = await station.mailbox()
        assert mailbox.last_error is not None
        assert reason in mailbox.last_error
        assert (mailbox.state, mailbox.consecutive_failures) == ("active", 1)

        server.script.clear()
        assert (await station.poll()).error is None
    assert await taken(station) == [1, 2, 3]
    assert (await station.mailbox()).last_error is None


@pytest.mark.parametrize("command", ["LOGIN", "AUTHENTICATE", "EXAMINE", "UID SEARCH", "UID FETCH"])
@pytest.mark.parametrize("how", [Close(b"* BYE " + LATER), b"{tag} NO " + LATER], ids=["BYE", "NO"])
async def test_a_suggested_time_is_waited_for(
    station: Station, command: str, how: Reply, caplog: pytest.LogCaptureFixture
) -> None:
    capabilities = "IMAP4rev1 AUTH=PLAIN" if command == "AUTHENTICATE" else "IMAP4rev1"
    with ScriptedImap(mails(3), {command: how}, capabilities=capabilities) as server:
        await station.add(server.port, poll_interval_seconds=1)
        before = datetime.now(UTC)
        report = await station.poll()
        assert isinstance(report.error, MailboxThrottled)
        mailbox = await station.mailbox()
        assert mailbox.state == "active"
        assert mailbox.not_before is not None
        assert 297 < (mailbox.not_before - before).total_seconds() < 320
        assert "password" not in caplog.text

        server.script.clear()
        assert (await station.poll()).error is None
    assert (await station.mailbox()).not_before is None
    assert await quarantined(station) == {}


async def test_a_wrong_password_is_one_warning_and_heals(
    station: Station, caplog: pytest.LogCaptureFixture
) -> None:
    refusal = b"{tag} NO [AUTHENTICATIONFAILED] Invalid credentials\r\n"
    with ScriptedImap(mails(3), {"LOGIN": refusal}) as server:
        await station.add(server.port)
        for attempt in range(1, 5):
            before = datetime.now(UTC)
            assert isinstance((await station.poll()).error, CredentialsRefused)
            mailbox = await station.mailbox()
            assert (mailbox.state, mailbox.consecutive_failures) == ("needs_reauth", attempt)
            assert mailbox.not_before is not None
            hour = mailbox.not_before - before
            assert timedelta(minutes=60) <= hour < timedelta(minutes=61)
        warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
        assert len(warnings) == 1
        assert "Invalid credentials" in warnings[0].getMessage()

        server.script.clear()
        assert (await station.poll()).error is None
    assert await taken(station) == [1, 2, 3]
    assert (await station.mailbox()).state == "active"


ECHOES: dict[str, Callable[[str], bytes | Close]] = {
    "NO": lambda args: f"{{tag}} NO what is {args}?\r\n".encode(),
    "BAD": lambda args: f"{{tag}} BAD what is {args}?\r\n".encode(),
    "BYE": lambda args: Close(f"* BYE what is {args}?\r\n".encode()),
    "nonsense": lambda args: f"what is {args}?\r\n".encode(),
}


@pytest.mark.parametrize("capabilities", ["IMAP4rev1", "IMAP4rev1 AUTH=PLAIN"])
@pytest.mark.parametrize("echo", ECHOES)
async def test_a_server_that_gives_the_password_back_is_not_quoted(
    station: Station, caplog: pytest.LogCaptureFixture, echo: str, capabilities: str
) -> None:
    script: dict[str, Reply] = dict.fromkeys(("LOGIN", "AUTHENTICATE"), ECHOES[echo])
    with ScriptedImap((), script, capabilities=capabilities) as server:
        report = await poll(station, server)
    assert report.error is not None
    sent = server.received[-1].split()[-1].strip('"')
    said = caplog.text + str(report.error) + str((await station.mailbox()).last_error)
    assert "what is" in said
    assert "secret" not in said
    assert sent not in said


@pytest.mark.parametrize("marker", [b"Subject: 2", b"text 2"], ids=["header", "text"])
async def test_a_message_that_hangs_in_its_middle(database_url: str, marker: bytes) -> None:
    async with open_station(database_url, imap_timeout_seconds=0.5) as station:
        with hanging_at(marker, count=3) as server:
            await station.add(server.port)
            reports = await poll_until(station, {1, 3})
            assert len(reports) <= 4
            assert await quarantined(station) == {2: "fetch: no answer for 0.5 s"}
            # Its neighbours do not wait for the attempts that are left.
            mailbox = await station.mailbox()
            assert (mailbox.consecutive_failures, mailbox.not_before) == (0, None)
            server.messages.append(Message(4, mail(4)))
            assert (await station.poll()).error is None
            assert await taken(station) == [1, 3, 4]


async def test_a_deadline_in_the_middle_of_a_backlog_is_no_failure(database_url: str) -> None:
    """A server that manages one batch in the time of a poll."""
    with serving(2 * BATCH_MESSAGES) as server:

        def reply(args: str) -> Hang | None:
            batches = sum("HEADER" in line for line in since_login(server))
            return Hang() if batches > 1 else None

        server.script["UID FETCH"] = reply
        async with open_station(database_url, poll_timeout_seconds=2) as station:
            await station.add(server.port)
            with at_most(seconds=2 + 2):
                report = await station.poll()
            assert (report.error, dict(report.counts)) == (None, {"stored": BATCH_MESSAGES})
            mailbox = await station.mailbox()
            assert (mailbox.consecutive_failures, mailbox.not_before) == (0, None)
            assert mailbox.cursor == {"uidvalidity": 1, "uid": BATCH_MESSAGES}
            assert (await station.poll()).counts == {"stored": BATCH_MESSAGES}


def since_login(server: ScriptedImap) -> Sequence[str]:
    """What came over the last connection."""
    last = max(at for at, line in enumerate(server.received) if " LOGIN " in line)
    return server.received[last:]
