"""What rule 1 leaves alone: in a transaction all that reaches no further than this machine and the
database, and outside of one everything."""

import hashlib
import ipaddress
import logging
import logging.handlers
import os
import queue
import secrets
import socket
import sqlite3
import ssl
import subprocess
import tempfile
import threading
import uuid
import zoneinfo
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from email import message_from_bytes

import dns.message
import httpx
import pytest
import trio
from prometheus_client import generate_latest

from service.db.notifications import notify
from service.db.pool import MAX_CONNECTIONS, Connection, Database, open_database
from tests.db.guard_calls import PLAIN, httpx_async
from tests.db.guard_peer import HOST, Peer

Work = Callable[[Peer, Database, Connection], Awaitable[object]]


@pytest.fixture(scope="module")
def peer() -> Iterator[Peer]:
    with Peer() as peer:
        yield peer


async def log_to_syslog(peer: Peer, db: Database, conn: Connection) -> None:
    before = peer.contacts
    handler = logging.handlers.SysLogHandler(peer.datagram_path)
    handler.handle(logging.LogRecord("x", logging.INFO, "x", 1, "a line", None, None))
    handler.close()
    peer.wait_for_contact(before)


async def log_to_journal(peer: Peer, db: Database, conn: Connection) -> None:
    before = peer.contacts
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journal:
        journal.sendto(b"MESSAGE=a line\n", peer.datagram_path)
        journal.sendmsg([b"MESSAGE=a line\n"], [], 0, peer.datagram_path)
    peer.wait_for_contact(before + 1)


async def log_to_file(peer: Peer, db: Database, conn: Connection) -> None:
    handler = logging.handlers.RotatingFileHandler(peer.folder / "log", delay=True)
    handler.handle(logging.LogRecord("x", logging.INFO, "x", 1, "a line", None, None))
    handler.close()


async def files(peer: Peer, db: Database, conn: Connection) -> None:
    path = peer.folder / "file"
    path.write_text("x")
    async with await trio.open_file(path) as file:
        assert await file.read() == "x"
    assert [one.name for one in await trio.Path(peer.folder).glob("fil*")] == ["file"]
    with tempfile.NamedTemporaryFile() as temporary:
        temporary.write(b"x")


async def an_sqlite_file(peer: Peer, db: Database, conn: Connection) -> None:
    sqlite3.connect(":memory:").close()


async def a_statement_beside(peer: Peer, db: Database, conn: Connection) -> None:
    assert [row[0] for row in await db.fetch("SELECT 1")] == [1]


async def a_transaction_beside(peer: Peer, db: Database, conn: Connection) -> None:
    async with db.transaction() as other:
        assert other.get_server_pid() != conn.get_server_pid()


async def new_connections_of_the_pool(peer: Peer, db: Database, conn: Connection) -> None:
    all_held, held = trio.Event(), 0

    async def hold_one() -> None:
        nonlocal held
        async with db.connection() as other:
            await other.fetchval("SELECT 1")
            held += 1
            if held == MAX_CONNECTIONS - 1:
                all_held.set()
            await all_held.wait()

    async with trio.open_nursery() as nursery:
        for _ in range(MAX_CONNECTIONS - 1):
            nursery.start_soon(hold_one)


async def a_cancelled_statement(peer: Peer, db: Database, conn: Connection) -> None:
    """asyncpg opens a connection of its own to say so."""
    with trio.CancelScope() as scope:
        async with conn.transaction():
            scope.deadline = trio.current_time() + 0.05
            await conn.fetchval("SELECT pg_sleep(60)")
    assert scope.cancelled_caught
    assert await conn.fetchval("SELECT 1") == 1


async def a_savepoint(peer: Peer, db: Database, conn: Connection) -> None:
    async with conn.transaction():
        assert await conn.fetchval("SELECT 1") == 1


async def a_notify(peer: Peer, db: Database, conn: Connection) -> None:
    await notify(conn, "channel")


class Pieces:
    def __init__(self, *pieces: bytes) -> None:
        self._pieces = iter(pieces)

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        for piece in self._pieces:
            return piece
        raise StopAsyncIteration


async def a_copy(peer: Peer, db: Database, conn: Connection) -> None:
    async with conn.transaction():
        await conn.execute("CREATE TEMPORARY TABLE pieces (piece text)")
        source = Pieces(b"a\n", b"b\n")
        await conn.copy_to_table("pieces", source=source, columns=["piece"], format="text")
        assert await conn.fetchval("SELECT count(*) FROM pieces") == 2
        await conn.execute("DROP TABLE pieces")


async def waiting(peer: Peer, db: Database, conn: Connection) -> None:
    await trio.sleep(0.01)
    async with trio.Lock(), trio.CapacityLimiter(1):
        pass
    send, receive = trio.open_memory_channel[int](1)
    async with send, receive, trio.open_nursery() as nursery:
        nursery.start_soon(send.send, 1)
        assert await receive.receive() == 1


