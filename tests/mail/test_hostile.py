"""The intake under attack: monstrous mails on a real Dovecot, servers that lie, hang and babble.

Whatever comes, time and memory stay bounded, the other mails are taken, the reason is plain, and
nothing is lost.
"""

import logging
import re
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import psutil
import pytest
import trio

from service.db.mailboxes import claim_mailbox
from service.db.migrate import migrate
from service.errors import (
    ClaimLost,
    ConnectionLost,
    CredentialsRefused,
    DatabaseUnreachable,
    MailboxThrottled,
    MailboxUnreachable,
)
from service.intake import BATCH_MESSAGES, MAX_FAILED_IN_A_ROW
from service.loops.poller import MailboxPoller, PollReport
from service.mail.imap import create_capacity
from service.model import Tls
from service.opener import MailboxOpener
from service.settings import Settings
from tests.mail.station import Station, open_station
from tests.scripted_imap import Close, Drip, Hang, Message, Reply, ScriptedImap
from tests.servers import Dovecot, PostgresCluster, wait_until

USER = "user@example.com"
TIMEOUT_SECONDS = 1
# A step of a poll takes at most twice the time-out, closing the connection at most 2 s.
POLL_MAX_SECONDS = 2 * TIMEOUT_SECONDS + 2
MEGABYTE = 1024 * 1024
LEAF = '("text" "plain" NIL NIL NIL "7bit" 9 1)'
PDF_OF_1_GB = '("application" "pdf" ("name" "big.pdf") NIL NIL "base64" 1073741824)'


@pytest.fixture
async def station(database_url: str) -> AsyncIterator[Station]:
    with trio.fail_after(60):
        async with open_station(database_url, imap_timeout_seconds=TIMEOUT_SECONDS) as opened:
            yield opened


def mail(number: int, content: str = "") -> bytes:
    """A mail whose subject is its number; `content` is its type, an empty line and its body."""
    header = f"From: a@example.com\r\nSubject: {number}\r\nMessage-ID: <{number}@example.com>\r\n"
    return (header + (content or f"\r\ntext {number}\r\n")).encode()


def mails(count: int) -> list[Message]:
    return [Message(number, mail(number)) for number in range(1, count + 1)]


def serving(count: int = 5, **script: Reply) -> ScriptedImap:
    """A server with `count` mails; a command's name is written with _ for the space."""
    return ScriptedImap(mails(count), {name.replace("_", " "): r for name, r in script.items()})


def rewriting(pattern: bytes, replacement: Any) -> ScriptedImap:
    """A server with five mails whose usual replies to FETCH go through `re.sub`."""
    server = serving()

    def reply(args: str) -> bytes:
        return re.sub(pattern, replacement, server.default_reply("UID FETCH", args))

    server.script["UID FETCH"] = reply
    return server


async def poll(station: Station, server: ScriptedImap) -> PollReport:
    """The first poll of a mailbox on this server."""
    await station.add(server.port)
    return await station.poll()


async def taken(station: Station) -> list[int]:
    """The numbers of the mails that are requests now."""
    return [
        int(row["subject"]) for row in await station.rows("SELECT subject FROM request ORDER BY id")
    ]


async def quarantined(station: Station) -> dict[int, str]:
    """Stage and reason by UID, of what waits in quarantine."""
    rows = await station.rows(
        "SELECT (server_ref->>'uid')::int AS uid, stage || ': ' || error AS why FROM quarantine"
        " WHERE resolved_at IS NULL ORDER BY id"
    )
    return {row["uid"]: row["why"] for row in rows}


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    start = time.monotonic()
    yield
    assert time.monotonic() - start < seconds


@asynccontextmanager
async def growing_at_most(megabytes: int) -> AsyncIterator[None]:
    """Fails if this process, looked at all the time, grows by more."""
    process = psutil.Process()
    before = peak = process.memory_info().rss
    async with trio.open_nursery() as nursery:

        async def watch() -> None:
            nonlocal peak
            while True:
                peak = max(peak, process.memory_info().rss)
                await trio.sleep(0.01)

        nursery.start_soon(watch)
        yield
        nursery.cancel_scope.cancel()
    assert (peak - before) / MEGABYTE < megabytes


