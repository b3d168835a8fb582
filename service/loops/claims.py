"""Claimed work side by side: no more is claimed than there are free slots, so that other replicas
get the rest; each piece runs in its own task, and its failure costs nobody else."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

import trio

from service.loops.cycle import shield

T = TypeVar("T")


class ClaimedWork(Generic[T]):
    """`claim(limit)` takes up to `limit` pieces of work, `work(piece)` does one."""

    def __init__(
        self,
        name: str,
        claim: Callable[[int], Awaitable[Sequence[T]]],
        work: Callable[[T], Awaitable[object]],
        *,
        slots: int,
        stopping: trio.Event,
    ) -> None:
        self._name = name
        self._claim = claim
        self._work = work
        self._slots = trio.Semaphore(slots)
        self._stopping = stopping

    async def start(self, nursery: trio.Nursery, *, patience_seconds: float) -> int:
        """Claim once, as soon as a slot is free, and start each piece in `nursery`; how many.

        None when nothing is due, the service stops, or no slot was free in time.
        """
        with trio.move_on_after(patience_seconds) as deadline:
            await self._slots.acquire()
        if deadline.cancelled_caught:
            return 0
        if self._stopping.is_set():
            self._slots.release()
            return 0
        try:
            pieces = await self._claim(1 + self._slots.value)
        except BaseException:
            self._slots.release()
            raise
        if not pieces:
            self._slots.release()
        for index, piece in enumerate(pieces):
            if index > 0:
                self._slots.acquire_nowait()
            nursery.start_soon(self._run, piece, name=f"{self._name} {index}")
        return len(pieces)

    async def _run(self, piece: T) -> None:
        try:
            with shield(self._name):
                await self._work(piece)
        finally:
            self._slots.release()