async def computing_in_a_thread(peer: Peer, db: Database, conn: Connection) -> None:
    assert (await trio.to_thread.run_sync(hashlib.sha256, b"x")).digest_size == 32


async def threads_and_queues(peer: Peer, db: Database, conn: Connection) -> None:
    line: queue.Queue[int] = queue.Queue()
    thread = threading.Thread(target=line.put, args=[1])
    thread.start()
    assert await trio.to_thread.run_sync(line.get) == 1
    thread.join()


async def names_and_addresses(peer: Peer, db: Database, conn: Connection) -> None:
    assert ipaddress.ip_address(HOST).is_loopback
    assert socket.inet_aton(HOST)
    assert socket.gethostname()
    assert httpx.URL("https://example.com/x").host == "example.com"
    assert dns.message.make_query("example.com", "MX").to_wire()


async def sockets_that_go_nowhere(peer: Peer, db: Database, conn: Connection) -> None:
    with socket.create_server((HOST, 0)) as listener:
        assert listener.getsockname()
    one, other = socket.socketpair()
    with one, other:
        one.send(b"x")
        assert other.recv(1) == b"x"
    reading, writing = os.pipe()
    os.write(writing, b"x")
    os.close(writing)
    os.close(reading)


async def what_is_random(peer: Peer, db: Database, conn: Connection) -> None:
    assert secrets.token_bytes(8)
    assert uuid.uuid4()
    assert uuid.uuid1()


async def parsing(peer: Peer, db: Database, conn: Connection) -> None:
    assert message_from_bytes(b"Subject: x\r\n\r\n")["subject"] == "x"
    assert zoneinfo.ZoneInfo("UTC")
    assert generate_latest()


async def making_clients(peer: Peer, db: Database, conn: Connection) -> None:
    """Nothing is asked of anybody before the first request."""
    assert ssl.create_default_context()
    async with httpx.AsyncClient(verify=PLAIN) as client:
        assert client.build_request("GET", peer.url)


@pytest.mark.parametrize(
    "work",
    [
        log_to_syslog,
        log_to_journal,
        log_to_file,
        files,
        an_sqlite_file,
        a_statement_beside,
        a_transaction_beside,
        new_connections_of_the_pool,
        a_cancelled_statement,
        a_savepoint,
        a_notify,
        a_copy,
        waiting,
        computing_in_a_thread,
        threads_and_queues,
        names_and_addresses,
        sockets_that_go_nowhere,
        what_is_random,
        parsing,
        making_clients,
    ],
)
async def test_inside_it_may_be_done(db: Database, peer: Peer, work: Work) -> None:
    async with db.transaction() as conn:
        await work(peer, db, conn)
        assert await conn.fetchval("SELECT 1") == 1
    async with db.connection() as conn:
        await work(peer, db, conn)


async def test_a_child_process_from_before_may_be_spoken_to(db: Database) -> None:
    child = await trio.lowlevel.open_process(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None
    assert child.stdout is not None
    async with child.stdin, child.stdout, db.transaction():
        await child.stdin.send_all(b"x")
        assert await child.stdout.receive_some() == b"x"
        await child.stdin.aclose()
        await child.wait()


async def test_a_neighbour_calls_while_a_transaction_is_open(db: Database, peer: Peer) -> None:
    is_open, called = trio.Event(), trio.Event()

    async def neighbour() -> None:
        await is_open.wait()
        await httpx_async(peer)
        called.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(neighbour)
        async with db.transaction():
            is_open.set()
            await called.wait()


async def test_a_task_that_was_started_inside_calls_after_the_end(db: Database, peer: Peer) -> None:
    ended = trio.Event()

    async def left_behind() -> None:
        await ended.wait()
        await httpx_async(peer)
        await trio.to_thread.run_sync(socket.gethostbyname, "localhost")

    async with trio.open_nursery() as nursery:
        async with db.transaction():
            nursery.start_soon(left_behind)
        ended.set()


async def test_two_transactions_with_a_call_in_between(db: Database, peer: Peer) -> None:
    for _ in range(2):
        async with db.transaction() as conn:
            await conn.fetchval("SELECT 1")
        await httpx_async(peer)


async def test_a_call_after_a_transaction_that_failed(db: Database, peer: Peer) -> None:
    with pytest.raises(LookupError):
        async with db.transaction():
            raise LookupError
    await httpx_async(peer)


async def test_a_database_whose_name_has_to_be_resolved_is_reached_beside_a_held_connection(
    database_url: str,
) -> None:
    async with open_database(database_url.replace(HOST, "localhost")) as db:
        await db.connect()
        async with db.transaction(), db.transaction() as conn:
            assert await conn.fetchval("SELECT 1") == 1
