"""A station for the tests of the intake; some modules have one of their own."""

from collections.abc import AsyncIterator

import pytest
import trio

from tests.mail.station import Station, open_station


@pytest.fixture
async def station(database_url: str) -> AsyncIterator[Station]:
    with trio.fail_after(30):
        async with open_station(database_url, imap_timeout_seconds=20) as opened:
            yield opened
