"""Rule 1 without a database: the mark of a held connection travels wherever code can go."""

import contextvars
import threading

import pytest
import trio

from service.errors import IOInsideTransaction
from service.outbound import holding_connection, refuse_inside_transaction

PLACE = "orders.py:17"


def reach_out() -> None:
    refuse_inside_transaction("calling example.com")


async def reach_out_later() -> None:
    await trio.lowlevel.checkpoint()
    reach_out()


async def reach_out_in_a_task() -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reach_out_later)
        nursery.start_soon(trio.sleep_forever)


def assert_refused(error: BaseException) -> None:
    assert isinstance(error, IOInsideTransaction)
    assert "calling example.com" in str(error)
    assert PLACE in str(error)
    assert error.hint is not None
    assert "commit first" in error.hint


def test_outside_it_is_silent() -> None:
    reach_out()


def test_inside_it_names_the_call_and_the_place() -> None:
    with holding_connection(PLACE), pytest.raises(IOInsideTransaction) as caught:
        reach_out()
    assert_refused(caught.value)


def test_afterwards_it_is_silent_again() -> None:
    with holding_connection(PLACE):
        pass
    reach_out()
    with pytest.raises(LookupError), holding_connection(PLACE):
        raise LookupError
    reach_out()


def test_the_outer_connection_is_still_held_after_an_inner_one() -> None:
    with holding_connection(PLACE):
        with holding_connection("inner.py:1"), pytest.raises(IOInsideTransaction, match="inner"):
            reach_out()
        with pytest.raises(IOInsideTransaction) as caught:
            reach_out()
    assert_refused(caught.value)


async def test_a_nested_call_is_no_way_around_it() -> None:
    with holding_connection(PLACE), pytest.raises(IOInsideTransaction) as caught:
        await reach_out_later()
    assert_refused(caught.value)


async def test_a_task_is_no_way_around_it() -> None:
    with holding_connection(PLACE), pytest.raises(ExceptionGroup) as caught:
        await reach_out_in_a_task()
    assert_refused(caught.value.exceptions[0])


async def test_a_thread_is_no_way_around_it() -> None:
    with holding_connection(PLACE), pytest.raises(IOInsideTransaction) as caught:
        await trio.to_thread.run_sync(reach_out)
    assert_refused(caught.value)


async def test_coming_back_from_a_thread_is_no_way_around_it() -> None:
    with holding_connection(PLACE), pytest.raises(IOInsideTransaction) as caught:
        await trio.to_thread.run_sync(trio.from_thread.run, reach_out_later)
    assert_refused(caught.value)


def test_a_plain_thread_with_the_context_copied_is_no_way_around_it() -> None:
    caught: list[IOInsideTransaction] = []

    def work() -> None:
        with pytest.raises(IOInsideTransaction) as refused:
            reach_out()
        caught.append(refused.value)

    with holding_connection(PLACE):
        thread = threading.Thread(target=contextvars.copy_context().run, args=[work])
        thread.start()
        thread.join()
    assert_refused(caught[0])


async def test_a_neighbour_task_is_not_disturbed() -> None:
    held, done = trio.Event(), trio.Event()

    async def neighbour() -> None:
        await held.wait()
        reach_out()
        done.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(neighbour)
        with holding_connection(PLACE):
            held.set()
            await done.wait()
