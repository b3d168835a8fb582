"""Work that comes close together is done in one go, such as one statement.

Whoever finds nobody at work takes all along that waits; who comes meanwhile goes with the next.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

import trio

PAUSE_SECONDS = 1

T = TypeVar("T")
R = TypeVar("R")


@dataclass(slots=True, eq=False)
class Piece(Generic[T, R]):
    """An item that waits for its result."""

    item: T
    result: R | None = None
    is_done: bool = False

    def complete(self, result: R) -> None:
        """This is what came of it."""
        self.result = result
        self.is_done = True


class Gathering(Generic[T, R]):
    """`work(pieces)` completes them, or leaves out those that are to be tried again after a pause.

    `take(items)`, at least 1, says how many of those that wait go together.
    """

    def __init__(
        self,
        work: Callable[[Sequence[Piece[T, R]]], Awaitable[None]],
        *,
        take: Callable[[Sequence[T]], int] = len,
    ) -> None:
        self._work = work
        self._take = take
        self._waiting: list[Piece[T, R]] = []
        self._working = trio.Lock()

    async def do(self, item: T) -> R:
        """The result of the item, however long it takes."""
        piece = Piece[T, R](item)
        self._waiting.append(piece)
        try:
            while not piece.is_done:
                async with self._working:
                    is_well = piece.is_done or await self._work_waiting()
                if not (is_well or piece.is_done):
                    await trio.sleep(PAUSE_SECONDS)
        finally:
            piece.is_done = True  # also when cancelled: nobody waits for it any more
            if piece in self._waiting:
                self._waiting.remove(piece)
        return cast(R, piece.result)

    async def _work_waiting(self) -> bool:
        """Work on what goes together; whether all of that was done. The rest waits on."""
        count = self._take([piece.item for piece in self._waiting])
        pieces, self._waiting = self._waiting[:count], self._waiting[count:]
        try:
            await self._work(pieces)
        finally:
            left = [piece for piece in pieces if not piece.is_done]
            self._waiting += left
        return not left
