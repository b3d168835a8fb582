"""A PostgreSQL that a test may stop."""

from collections.abc import Iterator

import pytest
import trio

from service.db.migrate import migrate
from tests.servers import PostgresCluster


@pytest.fixture
def migrated_url() -> Iterator[tuple[PostgresCluster, str]]:
    """A cluster of its own with a migrated database."""
    with PostgresCluster() as cluster:
        url = cluster.create_database("own")
        trio.run(migrate, url)
        yield cluster, url
