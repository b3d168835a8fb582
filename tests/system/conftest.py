"""Replicas that several tests share."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from tests.servers import PostgresCluster
from tests.system.api import Api, open_api

OpenSharedApi = Callable[..., AbstractContextManager[Api]]


@pytest.fixture(scope="session")
def open_shared_api(
    postgres: PostgresCluster, migrated_template: str, tmp_path_factory: pytest.TempPathFactory
) -> OpenSharedApi:
    """`open_shared_api(name, **settings)`: a replica on a database of this name.

    None of its tests may make it log an error.
    """

    @contextmanager
    def open_(name: str, **settings: str) -> Iterator[Api]:
        url = postgres.create_database(name, template=migrated_template)
        with open_api(tmp_path_factory.mktemp(name), url, **settings) as api:
            yield api
            assert "ERROR" not in api.replica.log.read_text()

    return open_
