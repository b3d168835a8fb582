"""The quarantine from end to end: how a message gets in, how often it is tried again, what
`python -m service quarantine` shows of it, and every way out."""

import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import trio
from cryptography.fernet import Fernet, MultiFernet

from service.db.mailboxes import delete_mailbox
from service.db.pool import open_database
from service.db.quarantine import MAX_ATTEMPTS
from service.loops.poller import MailboxPoller
from service.opener import create_opener
from service.settings import Settings
from tests.mail.station import Station
from tests.scripted_imap import Close, Hang, Message, Reply, ScriptedImap

REPOSITORY = Path(__file__).parents[2]
USER = "user@example.com"
KEY = Fernet.generate_key().decode()
SETTINGS = Settings.load(imap_timeout_seconds=5)
UNSET = {name.upper() for name in Settings.model_fields}
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in UNSET}
NO_STRUCTURE = "()"
REFUSAL = b"{tag} NO System \x1b[31mError\r\n"
DONE = ("stored", "duplicate")
# The bytes are kept, and nothing is in the way of reading them.
GOOD = b"From: a@example.com\r\nSubject: good\r\nMessage-ID: <1@example.com>\r\n\r\ntext\r\n"
# Not even its bytes make a request: MIME parts nested deeper than anybody nests them.
TOO_DEEP = b"Subject: deep\r\n" + b"Content-Type: message/rfc822\r\n\r\n" * 200 + b"\r\n"


@pytest.fixture
async def station(database_url: str) -> AsyncIterator[Station]:
    """One whose key the commands are given as well."""
    keys = MultiFernet([Fernet(KEY)])
    with trio.fail_after(60):
        async with open_database(database_url) as db:
            await db.connect()
            yield Station(db, keys, MailboxPoller(db, SETTINGS, create_opener(SETTINGS, keys)))


class Commands:
    """`python -m service quarantine …` on this test's database."""

    def __init__(self, database_url: str) -> None:
        self._given = {"DATABASE_URL": database_url, "SERVICE_SECRET_KEY": KEY}

    def run(self, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [sys.executable, "-m", "service", "quarantine", *arguments],
            cwd=REPOSITORY,
            env={**ENVIRONMENT, "IMAP_TIMEOUT_SECONDS": "2", **self._given},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
            check=False,
        )

    def succeed(self, *arguments: str) -> str:
        """Its standard output; exit code 0, and nothing on standard error but log lines."""
        result = self.run(*arguments)
        assert result.returncode == 0, result.stderr
        return result.stdout.decode()

    def fail(self, *arguments: str) -> tuple[str, str]:
        """Its standard output, and the one line on standard error that is no log line."""
        result = self.run(*arguments)
        assert result.returncode == 1, result.stderr
        said = [line for line in result.stderr.decode().splitlines() if line[:1] != "{"]
        (line,) = said
        return result.stdout.decode(), line.removeprefix("mailroom: ")


@pytest.fixture
def commands(database_url: str) -> Commands:
    return Commands(database_url)


def refusing(*uids: int) -> ScriptedImap:
    """A server with four mails that gives nothing of some of them."""
    server = ScriptedImap([Message(uid, mail(uid)) for uid in (1, 2, 3, 4)])

    def reply(args: str) -> bytes | None:
        usual = server.default_reply("UID FETCH", args)
        is_refused = any(b"(UID %d " % uid in usual for uid in uids)
        return REFUSAL if is_refused else usual

    server.script["UID FETCH"] = reply
    return server


def mail(number: int) -> bytes:
    return b"Subject: %d\r\nMessage-ID: <%d@example.com>\r\n\r\ntext\r\n" % (number, number)


def unreadable(raw: bytes = GOOD) -> ScriptedImap:
    """A server whose BODYSTRUCTURE for its one mail makes no sense; it gives the raw bytes."""
    return ScriptedImap([Message(1, raw, structure=NO_STRUCTURE)])


async def put_in_quarantine(station: Station, server: ScriptedImap) -> None:
    await station.add(server.port)
    report = await station.poll()
    assert report.error is None
    assert report.counts["quarantined"] == 1


async def subjects(station: Station) -> list[str]:
    return [row["subject"] for row in await station.rows("SELECT subject FROM request ORDER BY id")]


async def attempts(station: Station) -> int:
    (row,) = await station.rows("SELECT attempts FROM quarantine")
    return int(row["attempts"])


