"""Monstrous mails and answers, on a real Dovecot and on servers that lie about sizes.

Time and memory stay bounded, the other mails are taken, and the reason is plain.
"""

import re
from dataclasses import replace

import pytest
import trio

from service.errors import ConnectionLost
from service.intake import BATCH_MESSAGES
from tests.bounds import MEGABYTE, at_most
from tests.mail.hostile.polling import (
    LEAF,
    POLL_MAX_SECONDS,
    growing_at_most,
    mail,
    mails,
    poll,
    poll_until,
    quarantined,
    serving,
    taken,
    wait_for,
)
from tests.mail.station import Station, open_station
from tests.scripted_imap import Close, Message, ScriptedImap
from tests.servers import Dovecot

PDF_OF_1_GB = '("application" "pdf" ("name" "big.pdf") NIL NIL "base64" 1073741824)'


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
