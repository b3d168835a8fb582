"""Failure cases that systems doing this job are known for, each with the one right outcome.

On a real Dovecot; where the case is what a server says, on a scripted one.
"""

import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
import trio

from tests.mail import cases
from tests.mail.station import Station
from tests.scripted_imap import Message, ScriptedImap
from tests.scripted_mailbox import body_structure
from tests.servers import Dovecot

RECEIVED_AT = datetime(2026, 3, 2, 9, 30, 15, tzinfo=UTC)
TEXT = cases.TEXT.decode()
USER = "user@example.com"
ATTEMPTS = 5
UID_RANGE = re.compile(r"(\d+)(?::(\d+))?")


async def requests(station: Station) -> Sequence[Any]:
    return await station.rows("SELECT * FROM request ORDER BY source_ref")


async def request(station: Station, subject: str) -> Any:
    (row,) = await station.rows("SELECT * FROM request WHERE subject = $1", subject)
    return row


async def attachments(station: Station) -> Sequence[Any]:
    return await station.rows("SELECT * FROM attachment ORDER BY id")


async def files_to_extract(station: Station) -> list[tuple[str, str, bytes]]:
    rows = await station.rows(
        "SELECT part_id, filename, content FROM attachment"
        " WHERE kind = 'file' AND verdict = 'extract' AND status = 'pending' ORDER BY id"
    )
    return [tuple(row) for row in rows]


async def take(station: Station, dovecot: Dovecot, *raws: bytes) -> dict[str, int]:
    """Put the mails into a new mailbox, poll it; how many came to which end."""
    user = dovecot.new_user()
    dovecot.append(user, *raws, internaldate=RECEIVED_AT)
    await station.add(dovecot.imap_port, user)
    return await poll(station, user)


async def poll(station: Station, address: str = USER) -> dict[str, int]:
    report = await station.poll(address)
    assert report.error is None
    return dict(report.counts)


async def test_a01_a_colon_in_the_id(station: Station, dovecot: Dovecot) -> None:
    assert await take(station, dovecot, *cases.COLON_IDS) == {"stored": 2}
    ids = ["<order:1@example.com>", "<order:2@example.com>"]
    rows = await requests(station)
    assert [row["source_ref"] for row in rows] == ids
    assert [row["message_id"] for row in rows] == ids
    assert [row["message_id_reused"] for row in rows] == [False, False]


async def test_a02_a_one_off_id_of_outlook(station: Station, dovecot: Dovecot) -> None:
    assert await take(station, dovecot, cases.OUTLOOK_ID) == {"stored": 1}
    (row,) = await requests(station)
    assert row["source_ref"] == row["message_id"] == "<[83c48dddbea7492e@example.com]>"


async def test_a03_no_id_gets_the_same_key_at_every_poll(
    station: Station, dovecot: Dovecot
) -> None:
    user = await station.add(dovecot.imap_port, dovecot.new_user())
    dovecot.append(user, *cases.NO_IDS)
    assert await poll(station, user) == {"stored": 2}
    stored = await requests(station)
    assert await poll(station, user) == {}
    dovecot.change_uidvalidity(user)
    assert await poll(station, user) == {"duplicate": 2}
    assert await requests(station) == stored
    assert len({row["source_ref"] for row in stored}) == 2
    assert all(re.fullmatch("sha256:[0-9a-f]{64}", row["source_ref"]) for row in stored)
    assert [row["message_id"] for row in stored] == [None, None]


async def test_a04_a_folded_id_is_one_key_in_every_folder(
    station: Station, dovecot: Dovecot
) -> None:
    first, second = dovecot.new_user(), dovecot.new_user()
    dovecot.append(first, cases.FOLDED_ID)
    dovecot.append(second, cases.FOLDED_ID, folder="Second")
    await station.add(dovecot.imap_port, first)
    await station.add(dovecot.imap_port, second, folder="Second")
    assert await poll(station, first) == {"stored": 1}
    assert await poll(station, second) == {"duplicate": 1}
    (row,) = await requests(station)
    assert row["source_ref"] == row["message_id"] == "<folded@example.com>"


async def test_a05_an_id_too_long_for_an_index(station: Station, dovecot: Dovecot) -> None:
    normal = [cases.numbered(number) for number in range(9)]
    raws = [*normal[:4], cases.LONG_ID_MAIL, *normal[4:]]
    assert await take(station, dovecot, *raws) == {"stored": 10}
    row = await request(station, "Case")
    assert row["message_id"] == cases.LONG_ID.decode()
    assert re.fullmatch("sha256:[0-9a-f]{64}", row["source_ref"])


async def test_a06_a_pdf_as_octet_stream_without_disposition(
    station: Station, dovecot: Dovecot
) -> None:
    assert await take(station, dovecot, cases.OCTET_STREAM_PDF) == {"stored": 1}
    assert await files_to_extract(station) == [("2", "Reçu n°4711_2.PDF", cases.PDF)]
    assert len(await attachments(station)) == 1
    (row,) = await requests(station)
    assert row["body_text"] == TEXT


