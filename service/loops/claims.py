"""Claimed work side by side: no more is claimed than there are free slots, so that other replicas
get the rest; each piece runs in its own task, and its failure costs nobody else."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

import trio

from service.loops.cycle import shield

T = TypeVar("T")


class ClaimedWork(Generic[T]):
    """`claim(limit)` takes up to `limit` pieces of work, `work(piece)` does one.

    Nothing is claimed before `at_least` of the slots are free: where pieces are small it is cheaper
    to claim several at once.
    """

    def __init__(
        self,
        name: str,
        claim: Callable[[int], Awaitable[Sequence[T]]],
        work: Callable[[T], Awaitable[object]],
        *,
        slots: int,
        at_least: int = 1,
        stopping: trio.Event,
    ) -> None:
        self._name = name
        self._claim = claim
        self._work = work
        self._free = slots
        self._at_least = at_least
        self._freed = trio.Event()
        self._stopping = stopping

    async def start(self, nursery: trio.Nursery, *, patience_seconds: float) -> int:
        """Claim once, as soon as slots are free, and start each piece in `nursery`; how many.

        0 when nothing is due, the service stops, or the slots were not free in time.
        """
        with trio.move_on_after(patience_seconds):
            while self._free < self._at_least:
                self._freed = trio.Event()
                await self._freed.wait()
        if self._free < self._at_least or self._stopping.is_set():
            return 0
        pieces = await self._claim(self._free)
        self._free -= len(pieces)
        for piece in pieces:
            nursery.start_soon(self._run, piece, name=self._name)
        return len(pieces)

    async def _run(self, piece: T) -> None:
        try:
            with shield(self._name):
                await self._work(piece)
        finally:
            self._free += 1
            self._freed.set()
