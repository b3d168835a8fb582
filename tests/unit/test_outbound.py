"""Rule 1 without a database: the mark of a held connection travels wherever code can go, and ends
with the block everywhere."""

import contextlib
import contextvars
import inspect
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator

import pytest
import trio

from service.errors import IOInsideTransaction
from service.outbound import (
    as_database_itself,
    guard_libraries,
    holding_connection,
    refuse_inside_transaction,
)

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


def test_it_names_the_line_that_began_the_call() -> None:
    line_above = inspect.getsourcelines(reach_out)[1]
    with holding_connection(PLACE), pytest.raises(IOInsideTransaction) as caught:
        reach_out()
    assert f"at {__file__}:{line_above + 1} while" in str(caught.value)


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


# The end of the mark


async def test_a_task_that_outlives_the_block_is_free_at_its_end() -> None:
    tried, ended = trio.Event(), trio.Event()

    async def left_behind() -> None:
        with pytest.raises(IOInsideTransaction):
            reach_out()
        tried.set()
        await ended.wait()
        reach_out()

    async with trio.open_nursery() as nursery:
        with holding_connection(PLACE):
            nursery.start_soon(left_behind)
            await tried.wait()
        ended.set()


async def test_a_thread_that_outlives_the_block_is_free_at_its_end() -> None:
    tried, ended, reached = threading.Event(), threading.Event(), threading.Event()

    def left_behind() -> None:
        with pytest.raises(IOInsideTransaction):
            reach_out()
        tried.set()
        ended.wait()
        reach_out()
        reached.set()

    with trio.CancelScope() as scope, holding_connection(PLACE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cancel_once, tried, scope)
            await trio.to_thread.run_sync(left_behind, abandon_on_cancel=True)
    ended.set()
    assert await trio.to_thread.run_sync(reached.wait, 5)


async def cancel_once(event: threading.Event, scope: trio.CancelScope) -> None:
    await trio.to_thread.run_sync(event.wait)
    scope.cancel()


async def test_a_task_of_an_inner_block_is_still_under_the_outer_one() -> None:
    inner_ended, tried, outer_ended = trio.Event(), trio.Event(), trio.Event()

    async def left_behind() -> None:
        await inner_ended.wait()
        with pytest.raises(IOInsideTransaction) as caught:
            reach_out()
        assert_refused(caught.value)
        tried.set()
        await outer_ended.wait()
        reach_out()

    async with trio.open_nursery() as nursery:
        with holding_connection(PLACE):
            with holding_connection("inner.py:1"):
                nursery.start_soon(left_behind)
            inner_ended.set()
            await tried.wait()
        outer_ended.set()


async def test_a_task_from_before_is_free() -> None:
    held = trio.Event()

    async def from_before() -> None:
        await held.wait()
        reach_out()

    async with trio.open_nursery() as outer:
        outer.start_soon(from_before)
        with holding_connection(PLACE):
            held.set()
            await trio.testing.wait_all_tasks_blocked()


async def test_two_tasks_hold_each_their_own() -> None:
    free, done = trio.Event(), trio.Event()

    async def holds_on() -> None:
        with holding_connection("other.py:1"):
            free.set()
            await done.wait()
            with pytest.raises(IOInsideTransaction, match="other"):
                reach_out()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(holds_on)
        await free.wait()
        with holding_connection(PLACE), pytest.raises(IOInsideTransaction) as caught:
            reach_out()
        assert_refused(caught.value)
        reach_out()
        done.set()


@pytest.mark.parametrize("first", [0, 1])
def test_blocks_may_end_in_any_order(first: int) -> None:
    blocks = [holding_connection(PLACE), holding_connection(PLACE)]
    for block in blocks:
        block.__enter__()
    for block in (blocks[first], blocks[1 - first]):
        with pytest.raises(IOInsideTransaction):
            reach_out()
        block.__exit__(None, None, None)
    reach_out()


async def test_a_block_may_end_in_another_task() -> None:
    block = contextlib.ExitStack()

    async def end() -> None:
        block.close()

    block.enter_context(holding_connection(PLACE))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(end)
    reach_out()


def test_a_generator_holds_while_it_is_under_way() -> None:
    def rows() -> Iterator[int]:
        with holding_connection(PLACE):
            yield from (1, 2)

    reading = rows()
    assert next(reading) == 1
    with pytest.raises(IOInsideTransaction):
        reach_out()
    assert list(reading) == [2]
    reach_out()
    broken_off = rows()
    next(broken_off)
    broken_off.close()
    reach_out()


async def test_an_async_generator_holds_while_it_is_under_way() -> None:
    async def rows() -> AsyncIterator[int]:
        with holding_connection(PLACE):
            yield 1

    reading = rows()
    assert await anext(reading) == 1
    with pytest.raises(IOInsideTransaction):
        reach_out()
    with pytest.raises(StopAsyncIteration):
        await anext(reading)
    reach_out()


async def test_a_cancellation_ends_it() -> None:
    with trio.CancelScope() as scope, holding_connection(PLACE):
        scope.cancel()
        await trio.lowlevel.checkpoint()
    reach_out()


# The net below the clients


def test_the_net_needs_no_client() -> None:
    guard_libraries()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with holding_connection(PLACE), pytest.raises(IOInsideTransaction) as caught:
            socket.create_connection(listener.getsockname())
        assert PLACE in str(caught.value)
        assert f"at {__file__}:" in str(caught.value)
        socket.create_connection(listener.getsockname()).close()


def test_the_net_lets_the_database_pass_but_our_clients_refuse_there_too() -> None:
    guard_libraries()
    with socket.create_server(("127.0.0.1", 0)) as listener, holding_connection(PLACE):
        with as_database_itself():
            socket.create_connection(listener.getsockname()).close()
            with pytest.raises(IOInsideTransaction):
                reach_out()
        with pytest.raises(IOInsideTransaction):
            socket.create_connection(listener.getsockname())


AT_THE_END = """
import _socket, os, sys
from service.outbound import guard_libraries, holding_connection

class Late:
    def __del__(self, socket=_socket.socket, write=os.write):
        one = socket()
        one.connect_ex(("127.0.0.1", 1))
        one.close()
        write(1, b"tried ")

guard_libraries()
with holding_connection("orders.py:17"):
    pass
sys.late = Late()  # goes when this module and all others are emptied
late = Late()
"""


def test_the_net_is_quiet_at_the_end_of_the_interpreter() -> None:
    ended = subprocess.run([sys.executable, "-c", AT_THE_END], capture_output=True, check=True)
    assert (ended.stdout, ended.stderr) == (b"tried tried ", b"")