async def test_a07_an_inline_pdf_between_two_texts(station: Station, dovecot: Dovecot) -> None:
    assert await take(station, dovecot, cases.INLINE_PDF) == {"stored": 1}
    assert await files_to_extract(station) == [("2", "scan.pdf", cases.PDF)]
    assert len(await attachments(station)) == 1
    (row,) = await requests(station)
    assert row["body_text"] == f"{TEXT}\n\nSent from my phone"


async def test_a08_file_names_as_senders_write_them(station: Station, dovecot: Dovecot) -> None:
    assert await take(station, dovecot, cases.FOUR_NAMES) == {"stored": 1}
    names = [name for _, name, _ in await files_to_extract(station)]
    assert names == ["Offer 12 05 21.pdf", "Maße Haus 7.pdf", "attachment-4.pdf", "Tür.pdf"]
    assert len(await attachments(station)) == 4


async def test_a10_logos_are_no_documents(station: Station, dovecot: Dovecot) -> None:
    assert await take(station, dovecot, cases.ONLY_LOGOS) == {"stored": 1}
    *logos, body = await attachments(station)
    assert [logo["verdict"] for logo in logos] == ["inline_image"] * 3
    assert [logo["status"] for logo in logos] == ["skipped"] * 3
    assert all(logo["content"] is None and logo["verdict_reason"] for logo in logos)
    assert (body["kind"], body["verdict"], body["status"]) == ("body", "extract", "pending")
    (row,) = await requests(station)
    assert row["body_text"] == TEXT


async def test_a11_a_pdf_in_an_inner_multipart(station: Station, dovecot: Dovecot) -> None:
    assert await take(station, dovecot, cases.INNER_MIXED) == {"stored": 1}
    assert await files_to_extract(station) == [("2.2", "inner.pdf", cases.PDF)]
    (row,) = await requests(station)
    assert row["body_text"] == f"{TEXT}\n\nInner text"


async def test_a12_only_a_calendar(station: Station, dovecot: Dovecot) -> None:
    assert await take(station, dovecot, cases.CALENDAR_ONLY) == {"stored": 1}
    (row,) = await requests(station)
    assert "Budget talk" in row["body_text"]
    assert "Bring the figures, please" in row["body_text"]
    (body,) = await attachments(station)
    assert (body["kind"], body["verdict"], body["status"]) == ("body", "extract", "pending")
    assert body["size_bytes"] > 0


async def test_a13_nul(station: Station, dovecot: Dovecot) -> None:
    normal = [cases.numbered(number) for number in range(9)]
    assert await take(station, dovecot, *normal, cases.NUL) == {"stored": 10}
    row = await request(station, "nulhere")
    # Dovecot sends another octet for NUL, which IMAP forbids in a literal (RFC 3501 section 9).
    assert re.fullmatch("before.?after", row["body_text"])


async def test_a13_nul_from_a_server_that_sends_it(station: Station) -> None:
    raws = [*(cases.numbered(number) for number in range(9)), cases.NUL]
    messages = [Message(uid, raw) for uid, raw in enumerate(raws, start=1)]
    with ScriptedImap(messages) as server:
        await station.add(server.port)
        assert await poll(station) == {"stored": 10}
    row = await request(station, "nulhere")
    assert row["body_text"] == "beforeafter"
    assert json.loads(row["recipients"]) == [
        {"kind": "to", "name": "Intake", "address": "intake@example.org"}
    ]
    assert await files_to_extract(station) == [("2", "invoice.pdf", cases.PDF)]


async def test_a14_dates_that_make_no_sense(station: Station, dovecot: Dovecot) -> None:
    raws = [
        cases.mail(message_id=b"<%d@example.com>" % number, date=date)
        for number, date in enumerate(cases.BAD_DATES)
    ]
    assert await take(station, dovecot, *raws) == {"stored": 3}
    rows = await requests(station)
    assert [row["received_at"] for row in rows] == [RECEIVED_AT] * 3
    assert [row["raw_date"] for row in rows] == [date.decode() for date in cases.BAD_DATES]
    assert [row["sent_at"] for row in rows] == [None] * 3


async def test_a15_a_disposition_that_is_a_string(station: Station) -> None:
    inline = b"Content-Disposition: inline\r\n"
    texts = [inline + cases.text_part(), inline + cases.text_part(b"<p>HTML</p>", b"html")]
    alternative = cases.multipart(*texts, subtype=b"alternative", boundary=b"inner")
    raw = cases.mail(cases.multipart(alternative, cases.pdf_part()))
    structure = body_structure(raw).replace('NIL ("inline" NIL) NIL NIL', 'NIL "inline" NIL NIL')
    assert structure.count('NIL "inline" NIL NIL') == 2
    with ScriptedImap([Message(1, raw, structure=structure)]) as server:
        await station.add(server.port)
        assert await poll(station) == {"stored": 1}
        assert not any("BODY.PEEK[]" in line for line in server.received)
    assert await files_to_extract(station) == [("2", "invoice.pdf", cases.PDF)]
    (row,) = await requests(station)
    assert row["body_text"] == TEXT