async def resolved(station: Station) -> set[int]:
    rows = await station.rows("SELECT id FROM quarantine WHERE resolved_at IS NOT NULL")
    return {row["id"] for row in rows}


async def remove(station: Station, address: str) -> None:
    async with station.db.transaction() as conn:
        await delete_mailbox(conn, address)


async def test_a_message_is_tried_five_times_in_all(station: Station) -> None:
    with refusing(3) as server:
        await put_in_quarantine(station, server)
        assert await subjects(station) == ["1", "2", "4"]
        for attempt in range(2, MAX_ATTEMPTS + 1):
            assert (await station.poll()).counts == {"quarantined": 1}
            assert await attempts(station) == attempt
        fetches = sum("FETCH" in line for line in server.received)
        for _ in range(3):
            assert (await station.poll()).counts == {}
        assert await attempts(station) == MAX_ATTEMPTS
        assert sum("FETCH" in line for line in server.received) == fetches
    assert (await station.mailbox()).consecutive_failures == 0


async def test_a_message_that_hangs_is_tried_five_times_in_all(station: Station) -> None:
    settings = Settings.load(imap_timeout_seconds=0.2)
    station.poller = MailboxPoller(station.db, settings, create_opener(settings, station.keys))
    with ScriptedImap([Message(1, GOOD)], {"UID FETCH": Hang(b"* 1 FETCH (UID 1 ")}) as server:
        await station.add(server.port)
        for _ in range(MAX_ATTEMPTS + 3):
            await station.poll()
        assert await attempts(station) == MAX_ATTEMPTS
        fetches = sum("FETCH" in line for line in server.received)
        assert (await station.poll()).error is None
        assert sum("FETCH" in line for line in server.received) == fetches


async def test_a_later_poll_that_succeeds_resolves_it(station: Station) -> None:
    with refusing(3) as server:
        await put_in_quarantine(station, server)
        server.script.clear()
        assert (await station.poll()).counts == {"stored": 1}
        assert await subjects(station) == ["1", "2", "4", "3"]
        assert await resolved(station) == {1}
        assert (await station.poll()).counts == {}
    assert await attempts(station) == 1


async def test_a_message_that_is_deleted_meanwhile_stays_visible(station: Station) -> None:
    with refusing(3) as server:
        await put_in_quarantine(station, server)
        del server.messages[2]
        assert (await station.poll()).counts == {"quarantined": 1}
    (row,) = await station.rows("SELECT error, resolved_at FROM quarantine")
    assert (row["error"], row["resolved_at"]) == ("the message is no longer on the server", None)


async def test_the_raw_bytes_are_kept_when_they_can_be_had(station: Station) -> None:
    with unreadable() as server:
        await put_in_quarantine(station, server)
    (row,) = await station.rows("SELECT stage, raw FROM quarantine")
    assert (row["stage"], row["raw"]) == ("parse", GOOD)


async def test_many_large_messages_that_fail_are_put_aside_one_by_one(station: Station) -> None:
    raws = [mail(number) + bytes([64 + number]) * 3_000_000 for number in range(1, 7)]
    messages = [Message(uid, raw, structure=NO_STRUCTURE) for uid, raw in enumerate(raws, 1)]
    with ScriptedImap([*messages, Message(7, GOOD)]) as server:
        await station.add(server.port)
        assert (await station.poll()).counts == {"quarantined": 6, "stored": 1}
    kept = await station.rows("SELECT raw, xmin::text AS transaction FROM quarantine ORDER BY id")
    assert [row["raw"] for row in kept] == raws
    assert len({row["transaction"] for row in kept}) == len(raws)


async def test_list_and_show(station: Station, commands: Commands) -> None:
    with refusing(3) as server:
        await put_in_quarantine(station, server)
        listed = commands.succeed("list")
        assert re.search(rf"1 +{USER} +3 +retrying +1 +fetch +FETCH failed: System .*Error", listed)
        shown = commands.succeed("show", "1")
        for line in (
            rf"mailbox +{USER}",
            "uid +3",
            "uidvalidity +1",
            "stage +fetch",
            "attempts +1",
        ):
            assert re.search(f"^{line}$", shown, re.MULTILINE)
        assert re.search("^raw message kept +no$", shown, re.MULTILINE)
        assert "\x1b" not in listed + shown

        for _ in range(MAX_ATTEMPTS - 1):
            await station.poll()
        document = json.loads(commands.succeed("show", "1", "--json"))
        assert (document["id"], document["address"]) == (1, USER)
        assert document["server_ref"] == {"uidvalidity": 1, "uid": 3}
        assert (document["status"], document["attempts"]) == ("failed", MAX_ATTEMPTS)

        server.script.clear()
        assert commands.succeed("replay", "1") == "1: stored\n"
    assert await subjects(station) == ["1", "2", "4", "3"]
    (document,) = json.loads(commands.succeed("list", "--all", "--json"))
    assert document["status"] == "resolved"


