"""What breaks into a poll: cancellation, a database that goes away or refuses, a second poller.

Nothing is left of the connection and its thread, and no mail is lost.
"""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import psutil
import pytest
import trio

from service.db.mailboxes import claim_mailbox
from service.db.migrate import migrate
from service.errors import ClaimLost, DatabaseUnreachable
from service.intake import BATCH_MESSAGES
from service.loops.poller import MailboxPoller, PollReport
from service.mail.capacity import create_capacity
from service.model import Tls
from service.opener import MailboxOpener
from service.settings import Settings
from tests.mail.hostile.polling import (
    USER,
    hanging_at,
    mail,
    mails,
    poll,
    quarantined,
    serving,
    taken,
    wait_for,
)
from tests.mail.station import Station, open_station
from tests.scripted_imap import Hang, ScriptedImap
from tests.servers import PostgresCluster


def client_sockets(port: int) -> list[str]:
    """States of this process's connections to a port."""
    connections = psutil.Process().net_connections("tcp")
    return [one.status for one in connections if one.raddr and one.raddr.port == port]


def busy_threads() -> list[str]:
    """Trio names a thread after what it runs and keeps it for a while when it is done."""
    return [one.name for one in threading.enumerate() if one.name.startswith("step from")]


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
    opener = MailboxOpener(settings, station.keys, capacity)
    poller = MailboxPoller(station.db, settings, opener)
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