def refusing(uid: int, item: str = "") -> Callable[[str], bytes | None]:
    """A FETCH that fails whenever this UID is in it, and `item` is asked for."""

    def fetch(args: str) -> bytes | None:
        uids, items = args.split(" ", 1)
        spans = UID_RANGE.findall(uids)
        is_in = any(int(first) <= uid <= int(last or first) for first, last in spans)
        return b"{tag} NO System Error (Failure)\r\n" if is_in and item in items else None

    return fetch


async def quarantine_list(database_url: str) -> str:
    done = await trio.run_process(
        [sys.executable, "-m", "service", "quarantine", "list"],
        env={**os.environ, "DATABASE_URL": database_url, "COLUMNS": "200"},
        capture_stdout=True,
    )
    return done.stdout.decode()


async def test_a16_one_poison_uid(station: Station, database_url: str) -> None:
    messages = [Message(uid, cases.numbered(uid)) for uid in range(1, 6)]
    with ScriptedImap(messages, {"UID FETCH": refusing(3)}) as server:
        await station.add(server.port)
        assert await poll(station) == {"stored": 4, "quarantined": 1}
        assert [row["subject"] for row in await requests(station)] == [
            "Mail 1",
            "Mail 2",
            "Mail 4",
            "Mail 5",
        ]
        server.messages.append(Message(6, cases.numbered(6)))
        assert await poll(station) == {"stored": 1, "quarantined": 1}
        for _ in range(ATTEMPTS - 2):
            assert await poll(station) == {"quarantined": 1}
        server.messages.append(Message(7, cases.numbered(7)))
        commands = len(server.received)
        assert await poll(station) == {"stored": 1}
        assert not any(" FETCH 3 " in line for line in server.received[commands:])
    _, shown = (await quarantine_list(database_url)).splitlines()
    assert re.search(rf"{USER} +3 +failed +{ATTEMPTS} +fetch +.*System Error \(Failure\)", shown)
    assert (await station.mailbox()).cursor == {"uidvalidity": 1, "uid": 7}


@pytest.mark.parametrize("item", ["BODYSTRUCTURE", "BODY.PEEK[1]"])
async def test_a16_a_poison_uid_that_heals_is_taken_late(station: Station, item: str) -> None:
    messages = [Message(uid, cases.numbered(uid)) for uid in range(1, 6)]
    with ScriptedImap(messages, {"UID FETCH": refusing(3, item)}) as server:
        await station.add(server.port)
        assert await poll(station) == {"stored": 4, "quarantined": 1}
        server.script.clear()
        assert await poll(station) == {"stored": 1}
        assert await poll(station) == {}
    assert len(await requests(station)) == 5
    assert await station.rows("SELECT 1 FROM quarantine WHERE resolved_at IS NULL") == []


async def test_a18_since_across_midnight(station: Station) -> None:
    zone = timezone(timedelta(hours=-5))
    messages = [
        Message(1, cases.numbered(1), datetime(2026, 3, 1, 23, 48, 28, tzinfo=zone)),
        Message(2, cases.numbered(2), datetime(2026, 3, 1, 23, 40, 0, tzinfo=zone)),
    ]
    with ScriptedImap(messages) as server:
        await station.add(server.port, since=datetime(2026, 3, 2, 4, 48, tzinfo=UTC))
        assert await poll(station) == {"stored": 1, "too_old": 1}
        (search,) = [line for line in server.received if "SEARCH" in line]
    assert search.endswith("UID SEARCH SINCE 01-Mar-2026")
    (row,) = await requests(station)
    assert row["subject"] == "Mail 1"
    assert row["received_at"] == datetime(2026, 3, 2, 4, 48, 28, tzinfo=UTC)


async def test_a19_uidvalidity_changes(station: Station, dovecot: Dovecot) -> None:
    user = await station.add(dovecot.imap_port, dovecot.new_user())
    dovecot.append(user, *(cases.numbered(number) for number in range(5)))
    assert await poll(station, user) == {"stored": 5}
    before = (await station.mailbox(user)).cursor or {}
    dovecot.change_uidvalidity(user)
    dovecot.append(user, cases.numbered(5))
    assert await poll(station, user) == {"stored": 1, "duplicate": 5}
    after = (await station.mailbox(user)).cursor or {}
    assert (before["uid"], after["uid"]) == (5, 6)
    assert after["uidvalidity"] != before["uidvalidity"]
    assert await poll(station, user) == {}
    assert len(await requests(station)) == 6


async def test_a19_a_server_that_gives_no_uidvalidity(station: Station) -> None:
    raws = [cases.numbered(number) for number in range(6)]
    with ScriptedImap([Message(uid, raw) for uid, raw in enumerate(raws[:5], start=1)]) as server:
        await station.add(server.port)
        assert await poll(station) == {"stored": 5}
        server.script["EXAMINE"] = b"* 6 EXISTS\r\n{tag} OK [READ-ONLY] done\r\n"
        server.messages = [Message(uid, raw) for uid, raw in enumerate(reversed(raws), start=1)]
        assert await poll(station) == {"stored": 1, "duplicate": 5}
        assert await poll(station) == {"duplicate": 6}
    assert len(await requests(station)) == 6
