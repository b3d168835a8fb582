"""A real replica for all tests of this package, and rows that its pipeline leaves alone."""

import itertools
from collections.abc import Iterator

import httpx
import pytest

from service.db.tokens import REQUESTS_INDEX, REQUESTS_WRITE
from tests.system.api import Api
from tests.system.conftest import OpenSharedApi
from tests.system.requests.rows import Rows

_numbers = itertools.count(1)


@pytest.fixture(scope="package")
def api(open_shared_api: OpenSharedApi) -> Iterator[Api]:
    with open_shared_api("requests") as api:
        yield api


@pytest.fixture(scope="package")
def client(api: Api) -> Iterator[httpx.Client]:
    """Of somebody who may do everything."""
    token = api.create_token(scopes=(REQUESTS_INDEX, REQUESTS_WRITE))
    with api.client(token) as client:
        yield client


@pytest.fixture
def rows(api: Api) -> Rows:
    """For a mailbox of this test's own."""
    address = f"Box{next(_numbers)}@Example.com"
    return Rows(api, address, api.insert_mailbox(address))