def many_parts(count: int) -> str:
    part = "--b\r\nContent-Type: text/plain\r\n\r\npart\r\n"
    return f"Content-Type: multipart/mixed; boundary=b\r\n\r\n{part * count}--b--\r\n"


def nested_multiparts(levels: int) -> str:
    opened = (
        f'Content-Type: multipart/mixed; boundary="b{n}"\r\n\r\n--b{n}\r\n' for n in range(levels)
    )
    return "".join(opened) + "Content-Type: text/plain\r\n\r\nthe innermost\r\n"


def nested_messages(levels: int) -> str:
    return (
        "Content-Type: message/rfc822\r\n\r\n" * levels + "Subject: inner\r\n\r\nthe innermost\r\n"
    )


async def test_monsters_among_good_mails(database_url: str, dovecot: Dovecot) -> None:
    user = dovecot.new_user()
    monsters = {6: many_parts(20_000), 7: nested_multiparts(1500), 8: nested_messages(1500)}
    dovecot.append(user, *(mail(number, monsters.get(number, "")) for number in range(1, 14)))
    async with open_station(database_url, imap_timeout_seconds=20) as station:
        await station.add(dovecot.imap_port, user)
        async with growing_at_most(megabytes=150):
            with at_most(seconds=30):
                report = await station.poll(user)
        assert report.error is None
        waiting = await quarantined(station)
        assert sorted([*await taken(station), *waiting]) == list(range(1, 14))
        assert waiting.keys() <= {7, 8}
        assert all("levels deep" in why for why in waiting.values())


@pytest.mark.parametrize(
    ("structure", "reason"),
    [
        pytest.param("(" * 1500 + LEAF + ' "mixed")' * 1500, "recursion", id="1500 multiparts"),
        pytest.param("(" * 150 + LEAF + ' "mixed")' * 150, "levels deep", id="150 multiparts"),
        pytest.param("(" * 1500 + ")" * 1500, "recursion", id="1500 parentheses"),
        pytest.param("(" * 100_000, "recursion", id="100,000 that open"),
        pytest.param("(" + '("a" "b")' * 60_000 + ' "mixed")', "more than", id="60,000 parts"),
        pytest.param("(" + LEAF * 120_000 + ' "mixed")', "for the structure", id="5 MB"),
    ],
)
async def test_a_monstrous_structure_costs_its_mail_alone(
    database_url: str, structure: str, reason: str
) -> None:
    with serving() as server:
        server.messages[2] = replace(server.messages[2], structure=structure)
        async with open_station(database_url, imap_timeout_seconds=20) as station:
            async with growing_at_most(megabytes=150):
                with at_most(seconds=30):
                    report = await poll(station, server)
            assert report.error is None
            assert await taken(station) == [1, 2, 4, 5]
            waiting = await quarantined(station)
            assert waiting.keys() == {3}
            assert reason in waiting[3]
            (row,) = await station.rows("SELECT raw FROM quarantine")
            assert row["raw"] == mail(3)


async def test_20_000_parts_are_20_000_parts(database_url: str) -> None:
    with serving() as server:
        wide = "(" + LEAF * 20_000 + ' "mixed")'
        server.messages[2] = replace(server.messages[2], structure=wide)
        async with open_station(database_url, imap_timeout_seconds=20) as station:
            async with growing_at_most(megabytes=150):
                report = await poll(station, server)
            assert report.error is None
            assert await taken(station) == [1, 2, 3, 4, 5]
            (row,) = await station.rows("SELECT count(*) FROM attachment WHERE part_id IS NOT NULL")
            assert row["count"] == 20_000 - 100  # 100 of them are read as text


async def test_an_attachment_of_1_gb_is_not_fetched(station: Station) -> None:
    with serving() as server:
        structure = f'({LEAF}{PDF_OF_1_GB} "mixed")'
        server.messages[2] = replace(server.messages[2], structure=structure)
        assert (await poll(station, server)).error is None
        assert await taken(station) == [1, 2, 3, 4, 5]
        fetched = [line for line in server.received if "BODY.PEEK[2]" in line]
    assert fetched == []
    (row,) = await station.rows("SELECT verdict, size_bytes FROM attachment WHERE kind = 'file'")
    assert row["verdict"] == "too_large"
    assert row["size_bytes"] > 700_000_000


