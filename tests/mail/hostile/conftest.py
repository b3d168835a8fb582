"""A station with short time-outs."""

from collections.abc import AsyncIterator

import pytest
import trio

from tests.mail.hostile.polling import TIMEOUT_SECONDS
from tests.mail.station import Station, open_station


@pytest.fixture
async def station(database_url: str) -> AsyncIterator[Station]:
    with trio.fail_after(60):
        async with open_station(database_url, imap_timeout_seconds=TIMEOUT_SECONDS) as opened:
            yield opened
