"""Work that goes together: nothing is lost, doubled or kept waiting by a neighbour."""

from collections.abc import Sequence

import trio
import trio.testing
from trio.testing import MockClock

from service.gathering import PAUSE_SECONDS, Gathering, Piece

Pieces = Sequence[Piece[int, str]]


class Desk:
    """Takes a second for each go, and keeps which items went together."""

    def __init__(self) -> None:
        self.goes: list[list[int]] = []
        self.refused: set[int] = set()  # not done this time

    async def work(self, pieces: Pieces) -> None:
        self.goes.append([piece.item for piece in pieces])
        await trio.sleep(1)
        for piece in pieces:
            if piece.item in self.refused:
                self.refused.discard(piece.item)
            else:
                piece.complete(f"done {piece.item}")


async def do_all(gathering: Gathering[int, str], items: Sequence[int]) -> dict[int, str]:
    results: dict[int, str] = {}

    async def do(item: int) -> None:
        results[item] = await gathering.do(item)

    async with trio.open_nursery() as nursery:
        for item in items:
            nursery.start_soon(do, item)
            await trio.testing.wait_all_tasks_blocked()
    return results


async def test_who_comes_meanwhile_goes_with_the_next(autojump_clock: MockClock) -> None:
    desk = Desk()
    results = await do_all(Gathering(desk.work), [1, 2, 3])
    assert results == {1: "done 1", 2: "done 2", 3: "done 3"}
    assert desk.goes == [[1], [2, 3]]


async def test_no_more_go_together_than_are_taken(autojump_clock: MockClock) -> None:
    desk = Desk()
    results = await do_all(Gathering(desk.work, take=lambda items: min(2, len(items))), range(5))
    assert len(results) == 5
    assert desk.goes == [[0], [1, 2], [3, 4]]


async def test_what_was_not_done_goes_again_after_a_pause_and_alone(
    autojump_clock: MockClock,
) -> None:
    desk = Desk()
    desk.refused = {2}
    began = trio.current_time()
    results = await do_all(Gathering(desk.work), [1, 2, 3])
    assert results == {1: "done 1", 2: "done 2", 3: "done 3"}
    assert desk.goes == [[1], [2, 3], [2]]
    assert trio.current_time() - began == 3 + PAUSE_SECONDS


async def test_one_that_is_cancelled_while_it_works_for_others_leaves_them_theirs(
    autojump_clock: MockClock,
) -> None:
    desk = Desk()
    gathering = Gathering(desk.work)
    results: dict[int, str] = {}

    async def do(item: int) -> None:
        results[item] = await gathering.do(item)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(do, 1)
        await trio.testing.wait_all_tasks_blocked()
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as other:
                other.start_soon(do, 2)
                await trio.testing.wait_all_tasks_blocked()
                nursery.start_soon(do, 3)
                await trio.sleep(1.5)  # it works for itself and for 3
                scope.cancel()
    assert results == {1: "done 1", 3: "done 3"}
    assert desk.goes == [[1], [2, 3], [3]]


async def test_one_that_waits_and_is_cancelled_is_dropped(autojump_clock: MockClock) -> None:
    desk = Desk()
    gathering = Gathering(desk.work)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(gathering.do, 1)
        await trio.testing.wait_all_tasks_blocked()
        with trio.move_on_after(0.5):
            await gathering.do(2)
    assert desk.goes == [[1]]
    assert await gathering.do(3) == "done 3"
    assert desk.goes == [[1], [3]]


async def test_one_that_is_cancelled_while_another_works_for_it_does_not_come_again(
    autojump_clock: MockClock,
) -> None:
    desk = Desk()
    gathering = Gathering(desk.work)
    desk.refused = {3}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(gathering.do, 1)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(gathering.do, 2)
        await trio.testing.wait_all_tasks_blocked()
        with trio.move_on_after(1.5):
            await gathering.do(3)
    assert desk.goes == [[1], [2, 3]]