async def test_show_raw(station: Station, commands: Commands) -> None:
    octets = GOOD + bytes(range(256)) + b"\n\r\n"
    with unreadable(octets) as server:
        await put_in_quarantine(station, server)
    result = commands.run("show", "1", "--raw")
    assert (result.returncode, result.stdout) == (0, octets)


async def test_what_is_not_there(station: Station, commands: Commands) -> None:
    with refusing(3) as server:
        await put_in_quarantine(station, server)
    assert commands.fail("replay", "7") == ("", "there is no quarantine row 7 (quarantine list)")
    nothing = commands.fail("show", "1", "--raw")
    assert nothing == ("", "the bytes of quarantine row 1 could not be had")


class Fates:
    """Messages in quarantine, each of a mailbox and a server of its own, and what a replay says."""

    def __init__(self, station: Station, servers: ExitStack) -> None:
        self.expected: dict[int, str] = {}
        self._station = station
        self._servers = servers

    async def begin(
        self, outcome: str, raw: bytes | None = None, *, reply: Reply | None = None
    ) -> tuple[str, ScriptedImap]:
        """Mailbox and server of the next message; its bytes are kept unless FETCH is scripted."""
        number = len(self.expected) + 1
        message = Message(1, raw or mail(number), structure=None if reply else NO_STRUCTURE)
        server = ScriptedImap([message], {"UID FETCH": reply} if reply else None)
        self._servers.enter_context(server)
        address = await self._station.add(server.port, f"{number}@example.com")
        assert (await self._station.poll(address)).counts == {"quarantined": 1}
        self.expected[number] = outcome
        return address, server


async def test_every_fate_of_a_replay(station: Station, commands: Commands) -> None:
    with ExitStack() as servers:
        fates = Fates(station, servers)
        # What works now on the server.
        _, server = await fates.begin("stored", reply=REFUSAL)
        server.script.clear()
        # From the bytes: what the server still gives nothing of,
        await fates.begin("stored")
        # what it no longer has,
        _, server = await fates.begin("stored")
        server.messages = []
        # what is another mail there now,
        _, server = await fates.begin("stored")
        server.messages, server.uidvalidity = [Message(1, mail(99))], 2
        # what it hides behind a wrong password,
        _, server = await fates.begin("stored")
        server.script["LOGIN"] = b"{tag} NO [AUTHENTICATIONFAILED] no\r\n"
        # and what came from a mailbox that was removed.
        address, _ = await fates.begin("stored")
        await remove(station, address)
        # What another mailbox had as well.
        await fates.begin("duplicate", raw=mail(2))
        # Without bytes there is nothing left to try.
        await fates.begin("quarantined", reply=REFUSAL)
        _, server = await fates.begin("quarantined", reply=REFUSAL)
        server.messages = []
        address, _ = await fates.begin("gone", reply=REFUSAL)
        await remove(station, address)
        _, server = await fates.begin("failed: ", reply=REFUSAL)
        server.script["LOGIN"] = Close()
        _, server = await fates.begin("failed: no answer for 2 s", reply=REFUSAL)
        server.script["UID FETCH"] = Hang(b"* 1 FETCH (UID 1 ")
        # Bytes that make no request, and a request that the database will not have.
        await fates.begin("failed: the parts are nested more than 100 levels deep", raw=TOO_DEEP)
        await fates.begin("failed: new row for relation", raw=mail(666))
        await station.rows("ALTER TABLE request ADD CONSTRAINT picky CHECK (subject <> '666')")

        output, line = commands.fail("replay", "--all")
    said = dict(line.split(": ", 1) for line in output.splitlines())
    assert list(map(int, said)) == list(fates.expected)
    for number, outcome in fates.expected.items():
        assert said[str(number)].startswith(outcome), number
    done = {number for number, outcome in fates.expected.items() if outcome in DONE}
    assert line == f"{len(fates.expected) - len(done)} still in quarantine"
    assert await resolved(station) == done
    assert await subjects(station) == ["1", "2", "3", "4", "5", "6"]
