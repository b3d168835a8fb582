"""The asyncio event loop on Trio that asyncpg runs on: trio-asyncio's, mended in three places.

Errors leave it as themselves, callbacks are run in rows, and an error that nobody waits for any
more is logged and ends nothing.
"""

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import trio
import trio_asyncio

from service.db.driver_errors import UNREACHABLE_ERRORS

log = logging.getLogger(__name__)

CALLBACKS_IN_A_ROW = 100


@asynccontextmanager
async def open_loop() -> AsyncIterator[None]:
    """The loop; one error that leaves it comes out as itself, not in groups."""
    only: BaseException | None = None
    try:
        async with trio_asyncio.open_loop() as loop:
            loop.set_exception_handler(_log_stray_error)
            _run_callbacks_in_rows(loop)
            yield
    except BaseExceptionGroup as group:
        only = group
        while isinstance(only, BaseExceptionGroup):
            if len(only.exceptions) > 1:
                raise
            only = only.exceptions[0]
    if only is not None:
        raise only  # out here, so that the group does not become its context


def _run_callbacks_in_rows(loop: Any) -> None:
    """trio-asyncio lets all of Trio have a turn after each callback, and a query takes a dozen.

    On a busy service each of them would wait for everybody: several are run in a row.
    """
    run_one = loop._main_loop_one

    async def run_several(no_wait: bool = False) -> None:
        await run_one(no_wait)
        with suppress(trio.WouldBlock):
            for _ in range(CALLBACKS_IN_A_ROW):
                await run_one(no_wait=True)

    loop._main_loop_one = run_several


def _log_stray_error(_loop: object, context: Mapping[str, Any]) -> None:
    """An error that nobody waits for any more, such as that of an abandoned attempt to connect.

    Without this, trio-asyncio would end everything that runs on the loop.
    """
    error = context.get("exception")
    level = logging.DEBUG if isinstance(error, UNREACHABLE_ERRORS) else logging.ERROR
    log.log(level, "in asyncio: %s", context["message"], exc_info=error)
