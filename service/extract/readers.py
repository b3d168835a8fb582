"""Files from strangers, read in child processes: a file that kills its reader costs itself alone.

`open_readers` keeps as many warm processes as read at once, started when first needed. A process
that read other files before may die of what those left behind: the file is then tried once more in
a fresh one, and only that decides.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import trio

from service.extract.child import Child, ChildDied
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
        self._limits = limits
        self._limiter = trio.CapacityLimiter(count)
        self._idle: list[Child] = []

    async def read(self, content: bytes) -> bytes:
        """The JSON of the result, in UTF-8 and within the limits; waits for a free process.

        ReadFailed for a file that gives nothing. TryLater when no process can be started.
        """
        refuse_inside_transaction("a process that reads files")
        async with self._limiter:
            child = await self._take_warm()
            if child is not None:
                with suppress(ChildDied):
                    return await self._ask(child, content)
            try:
                return await self._ask(await Child.start(self._limits), content)
            except ChildDied as death:
                raise death.failure from None

    async def aclose(self) -> None:
        """End the processes that wait for files."""
        while self._idle:
            await self._idle.pop().aclose()

    async def _take_warm(self) -> Child | None:
        """The process that was used last, so that the others stay out of memory's way."""
        while self._idle:
            child = self._idle.pop()
            if child.is_usable:
                return child
            await child.aclose()
        return None

    async def _ask(self, child: Child, content: bytes) -> bytes:
        try:
            return await child.ask(content)
        finally:
            if child.is_usable:
                self._idle.append(child)
            else:
                await child.aclose()
