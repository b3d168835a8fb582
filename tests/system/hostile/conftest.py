"""A replica under attack, and what has to be true of it after each test: it goes on, and nothing is
logged as an error.
"""

import time
from collections.abc import Iterator, Mapping, Sequence

import httpx
import pytest

from tests.scripted_imap import Message, Reply, ScriptedImap
from tests.servers import wait_until
from tests.system.api import Api
from tests.system.conftest import OpenSharedApi
from tests.system.hostile.mailbox import IMAP_TIMEOUT_SECONDS, IN_FLIGHT, Mailbox, OpenMailbox


@pytest.fixture(scope="package")
def api(open_shared_api: OpenSharedApi) -> Iterator[Api]:
    with open_shared_api(
        "api_hostile",
        AWAIT_POLL_INTERVAL_SECONDS="0.1",
        AWAIT_MAX_CONCURRENT_WAITS="300",
        IMAP_TIMEOUT_SECONDS=str(IMAP_TIMEOUT_SECONDS),
    ) as opened:
        yield opened


@pytest.fixture(scope="package")
def token(api: Api) -> str:
    return api.create_token()


@pytest.fixture(scope="package")
def client(api: Api, token: str) -> Iterator[httpx.Client]:
    with api.client(token) as opened:
        yield opened


@pytest.fixture(autouse=True)
def replica_goes_on(api: Api, client: httpx.Client) -> Iterator[None]:
    """After each test: nothing of level ERROR in the replica's log, nobody waits, it serves."""
    begin = api.replica.log.stat().st_size
    yield
    wait_until(lambda: f"\n{IN_FLIGHT} 0.0\n" in client.get("/metrics").text)
    assert client.get("/healthz").status_code == 200
    written = api.replica.log.read_bytes()[begin:].decode()
    assert "ERROR" not in written
    assert "Traceback" not in written


@pytest.fixture
def open_mailbox(api: Api, client: httpx.Client) -> Iterator[OpenMailbox]:
    """Opens mailboxes on scripted servers of their own."""
    servers: list[ScriptedImap] = []

    def open_(
        messages: Sequence[Message] = (), script: Mapping[str, Reply] | None = None
    ) -> Mailbox:
        server = ScriptedImap(messages, script)
        servers.append(server.__enter__())
        address = f"m{server.port}-{time.monotonic_ns()}@example.com"
        api.add_mailbox(address, server.port)
        return Mailbox(address, server, api, client)

    yield open_
    for server in servers:
        server.__exit__(None, None, None)
