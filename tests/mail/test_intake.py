"""From mailboxes to rows: what is taken, how often, and what is read of it.

On a real Dovecot; on a scripted server where the test looks at what is on the wire, or has
something happen in the middle of a poll.
"""

import hashlib
import re
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
import trio

from service.db.requests import suffixed_ref
from service.errors import ClaimLost, MailboxUnreachable
from service.intake import BATCH_MESSAGES
from service.loops.poller import PollReport
from service.mail.reader import SLICE_BYTES
from tests.mail import cases
from tests.mail.station import Station, open_station, subjects
from tests.scripted_imap import Message, Reply, ScriptedImap
from tests.scripted_mailbox import body_structure
from tests.servers import Dovecot

SINCE = datetime(2026, 3, 2, 9, 30, tzinfo=UTC)
USER = "user@example.com"


async def poll(station: Station, address: str = USER) -> dict[str, int]:
    report = await station.poll(address)
    assert report.error is None
    return dict(report.counts)


async def files(station: Station) -> Sequence[Any]:
    return await station.rows("SELECT * FROM attachment WHERE kind = 'file' ORDER BY id")


async def test_the_first_poll_takes_what_arrived_since(station: Station, dovecot: Dovecot) -> None:
    user = dovecot.new_user()
    for number, seconds in enumerate((-86_400, -1, 0, 1)):
        received_at = SINCE + timedelta(seconds=seconds)
        dovecot.append(user, cases.numbered(number), internaldate=received_at)
    await station.add(dovecot.imap_port, user, since=SINCE)
    counts = await poll(station, user)
    assert counts["stored"] == 2
    assert await subjects(station) == ["Mail 2", "Mail 3"]
    assert await poll(station, user) == {}


async def cursor_of(station: Station, address: str = USER) -> dict[str, int]:
    return (await station.mailbox(address)).cursor or {}


async def test_after_the_cursor_only_what_is_new(station: Station, dovecot: Dovecot) -> None:
    user = await station.add(dovecot.imap_port, dovecot.new_user())
    assert await poll(station, user) == {}
    for number in range(3):
        dovecot.append(user, cases.numbered(number))
        assert await poll(station, user) == {"stored": 1}
        assert (await cursor_of(station, user))["uid"] == number + 1
    assert await poll(station, user) == {}
    with dovecot.client(user) as client:
        folder = client.select_folder("INBOX", readonly=True)
    assert await cursor_of(station, user) == {"uidvalidity": folder[b"UIDVALIDITY"], "uid": 3}


async def test_no_flag_is_changed(station: Station, dovecot: Dovecot) -> None:
    def flags_and_counts() -> tuple[Any, Any]:
        with dovecot.client(user) as client:
            counts = client.folder_status("INBOX", ["MESSAGES", "RECENT", "UNSEEN"])
            client.select_folder("INBOX", readonly=True)
            return client.get_flags(client.search()), counts

    user = await station.add(dovecot.imap_port, dovecot.new_user())
    dovecot.append(user, *(cases.numbered(number) for number in range(2)))
    with dovecot.client(user) as client:
        client.select_folder("INBOX")
        client.set_flags([1], [rb"\Seen", rb"\Flagged", b"kept"])
    dovecot.append(user, cases.INLINE_PDF)
    before = flags_and_counts()
    assert before[0] == {1: (rb"\Flagged", rb"\Seen", b"kept"), 2: (), 3: (rb"\Recent",)}
    assert await poll(station, user) == {"stored": 3}
    assert flags_and_counts() == before


async def test_no_command_is_sent_that_could_change_anything(station: Station) -> None:
    messages = [Message(1, cases.INLINE_PDF), Message(2, cases.ONLY_LOGOS)]
    with ScriptedImap(messages) as server:
        await station.add(server.port)
        assert await poll(station) == {"stored": 2}
    names = set(re.findall(r"(?m)^\S+ ((?:UID )?\S+)", "\n".join(server.received)))
    assert names == {"CAPABILITY", "LOGIN", "EXAMINE", "UID SEARCH", "UID FETCH", "LOGOUT"}
    assert not any("BODY[" in line for line in server.received)