@pytest.mark.parametrize("announced_bytes", [100 * MEGABYTE, 2**40, 10**30])
async def test_a_text_said_to_be_small_that_comes_large_is_not_read(
    station: Station, announced_bytes: int
) -> None:
    flood = b"x" * (10 * MEGABYTE)

    def reply(args: str) -> bytes | Close:
        usual = server.default_reply("UID FETCH", args)
        before, is_text, _ = usual.partition(b"BODY[1]<0> {8}\r\ntext 3")
        lie = b"BODY[1]<0> {%d}\r\n" % announced_bytes + flood
        return Close(before + lie) if is_text else usual

    with serving(UID_FETCH=reply) as server:
        await station.add(server.port)
        async with growing_at_most(megabytes=50):
            await poll_until(station, {1, 2, 4, 5})
    waiting = await quarantined(station)
    assert waiting.keys() == {3}
    assert "far more than asked for" in waiting[3]


async def test_a_slice_that_is_larger_than_asked_for_is_refused(station: Station) -> None:
    def reply(args: str) -> bytes:
        """A server that knows nothing of partial fetches."""
        whole = re.sub(r"<\d+\.\d+>", "", args)
        return server.default_reply("UID FETCH", whole)

    pdf = "JVBERi0xLjcK" * 200_000
    structure = f'({LEAF}("application" "pdf" NIL NIL NIL "base64" {len(pdf)}) "mixed")'
    parts = f"--b\r\n\r\ntext\r\n--b\r\n\r\n{pdf}\r\n--b--"
    content = f"Content-Type: multipart/mixed; boundary=b\r\n\r\n{parts}"
    with serving(UID_FETCH=reply) as server:
        server.messages[2] = Message(3, mail(3, content), structure=structure)
        async with growing_at_most(megabytes=50):
            assert (await poll(station, server)).error is None
    assert await taken(station) == [1, 2, 4, 5]
    waiting = await quarantined(station)
    assert "2400000 bytes where 1048576 were asked for" in waiting[3]


async def poll_until(station: Station, numbers: set[int], polls: int = 12) -> list[PollReport]:
    """Poll until these are taken and the others in quarantine, each time within the bounds."""
    reports = []
    for _ in range(polls):
        with at_most(seconds=POLL_MAX_SECONDS):
            reports.append(await station.poll())
        if set(await taken(station)) == numbers and await quarantined(station):
            return reports
    raise AssertionError(f"{await taken(station)} after {polls} polls")


