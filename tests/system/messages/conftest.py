"""A real replica for all tests of this package, and mailboxes on a real Dovecot."""

from collections.abc import Iterator
from datetime import UTC, datetime

import httpx
import pytest

from tests.servers import Dovecot
from tests.system.api import Api
from tests.system.conftest import OpenSharedApi
from tests.system.messages.box import Box, mail

SETTINGS = {"AWAIT_POLL_INTERVAL_SECONDS": "0.2", "IMAP_TIMEOUT_SECONDS": "2"}


@pytest.fixture(scope="package")
def api(open_shared_api: OpenSharedApi) -> Iterator[Api]:
    with open_shared_api("messages", **SETTINGS) as api:
        yield api


@pytest.fixture(scope="package")
def client(api: Api) -> Iterator[httpx.Client]:
    with api.client(api.create_token()) as client:
        yield client


@pytest.fixture
def mailbox(api: Api, dovecot: Dovecot) -> str:
    """An empty one on Dovecot."""
    user = dovecot.new_user()
    api.add_mailbox(user, dovecot.imap_port)
    return user


@pytest.fixture
def box(client: httpx.Client, mailbox: str) -> Box:
    return Box(client, mailbox)


@pytest.fixture(scope="module")
def dated(api: Api, client: httpx.Client, dovecot: Dovecot) -> Box:
    """A mailbox with one mail of 2 March 2026, 09:30 UTC."""
    user = dovecot.new_user()
    api.add_mailbox(user, dovecot.imap_port)
    arrived_at = datetime(2026, 3, 2, 9, 30, tzinfo=UTC)
    dovecot.append(user, mail("Dated"), internaldate=arrived_at)
    return Box(client, user)