async def test_a_folder_with_a_name_outside_ascii(station: Station, dovecot: Dovecot) -> None:
    user, folder = dovecot.new_user(), 'Büro & "Eingang" 価格'
    dovecot.append(user, cases.numbered(1), folder=folder)
    await station.add(dovecot.imap_port, user, folder=folder)
    assert await poll(station, user) == {"stored": 1}


async def test_a_folder_that_is_not_there_is_named_with_those_that_are(
    station: Station, dovecot: Dovecot
) -> None:
    user = dovecot.new_user()
    dovecot.append(user, cases.numbered(1), folder="Büro")
    await station.add(dovecot.imap_port, user, folder="Buro")
    error = (await station.poll(user)).error
    assert isinstance(error, MailboxUnreachable)
    assert "Büro" in str(error.hint)


async def test_500_mails_in_several_batches(station: Station, dovecot: Dovecot) -> None:
    assert BATCH_MESSAGES < 250
    user = await station.add(dovecot.imap_port, dovecot.new_user())
    dovecot.write_maildir(user, (cases.numbered(number) for number in range(500)))
    assert await poll(station, user) == {"stored": 500}
    assert len(set(await subjects(station))) == 500
    assert await poll(station, user) == {}


async def test_one_mail_in_two_mailboxes_is_one_request(station: Station, dovecot: Dovecot) -> None:
    first, second = dovecot.new_user(), dovecot.new_user()
    for user in (first, second):
        dovecot.append(user, cases.INLINE_PDF)
        await station.add(dovecot.imap_port, user)
    assert await poll(station, first) == {"stored": 1}
    assert await poll(station, second) == {"duplicate": 1}
    assert len(await files(station)) == 1


async def poll_both(station: Station, *addresses: str) -> list[PollReport]:
    reports: list[PollReport] = []

    async def one(address: str) -> None:
        reports.append(await station.poll(address))

    async with trio.open_nursery() as nursery:
        for address in addresses:
            nursery.start_soon(one, address)
    return reports


async def test_two_pollers_at_two_folders_with_the_same_mails(
    station: Station, dovecot: Dovecot
) -> None:
    raws = [cases.numbered(number) for number in range(100)]
    first, second = dovecot.new_user(), dovecot.new_user()
    dovecot.append(first, *raws)
    dovecot.append(second, *reversed(raws), folder="Copies")
    await station.add(dovecot.imap_port, first)
    await station.add(dovecot.imap_port, second, folder="Copies")
    reports = await poll_both(station, first, second)
    assert [report.error for report in reports] == [None, None]
    assert sum(report.counts["stored"] for report in reports) == 100
    assert sum(report.counts["duplicate"] for report in reports) == 100
    assert len(set(await subjects(station))) == 100


async def test_two_pollers_that_both_find_nothing_stored_yet(station: Station) -> None:
    """Both have passed the SELECT when the first one inserts: the constraint decides."""
    meeting = threading.Barrier(2)

    def fetch(args: str) -> None:
        if "BODY.PEEK[2]" in args:
            meeting.wait(5)

    raws = [
        cases.mail(
            cases.multipart(cases.text_part(), cases.pdf_part()),
            message_id=b"<%d@example.com>" % number,
        )
        for number in range(5)
    ]
    messages = [Message(uid, raw) for uid, raw in enumerate(raws, start=1)]
    copies = [Message(uid, raw) for uid, raw in enumerate(reversed(raws), start=1)]
    script: dict[str, Reply] = {"UID FETCH": fetch}
    with ScriptedImap(messages, script) as one, ScriptedImap(copies, script) as other:
        await station.add(one.port, "one@example.com")
        await station.add(other.port, "other@example.com")
        reports = await poll_both(station, "one@example.com", "other@example.com")
    assert [report.error for report in reports] == [None, None]
    assert reports[0].counts + reports[1].counts == {"stored": 5, "duplicate": 5}
    assert len(await files(station)) == 5