@pytest.mark.parametrize(
    ("command", "length"), [("CAPABILITY", 50_000), ("UID SEARCH", 1), ("UID FETCH", 50_000)]
)
async def test_untagged_lines_without_end(station: Station, command: str, length: int) -> None:
    lines = b"".join(b"* LINE%d %s\r\n" % (n, b"x" * length) for n in range(500_000 // length))
    with ScriptedImap(mails(5), {command: Close(lines * 40)}) as server:
        async with growing_at_most(megabytes=100):
            with at_most(seconds=POLL_MAX_SECONDS):
                report = await poll(station, server)
    assert isinstance(report.error, ConnectionLost)
    assert re.search("far more than one command asks for|no complete answer", str(report.error))


async def test_one_line_without_end(station: Station) -> None:
    with serving(UID_SEARCH=Close(b"* SEARCH " + b"1 " * (20 * MEGABYTE))) as server:
        async with growing_at_most(megabytes=100):
            report = await poll(station, server)
    assert isinstance(report.error, ConnectionLost)
    assert len(str(report.error)) < 500


async def test_what_nobody_asked_for_does_not_pile_up(station: Station) -> None:
    news = b"* NEWS " + b"x" * (6 * MEGABYTE) + b"\r\n"

    def reply(args: str) -> bytes:
        return news + server.default_reply("UID FETCH", args)

    with serving(100, UID_FETCH=reply) as server:
        await station.add(server.port)
        await fail_once(station)
        async with growing_at_most(megabytes=60):
            assert (await station.poll()).error is None
        assert sum("FETCH" in line for line in server.received) > 12
    assert len(await taken(station)) == 100


async def fail_once(station: Station) -> None:
    """The mailbox looks as if its last poll had failed: the next one takes small batches."""
    await station.rows("UPDATE email_mailbox_config SET consecutive_failures = 1")


def lower(match: re.Match[bytes]) -> bytes:
    return match[0].lower()


UNASKED = b"".join(
    b"* %b\r\n" % line
    for line in (
        b"OK [ALERT] maintenance on sunday", b"NO hm", b"BAD hm", b"7 EXISTS", b"0 RECENT",
        b"FLAGS ()", b"SEARCH 1 2", b"CAPABILITY IMAP4rev1", b'LIST () "/" x', b"X-NEWS 1 (a)",
    )
)  # fmt: skip
# What the server does to its reply, and the mails are all taken nevertheless.
PUT_UP_WITH: dict[str, tuple[bytes, Any]] = {
    "items in lower case": (rb"UID|BODYSTRUCTURE|BODY|HEADER|INTERNALDATE|RFC822\.SIZE", lower),
    "responses in lower case": (rb" FETCH \(|\{tag\} OK", lower),
    "OK without words": (rb"OK FETCH done", b"OK"),
    "no origin in the section": (rb"<0>", b""),
    "no size": (rb"RFC822\.SIZE \d+", b""),
    "a UID as a literal": (rb"\(UID 3 ", b"(UID {1}\r\n3 "),
    "a date as a literal": (rb'"(02-Mar-2026 09:30:00 \+0000)"', rb"{26}\r\n\1"),
    "literals in the structure": (rb'"(text|plain)"', lambda m: b"{%d}\r\n%b" % (len(m[1]), m[1])),
    "a text in quotes": (rb"\{8\}\r\ntext (3)\r\n", rb'"text \1"'),
    "a text that is a number": (rb"\{8\}\r\ntext (3)\r\n", rb"\1"),
    "octets that are no text": (rb"\(UID 3 ", b"(UID 3 \xff\xfe \xff "),
    "more blanks": (rb" (BODY|INTERNALDATE)", rb"   \1"),
    "everything twice": (rb"(?s)\A(.*)\{tag\}", rb"\1\1{tag}"),
    "one mail in two responses": (
        rb"(?s)(UID \d+)((?:(?!UID).)*?) INTERNALDATE", rb"\1\2)\r\n* 8 FETCH (\1 INTERNALDATE",
    ),
    "lines of other kinds": (rb"\A", UNASKED),
    "a line to go on": (rb"\A", b"+ idling\r\n"),
    "flags of others": (rb"\A", b"* 1 FETCH (FLAGS ())\r\n* 5 FETCH (FLAGS () UID 5)\r\n"),
    "labels of the same mail": (rb"\{tag\}", b"* 9 FETCH (UID 3 X-LABELS ())\r\n{tag}"),
    "labels without a UID": (rb"\{tag\}", b"* 3 FETCH (X-LABELS ())\r\n{tag}"),
    "an expunge that moves the numbers": (
        rb"\{tag\}", b"* 1 EXPUNGE\r\n* 2 FETCH (UID 3 FLAGS ())\r\n{tag}",
    ),
    "a mail that was not asked for": (
        rb"\A", b'* 9 FETCH (UID 99 BODY[1]<0> "x" BODY[HEADER]<0> "x" BODYSTRUCTURE NIL)\r\n',
    ),
    "nonsense about others": (
        rb"\A", b"* 9 FETCH (UID 99 BODY[\r\n* 9 FETCH\r\n* 9 FETCH x\r\n* 9 FETCH (BODY[1] 5)\r\n",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PUT_UP_WITH)
async def test_an_odd_answer_that_can_be_read(station: Station, name: str) -> None:
    with rewriting(*PUT_UP_WITH[name]) as server:
        assert (await poll(station, server)).error is None
    assert await taken(station) == [1, 2, 3, 4, 5]
    assert await quarantined(station) == {}
    texts = await station.rows("SELECT body_text FROM request ORDER BY id")
    assert [row["body_text"].removeprefix("text ") for row in texts] == ["1", "2", "3", "4", "5"]


HEADER_3 = rb"BODY\[HEADER\]<0> \{\d+\}\r\nFrom: a@example.com\r\nSubject: 3\r\n.*\r\n\r\n"
# What the server does to its reply about mail 3, and the reason by which it is put aside.
PUT_ASIDE: dict[str, tuple[bytes, bytes, str]] = {
    "no UID": (rb"\(UID 3 ", b"(", "without UID"),
    "a UID that is NIL": (rb"\(UID 3 ", b"(UID NIL ", "without UID"),
    "a UID that is no number": (rb"\(UID 3 ", b"(UID abc ", "without UID"),
    "a UID of 5,000 digits": (rb"\(UID 3 ", b"(UID %b " % (b"3" * 5000), "makes no sense"),
    "UID 0": (rb"\(UID 3 ", b"(UID 0 ", "gives nothing of it"),
    "the UID of another": (rb"\(UID 3 ", b"(UID 4 ", "gives nothing of it"),
    "a UID beyond all": (rb"\(UID 3 ", b"(UID 4294967299 ", "gives nothing of it"),
    "a text under a UID beyond all": (rb"\(UID 3 BODY\[1", b"(UID 99 BODY[1", "gives nothing of"),
    "no text": (rb"BODY\[1\]<0> \{8\}\r\ntext 3\r\n", b"", "gives nothing of"),
    "another section": (rb"BODY\[1\](<0> \{8\}\r\ntext 3)", rb"BODY[2]\1", "for section 1"),
    "a text that is a list": (rb"\{8\}\r\ntext 3\r\n", b'("a" "b")', "for section 1"),
    "no header": (HEADER_3, b"", "for section HEADER"),
    "a header that is NIL": (HEADER_3, b"BODY[HEADER]<0> NIL", "for section HEADER"),
    "no structure": (rb"(?s)(UID 3 .*?)BODYSTRUCTURE .*? INTERNALDATE", rb"\1INTERNALDATE", "out"),
    "no date": (rb'(?s)(UID 3 .*?)INTERNALDATE "[^"]+"', rb"\1", "INTERNALDATE"),
    "a parenthesis too many": (rb"\(UID 3 ", b"((UID 3 ", "makes no sense"),
    "a parenthesis too few": (rb"\(UID 3 (.*)", rb"UID 3 \1", "makes no sense"),
    "an item without a value": (rb"\(UID 3 ", b"(UID 3 X ", "makes no sense"),
    "a quotation that does not end": (rb"\(UID 3 ", b'(UID 3 X "', "makes no sense"),
    "nothing": (rb"(?s)\* 3 FETCH .*?(?=\* 4 FETCH|\{tag\})", b"", "gives nothing of it"),
    "NO": (
        rb"(?s)\A.*\(UID 3 .*",
        b"{tag} NO System Error (Failure)\r\n",
        "System Error (Failure)",
    ),
    "BAD": (rb"(?s)\A.*\(UID 3 .*", b"{tag} BAD Command Error. 12\r\n", "Command Error. 12"),
}


@pytest.mark.parametrize("name", PUT_ASIDE)
async def test_an_answer_that_cannot_be_read_costs_its_mail_alone(
    station: Station, name: str
) -> None:
    pattern, replacement, reason = PUT_ASIDE[name]
    with rewriting(pattern, replacement) as server:
        assert (await poll(station, server)).error is None
    assert await taken(station) == [1, 2, 4, 5]
    waiting = await quarantined(station)
    assert waiting.keys() == {3}
    assert reason in waiting[3]


@pytest.mark.parametrize(
    "structure",
    [
        "()", "NIL", '"text"', "5", '("text")', '("text" "plain" (', '("text" "plain"))', "((()))",
        "(() ())", f'({LEAF} () "mixed")', '(("text" "plain") ("text") "mixed")',
    ],
)  # fmt: skip
async def test_a_structure_that_is_none_costs_its_mail_alone(
    station: Station, structure: str
) -> None:
    with serving() as server:
        server.messages[2] = replace(server.messages[2], structure=structure)
        assert (await poll(station, server)).error is None
    assert await taken(station) == [1, 2, 4, 5]
    waiting = await quarantined(station)
    assert re.search("no body structure|makes no sense", waiting[3])
    assert (await station.rows("SELECT raw FROM quarantine"))[0]["raw"] == mail(3)


@pytest.mark.parametrize(
    "date",
    [
        b'"yesterday"', b'""', b"NIL", b"5", b"(5)", b'"32-Jan-2026 25:61:00 +0000"',
        b'"31-Dec-9999 23:59:59 -1200"', b'"02-Mar-2026 10:00:00 +9999"', b'"02-Mar-2026 10:00:00"',
        b'"\xff\xfe"', b'"%b"' % (b"9" * 100_000),
    ],
)  # fmt: skip
async def test_an_internaldate_that_is_none_costs_its_mail_alone(
    station: Station, date: bytes
) -> None:
    with rewriting(rb'(?s)(UID 3 .*?)INTERNALDATE "[^"]+"', rb"\1INTERNALDATE " + date) as server:
        await station.add(server.port, since=datetime(2026, 1, 1, tzinfo=UTC))
        assert (await station.poll()).error is None
    assert await taken(station) == [1, 2, 4, 5]
    assert await quarantined(station) == {3: "fetch: the server gave no usable INTERNALDATE"}


async def test_where_no_mail_can_be_read_it_is_the_server(station: Station) -> None:
    """All of a mailbox does not go to quarantine because its server is out of order for an hour."""
    with rewriting(rb"\(UID \d+ ", b"(") as server:
        server.messages = mails(50)
        report = await poll(station, server)
        assert "10 messages in a row could not be taken" in str(report.error)
        assert len(await quarantined(station)) == MAX_FAILED_IN_A_ROW
        server.script.clear()
        assert (await station.poll()).error is None
    assert sorted(await taken(station)) == list(range(1, 51))
    assert await quarantined(station) == {}


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


def hanging_at(marker: bytes, count: int) -> ScriptedImap:
    """A server that hangs in the middle of a literal as soon as it would say `marker`."""
    server = serving(count)

    def reply(args: str) -> bytes | Hang:
        usual = server.default_reply("UID FETCH", args)
        at = usual.find(marker)
        return Hang(usual[: at + 3]) if at >= 0 else usual

    server.script["UID FETCH"] = reply
    return server


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


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(b"* SEARCH 1 2\r\n* SEARCH\r\n* SEARCH 5 3\r\n* SEARCH 4 4\r\n", id="lines"),
        pytest.param(b"* SEARCH -1 0 1 2 3 4 5 -5\r\n", id="zero and below"),
        pytest.param(b"* SEARCH 1 2 4294967296 3 4 %b 5\r\n" % (b"9" * 5000), id="beyond 2^32"),
        pytest.param(b"* search 1 2 3 4 5 \r\n", id="lower case"),
    ],
)
async def test_a_search_that_can_be_read(station: Station, lines: bytes) -> None:
    with serving(UID_SEARCH=lines + b"{tag} OK done\r\n") as server:
        assert (await poll(station, server)).error is None
    assert await taken(station) == [1, 2, 3, 4, 5]
    assert await quarantined(station) == {}
    assert (await station.mailbox()).cursor == {"uidvalidity": 1, "uid": 5}


@pytest.mark.parametrize(
    "line",
    [
        b"SEARCH 1 x 3", b"SEARCH 1,2,3:5", b"SEARCH (1 2)", b"SEARCH 1.5", b"SEARCH 1_0 +3",
        b"SEARCH {5}\r\n1 2 3", b"SEARCH \xb2", b'SEARCH "1"',
    ],
)  # fmt: skip
async def test_a_search_that_makes_no_sense_takes_nothing(station: Station, line: bytes) -> None:
    with serving(UID_SEARCH=b"* %b\r\n{tag} OK done\r\n" % line) as server:
        report = await poll(station, server)
    assert isinstance(report.error, ConnectionLost)
    assert "makes no sense" in str(report.error)
    assert (await station.mailbox()).cursor is None


async def test_numbers_in_a_refused_search_are_no_uids(station: Station) -> None:
    with serving(UID_SEARCH=b"{tag} NO [BADCHARSET (US-ASCII)] 1 2 3\r\n") as server:
        report = await poll(station, server)
        fetched = [line for line in server.received if "FETCH" in line]
    assert isinstance(report.error, ConnectionLost)
    assert fetched == []


async def test_a_search_with_200_000_uids(station: Station) -> None:
    """Nearly all of them are gone by the time they are fetched."""
    everything = b"* SEARCH %b\r\n{tag} OK\r\n" % b" ".join(b"%d" % n for n in range(1, 200_001))
    with serving() as server:

        def reply(args: str) -> bytes | None:
            return everything if "ALL" in args else None

        server.script["UID SEARCH"] = reply
        await station.add(server.port)
        async with growing_at_most(megabytes=80):
            with trio.move_on_after(1):
                assert (await station.poll()).error is None
        assert await taken(station) == [1, 2, 3, 4, 5]
        cursor = (await station.mailbox()).cursor
        assert cursor is not None
        assert cursor["uid"] >= BATCH_MESSAGES


@pytest.mark.parametrize(
    "code",
    [b"", b"[UIDVALIDITY 0]", b"[UIDVALIDITY abc]", b"[UIDVALIDITY]", b"[UIDVALIDITY -7]",
     b"[UIDVALIDITY %b]" % (b"9" * 40), b"[UIDVALIDITY %b]" % (b"9" * 5000)],
)  # fmt: skip
async def test_without_a_uidvalidity_everything_is_looked_at_again(
    station: Station, code: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(EXAMINE=b"* 5 EXISTS\r\n* OK %b x\r\n{tag} OK done\r\n" % code) as server:
        assert (await poll(station, server)).counts == {"stored": 5}
        assert (await station.poll()).counts == {"duplicate": 5}
        server.messages.append(Message(6, mail(6)))
        assert (await station.poll()).counts == {"duplicate": 5, "stored": 1}
    assert await taken(station) == [1, 2, 3, 4, 5, 6]
    assert caplog.text == ""


def client_sockets(port: int) -> list[str]:
    """States of this process's connections to a port."""
    connections = psutil.Process().net_connections("tcp")
    return [one.status for one in connections if one.raddr and one.raddr.port == port]


def busy_threads() -> list[str]:
    """Trio names a thread after what it runs and keeps it for a while when it is done."""
    return [one.name for one in threading.enumerate() if one.name.startswith("step from")]


async def wait_for(condition: Callable[[], object], *, seconds: float) -> None:
    await trio.to_thread.run_sync(lambda: wait_until(condition, seconds=seconds))


@contextmanager
def mute_port(*, accepting: bool) -> Iterator[int]:
    """A port where nobody says anything, or one whose queue is full: SYN is not even answered."""
    with socket.create_server(("127.0.0.1", 0), backlog=128 if accepting else 0) as listener:
        port = listener.getsockname()[1]
        others = [] if accepting else [socket.socket() for _ in range(3)]
        for other in others:
            other.setblocking(False)
            other.connect_ex(("127.0.0.1", port))
        yield port
        for other in others:
            other.close()


async def cancel_a_poll(
    station: Station, port: int, tls: Tls, is_there: Callable[[], object]
) -> None:
    """Cancel a poll once `is_there`; within a second nothing is left of it."""
    capacity = create_capacity(1)
    limiter = capacity.connections
    settings = Settings.load(imap_timeout_seconds=20)
    poller = MailboxPoller(station.db, settings, MailboxOpener(station.keys, capacity, 20))
    await station.add(port)
    async with station.db.transaction() as conn:
        claim = await claim_mailbox(conn, USER)
    claim = replace(claim, connection=replace(claim.connection, tls=tls))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(poller.poll, claim)
        await wait_for(is_there, seconds=5)
        assert limiter.borrowed_tokens == 1
        nursery.cancel_scope.cancel()
        cancelled_at = trio.current_time()
    assert trio.current_time() - cancelled_at < 1
    assert limiter.borrowed_tokens == 0
    await wait_for(lambda: not busy_threads(), seconds=1)


@pytest.mark.parametrize("command", ["GREETING", "LOGIN", "EXAMINE", "UID SEARCH", "UID FETCH"])
async def test_cancelled_while_it_waits_for(station: Station, command: str) -> None:
    arrived = threading.Event()

    def reply(args: str) -> Hang:
        arrived.set()
        return Hang()

    with ScriptedImap(mails(3), {command: reply}) as server:
        await cancel_a_poll(station, server.port, "none", arrived.is_set)
        assert client_sockets(server.port) == []
        await wait_for(lambda: server.connections_open == 0, seconds=1)


async def test_cancelled_in_a_literal(station: Station) -> None:
    with hanging_at(b"text 2", count=3) as server:
        await cancel_a_poll(
            station, server.port, "none", lambda: "BODY.PEEK[1]" in "".join(server.received[-1:])
        )
        assert client_sockets(server.port) == []


@pytest.mark.parametrize("tls", ["implicit", "starttls", "none"])
async def test_cancelled_while_nothing_comes(station: Station, tls: Tls) -> None:
    with mute_port(accepting=True) as port:
        await cancel_a_poll(station, port, tls, busy_threads)
        assert client_sockets(port) == []


async def test_cancelled_while_it_connects(station: Station) -> None:
    with mute_port(accepting=False) as port:
        queued = len(client_sockets(port))
        await cancel_a_poll(station, port, "none", lambda: len(client_sockets(port)) > queued)
        assert len(client_sockets(port)) == queued


async def test_postgresql_goes_away_between_two_batches() -> None:
    with PostgresCluster() as cluster, serving(3 * BATCH_MESSAGES) as server:
        batches = 0

        def reply(args: str) -> None:
            nonlocal batches
            batches += "HEADER" in args
            if batches == 2 and "HEADER" in args:
                cluster.stop("immediate")

        server.script["UID FETCH"] = reply
        url = cluster.create_database("mailroom")
        await migrate(url)
        async with open_station(url, imap_timeout_seconds=20) as station:
            await station.add(server.port)
            with pytest.raises(DatabaseUnreachable):
                await station.poll()
            cluster.start()
            assert len(await taken(station)) == BATCH_MESSAGES
            report = await station.poll()
            assert (report.error, dict(report.counts)) == (None, {"stored": 2 * BATCH_MESSAGES})
            assert await taken(station) == list(range(1, 3 * BATCH_MESSAGES + 1))


async def test_a_mail_that_the_database_refuses_costs_nothing_but_itself(station: Station) -> None:
    await station.rows("ALTER TABLE request ADD CONSTRAINT picky CHECK (body_text <> 'text 3')")
    with serving() as server:
        assert (await poll(station, server)).error is None
        assert await taken(station) == [1, 2, 4, 5]
        waiting = await quarantined(station)
        assert waiting.keys() == {3}
        assert waiting[3].startswith("store: ")
        assert "picky" in waiting[3]
        assert (await station.rows("SELECT raw FROM quarantine"))[0]["raw"] == mail(3)

        await station.rows("ALTER TABLE request DROP CONSTRAINT picky")
        assert (await station.poll()).counts == {"stored": 1}
    assert await taken(station) == [1, 2, 4, 5, 3]
    assert await quarantined(station) == {}


async def test_two_pollers_at_one_mailbox(station: Station) -> None:
    """The second has claimed it while the first was busy: the first finds out, and both end."""
    with serving(3 * BATCH_MESSAGES) as server:
        second_is_there = threading.Event()

        def reply(args: str) -> None:
            if server.connections_total == 1:
                second_is_there.wait(10)
            else:
                second_is_there.set()

        server.script["UID FETCH"] = reply
        await station.add(server.port)
        reports: list[PollReport] = []

        async def keep_report() -> None:
            reports.append(await station.poll())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_report)
            await wait_for(lambda: any("FETCH" in line for line in server.received), seconds=5)
            nursery.start_soon(keep_report)
    lost, complete = sorted(reports, key=lambda report: report.error is None)
    assert isinstance(lost.error, ClaimLost)
    assert complete.error is None
    assert sorted(await taken(station)) == list(range(1, 3 * BATCH_MESSAGES + 1))
    mailbox = await station.mailbox()
    assert (mailbox.consecutive_failures, mailbox.last_error) == (0, None)


async def test_monstrous_structures_do_not_hold_up_other_mailboxes(station: Station) -> None:
    """Making sense of them takes longer than a server may take to answer."""
    wide = "(" + LEAF * 5_000 + ' "mixed")'
    monsters = [Message(uid, mail(uid), structure=wide) for uid in range(1, 13)]
    with ScriptedImap(monsters) as hostile, serving() as server:
        attacker = await station.add(hostile.port, "attacker@example.org")
        await station.add(server.port)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(station.poll, attacker)
            await wait_for(lambda: "BODYSTRUCTURE" in "".join(hostile.received), seconds=5)
            for number in (6, 7, 8):
                with at_most(seconds=POLL_MAX_SECONDS):
                    assert (await station.poll()).error is None
                server.messages.append(Message(number, mail(number)))
            nursery.cancel_scope.cancel()
        assert set(range(1, 8)) <= set(await taken(station))
