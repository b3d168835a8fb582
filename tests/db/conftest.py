"""A connected database for each test."""

from collections.abc import AsyncIterator

import pytest

from service.db.pool import Database, open_database


@pytest.fixture
async def db(database_url: str) -> AsyncIterator[Database]:
    """The service's own pool on this test's database."""
    async with open_database(database_url) as database:
        await database.connect()
        yield database
