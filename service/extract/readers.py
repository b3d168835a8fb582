"""Files from strangers, read in child processes: a file that kills its reader costs itself alone.

`open_readers` keeps as many warm processes as read at once, started when first needed. A process
that read other files before may die of what those left behind: the file is then tried once more in
a fresh one, and only that decides.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import trio

from service.errors import ReadFailed
from service.extract.child import Child, ChildDied
from service.extract.frames import SENT_AHEAD_MAX_BYTES
from service.model import ReadLimits
from service.outbound import refuse_inside_transaction


@asynccontextmanager
async def open_readers(count: int, limits: ReadLimits) -> AsyncIterator["Readers"]:
    """Readers for `count` files at once; their processes end with the block."""
    readers = Readers(count, limits)
    try:
        yield readers
    finally:
        await readers.aclose()


class Readers:
    """A pool of child processes."""

    def __init__(self, count: int, limits: ReadLimits) -> None:
        self._seats = [_Seat(limits) for _ in range(count)]

    async def read(self, content: bytes) -> bytes:
        """The JSON of the result, in UTF-8 and within the limits; waits for its turn.

        ReadFailed for a file that gives nothing. TryLater when no process can be started.
        """
        refuse_inside_transaction("a process that reads files")
        # Of those that are free the first: the others stay out of memory's way.
        seat = min(self._seats, key=lambda one: one.callers)
        seat.callers += 1
        try:
            return await seat.read(content)
        finally:
            seat.callers -= 1

    async def aclose(self) -> None:
        """End the processes."""
        for seat in self._seats:
            await seat.aclose()


class _Seat:
    """The place of one process, and the callers in line for it.

    The first in line may send a small file ahead while the one before is read, so that the process
    does not wait for the event loop in between.
    """

    def __init__(self, limits: ReadLimits) -> None:
        self.callers = 0
        self._limits = limits
        self._child: Child | None = None
        self._is_answer_awaited = False
        self._head_of_line = trio.Lock()
        self._turn = trio.Lock()

    async def read(self, content: bytes) -> bytes:
        """See `Readers.read`."""
        async with self._head_of_line:
            asked = await self._send_ahead(content)
            try:
                await self._turn.acquire()
            except BaseException:
                if asked is not None:
                    asked.spoil()  # it has an answer that nobody waits for
                raise
        try:
            return await self._read(content, asked)
        finally:
            try:
                if self._child is not None and not self._child.is_usable:
                    await self.aclose()
            finally:
                self._turn.release()

    async def aclose(self) -> None:
        """End the process."""
        if self._child is not None:
            await self._child.aclose()
            self._child = None

    async def _send_ahead(self, content: bytes) -> Child | None:
        """The process that has the file already, if there is one."""
        child = self._child
        is_small = len(content) <= SENT_AHEAD_MAX_BYTES  # so that it fits into the pipe
        if child is None or not is_small or not self._is_answer_awaited:
            return None
        await child.send(content)
        return child

    async def _read(self, content: bytes, asked: Child | None) -> bytes:
        if self._child is not None and self._child.is_usable:
            with suppress(ChildDied):
                return await self._ask(self._child, content, is_sent=asked is self._child)
        await self.aclose()
        self._child = await Child.start(self._limits)
        return await self._ask(self._child, content, is_sent=False)

    async def _ask(self, child: Child, content: bytes, *, is_sent: bool) -> bytes:
        with trio.move_on_after(self._limits.wall_seconds):
            if not is_sent:
                await child.send(content)
            self._is_answer_awaited = True
            try:
                return await child.receive()
            finally:
                self._is_answer_awaited = False
        seconds = f"{self._limits.wall_seconds:g} s"
        raise ReadFailed("time_limit", f"reading the file took longer than {seconds}")
