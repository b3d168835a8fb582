"""Odd answers to FETCH, SEARCH and EXAMINE: what can be read is taken, what cannot costs its mail
alone, and nothing is lost.
"""

import re
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from service.errors import ConnectionLost
from service.intake import MAX_FAILED_IN_A_ROW
from tests.mail.hostile.polling import (
    LEAF,
    mail,
    mails,
    poll,
    quarantined,
    rewriting,
    serving,
    taken,
)
from tests.mail.station import Station
from tests.scripted_imap import Message


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
