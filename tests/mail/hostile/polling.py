"""Scripted servers with mails that are numbered, polls of them, and what became of the mails."""

import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import psutil
import trio

from service.loops.poller import PollReport
from tests.bounds import MEGABYTE, at_most
from tests.mail.station import Station
from tests.scripted_imap import Hang, Message, Reply, ScriptedImap
from tests.servers import wait_until

USER = "user@example.com"
TIMEOUT_SECONDS = 1
# A step of a poll takes at most twice the time-out, closing the connection at most 2 s.
POLL_MAX_SECONDS = 2 * TIMEOUT_SECONDS + 2
LEAF = '("text" "plain" NIL NIL NIL "7bit" 9 1)'


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


async def poll_until(station: Station, numbers: set[int], polls: int = 12) -> list[PollReport]:
    """Poll until these are taken and the others in quarantine, each time within the bounds."""
    reports = []
    for _ in range(polls):
        with at_most(seconds=POLL_MAX_SECONDS):
            reports.append(await station.poll())
        if set(await taken(station)) == numbers and await quarantined(station):
            return reports
    raise AssertionError(f"{await taken(station)} after {polls} polls")


def hanging_at(marker: bytes, count: int) -> ScriptedImap:
    """A server that hangs in the middle of a literal as soon as it would say `marker`."""
    server = serving(count)

    def reply(args: str) -> bytes | Hang:
        usual = server.default_reply("UID FETCH", args)
        at = usual.find(marker)
        return Hang(usual[: at + 3]) if at >= 0 else usual

    server.script["UID FETCH"] = reply
    return server


async def wait_for(condition: Callable[[], object], *, seconds: float) -> None:
    await trio.to_thread.run_sync(lambda: wait_until(condition, seconds=seconds))