async def test_a_reused_id_with_other_content_is_stored_beside(
    station: Station, dovecot: Dovecot
) -> None:
    user = await station.add(dovecot.imap_port, dovecot.new_user())
    dovecot.append(user, cases.numbered(1, b"First"), cases.numbered(1, b"Second"))
    assert await poll(station, user) == {"stored": 2}
    dovecot.append(user, cases.numbered(1, b"Third"), cases.numbered(1, b"Second"))
    assert await poll(station, user) == {"stored": 1, "duplicate": 1}
    rows = await station.rows("SELECT * FROM request")
    by_text = {row["body_text"]: row for row in rows}
    assert by_text["First"]["source_ref"] == "<1@example.com>"
    assert not by_text["First"]["message_id_reused"]
    for text in ("Second", "Third"):
        row = by_text[text]
        assert row["source_ref"] == suffixed_ref("<1@example.com>", row["content_fingerprint"])
        assert row["message_id_reused"]
        assert row["message_id"] == "<1@example.com>"
    dovecot.change_uidvalidity(user)
    assert await poll(station, user) == {"duplicate": 4}


async def test_a_large_file_is_stored_byte_for_byte(station: Station, dovecot: Dovecot) -> None:
    content = cases.PDF + cases.noise(6_000_000)
    raw = cases.mail(cases.multipart(cases.text_part(), cases.pdf_part(content=content)))
    user = await station.add(dovecot.imap_port, dovecot.new_user())
    dovecot.append(user, raw)
    assert await poll(station, user) == {"stored": 1}
    (file,) = await files(station)
    assert (file["verdict"], file["status"]) == ("extract", "pending")
    assert file["size_bytes"] == len(content)
    assert file["sha256"] == hashlib.sha256(content).hexdigest()
    assert file["content"] == content


def fetched(server: ScriptedImap, section: str) -> list[str]:
    """What was asked of this section, in the order it was asked."""
    item = f"BODY.PEEK[{section}]"
    return [word.strip("()") for line in server.received for word in line.split() if item in word]


async def test_of_a_large_file_that_is_no_document_only_the_first_slice_is_read(
    station: Station,
) -> None:
    part = cases.file_part(cases.noise(3_000_000), b"Content-Type: application/octet-stream")
    raw = cases.mail(cases.multipart(cases.text_part(), part))
    with ScriptedImap([Message(1, raw)]) as server:
        await station.add(server.port)
        assert await poll(station) == {"stored": 1}
        assert fetched(server, "2") == [f"BODY.PEEK[2]<0.{SLICE_BYTES}>"]
    (file,) = await files(station)
    assert (file["verdict"], file["status"]) == ("unsupported", "skipped")
    assert file["verdict_reason"]
    assert file["content"] is None


async def test_logos_and_archives_are_never_downloaded(station: Station) -> None:
    logo = cases.file_part(
        cases.png(2000),
        b"Content-Type: image/png",
        b"Content-ID: <logo@example.com>",
        b'Content-Disposition: inline; filename="logo.png"',
    )
    archive = cases.file_part(
        cases.ZIP,
        b"Content-Type: application/zip",
        b'Content-Disposition: attachment; filename="notes.zip"',
    )
    raw = cases.mail(cases.multipart(cases.text_part(), logo, archive, cases.pdf_part()))
    with ScriptedImap([Message(1, raw)]) as server:
        await station.add(server.port)
        assert await poll(station) == {"stored": 1}
        assert (fetched(server, "2"), fetched(server, "3")) == ([], [])
        assert len(fetched(server, "4")) == 1
        assert fetched(server, "") == []
    verdicts = [(file["part_id"], file["verdict"]) for file in await files(station)]
    assert verdicts == [("2", "inline_image"), ("3", "unsupported"), ("4", "extract")]


def with_file(size_bytes: int) -> bytes:
    content = cases.PDF + cases.noise(size_bytes - len(cases.PDF))
    return cases.mail(cases.multipart(cases.text_part(), cases.pdf_part(content=content)))


async def poll_with_limit(
    database_url: str, message: Message, max_bytes: int
) -> tuple[Any, list[str]]:
    """The row of the message's file at section 2, and what was fetched of it."""
    with ScriptedImap([message]) as server:
        async with open_station(database_url, extract_max_bytes=max_bytes) as station:
            await station.add(server.port)
            assert await poll(station) == {"stored": 1}
            (file,) = await files(station)
        return file, fetched(server, "2")


async def test_a_file_over_the_limit_is_not_downloaded(database_url: str) -> None:
    file, read = await poll_with_limit(database_url, Message(1, with_file(100_010)), 100_000)
    assert (file["verdict"], file["status"], file["content"]) == ("too_large", "skipped", None)
    assert file["verdict_reason"]
    assert read == []


async def test_a_file_of_exactly_the_limit_is_taken(database_url: str) -> None:
    file, _ = await poll_with_limit(database_url, Message(1, with_file(100_000)), 100_000)
    assert (file["verdict"], file["size_bytes"]) == ("extract", 100_000)


async def test_a_file_larger_than_the_server_says_is_read_up_to_the_limit(
    database_url: str,
) -> None:
    raw = with_file(3_000_000)
    structure = re.sub(r'"base64" \d+', '"base64" 1200000', body_structure(raw))
    message = Message(1, raw, structure=structure)
    file, read = await poll_with_limit(database_url, message, 1_000_000)
    assert (file["verdict"], file["status"], file["content"]) == ("too_large", "skipped", None)
    assert len(read) == 2  # of four slices


def claiming(database_url: str, uid: int) -> Callable[[str], None]:
    """A FETCH during which somebody else claims the mailbox, when it begins with this UID."""

    def fetch(args: str) -> None:
        if args.startswith((f"{uid} ", f"{uid}:", f"{uid},")):
            with psycopg.connect(database_url) as conn:
                conn.execute("UPDATE email_mailbox_config SET last_polled_at = clock_timestamp()")

    return fetch


@pytest.mark.parametrize(("failures", "stored_before"), [(0, 0), (1, 1)])
async def test_a_poll_that_lost_its_claim_writes_nothing_more(
    station: Station, database_url: str, failures: int, stored_before: int
) -> None:
    """After a failure a poll starts with a single message, so that one is stored before."""
    messages = [Message(uid, cases.numbered(uid)) for uid in range(1, 6)]
    script: dict[str, Reply] = {"UID FETCH": claiming(database_url, stored_before + 1)}
    with ScriptedImap(messages, script) as server:
        await station.add(server.port)
        async with station.db.transaction() as conn:
            await conn.execute(
                "UPDATE email_mailbox_config SET consecutive_failures = $1", failures
            )
        assert isinstance((await station.poll()).error, ClaimLost)
        assert len(await subjects(station)) == stored_before
        mailbox = await station.mailbox()
        assert (await cursor_of(station)).get("uid", 0) == stored_before
        assert (mailbox.consecutive_failures, mailbox.last_error) == (failures, None)
        assert mailbox.last_success_at is None
        server.script.clear()
        assert await poll(station) == {"stored": 5 - stored_before}


async def test_a_poisoned_message_is_not_recorded_under_a_lost_claim(
    station: Station, database_url: str
) -> None:
    claim = claiming(database_url, 1)

    def fetch(args: str) -> bytes:
        claim(args)
        return b"{tag} NO System Error (Failure)\r\n"

    with ScriptedImap([Message(1, cases.numbered(1))], {"UID FETCH": fetch}) as server:
        await station.add(server.port)
        assert isinstance((await station.poll()).error, ClaimLost)
    assert await station.rows("SELECT 1 FROM quarantine") == []
    assert await cursor_of(station) == {}
