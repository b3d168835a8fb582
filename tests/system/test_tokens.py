"""Who may ask, how often, and what two replicas on one database agree on."""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
import trio
from cryptography.fernet import Fernet

from service.db.migrate import migrate
from tests.servers import Dovecot, PostgresCluster, wait_until
from tests.servers.service import Replica
from tests.system.api import Api, open_api

LIMIT = 5
"""Requests a minute; each test takes tokens of its own."""

Replicas = tuple[Api, Api]


@pytest.fixture(scope="module")
def replicas(
    postgres: PostgresCluster, migrated_template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Replicas]:
    """Two on one database; none of the tests may make one log an error."""
    url = postgres.create_database("tokens", template=migrated_template)
    key = Fernet.generate_key()
    environment = {
        "DATABASE_URL": url,
        "SERVICE_SECRET_KEY": key.decode(),
        "RATE_LIMIT_PER_MINUTE": str(LIMIT),
    }
    with ExitStack() as stack:
        folder = tmp_path_factory.mktemp("tokens")
        one, other = (stack.enter_context(Replica(folder, environment)) for _ in range(2))
        for replica in (one, other):
            replica.wait_ready()
        yield Api(url, key, one), Api(url, key, other)
        assert "ERROR" not in one.log.read_text() + other.log.read_text()


@pytest.fixture(scope="module")
def api(replicas: Replicas) -> Api:
    """One of them, which also makes mailboxes and tokens for both."""
    return replicas[0]


@pytest.fixture(scope="module")
def mailbox(api: Api, dovecot: Dovecot) -> str:
    user = dovecot.new_user()
    api.add_mailbox(user, dovecot.imap_port)
    return user


def get(api: Api, authorization: str | None, mailbox: str, rest: str = "") -> httpx.Response:
    headers = {} if authorization is None else {b"Authorization": authorization.encode("latin-1")}
    # Without TLS there is nothing to verify, and reading the CA file takes longer than the answer.
    return httpx.get(api.origin + api.messages(mailbox, rest), headers=headers, verify=False)


def get_with(api: Api, token: str, mailbox: str, rest: str = "") -> httpx.Response:
    return get(api, f"Bearer {token}", mailbox, rest)


def problem(response: httpx.Response) -> tuple[int, str]:
    """Status and slug of a problem document."""
    assert response.headers["Content-Type"] == "application/problem+json"
    document = response.json()
    assert document["status"] == response.status_code
    return response.status_code, document["type"].rpartition("/")[2]


@pytest.mark.parametrize("rest", ["", "/1", ":await"])
@pytest.mark.parametrize(
    "authorization",
    [None, "", "Bearer", "Basic bXI6", "mr_unknown", "Bearer mr_unknown", "Bearer \xff"],
)
def test_without_a_valid_token_it_is_a_401(
    api: Api, mailbox: str, rest: str, authorization: str | None
) -> None:
    response = get(api, authorization, mailbox, rest)
    assert problem(response) == (401, "unauthorized")
    assert response.headers["WWW-Authenticate"].startswith("Bearer")


def test_without_a_token_nobody_learns_which_mailboxes_there_are(api: Api, mailbox: str) -> None:
    details = {get(api, None, address).json()["detail"] for address in (mailbox, "no@example.com")}
    assert len(details) == 1


def test_an_expired_token_is_a_401(api: Api, mailbox: str) -> None:
    expired = api.create_token(expires_at=datetime.now(UTC) - timedelta(seconds=1))
    assert problem(get_with(api, expired, mailbox)) == (401, "unauthorized")
    valid = api.create_token(expires_at=datetime.now(UTC) + timedelta(hours=1))
    assert get_with(api, valid, mailbox).status_code == 200


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_the_scheme_is_written_in_any_case(api: Api, mailbox: str, scheme: str) -> None:
    assert get(api, f"{scheme} {api.create_token()}", mailbox).status_code == 200


def test_a_revoked_token_stops_working_at_once_on_every_replica(
    replicas: Replicas, mailbox: str
) -> None:
    api = replicas[0]
    token = api.create_token(name="to be revoked")
    assert [get_with(each, token, mailbox).status_code for each in replicas] == [200, 200]
    api.execute("UPDATE api_token SET revoked_at = now() WHERE name = %s", "to be revoked")
    for each in replicas:
        assert problem(get_with(each, token, mailbox)) == (401, "unauthorized")


@pytest.mark.parametrize("rest", ["", "/1", ":await"])
def test_without_the_scope_it_is_a_403(api: Api, mailbox: str, rest: str) -> None:
    token = api.create_token(scopes=("messages:other",))
    assert problem(get_with(api, token, mailbox, rest)) == (403, "forbidden")


@pytest.mark.parametrize("rest", ["", "/1", ":await"])
def test_a_token_for_other_mailboxes_does_not_learn_which_there_are(
    api: Api, mailbox: str, rest: str
) -> None:
    token = api.create_token(mailboxes=("mine@example.com",))
    for address in (mailbox, "unknown@example.com"):
        assert problem(get_with(api, token, address, rest)) == (403, "forbidden")


@pytest.mark.parametrize("rest", ["", "/1", ":await"])
@pytest.mark.parametrize("mailboxes", [None, ("unknown@example.com",)])
def test_an_unknown_mailbox_is_a_404_for_who_may_know_it(
    api: Api, rest: str, mailboxes: tuple[str, ...] | None
) -> None:
    token = api.create_token(mailboxes=mailboxes)
    assert problem(get_with(api, token, "unknown@example.com", rest)) == (404, "not-found")


def test_addresses_are_compared_whatever_the_case(api: Api, mailbox: str) -> None:
    token = api.create_token(mailboxes=(mailbox.upper(),))
    for address in (mailbox, mailbox.title()):
        assert get_with(api, token, address).status_code == 200


async def ask_at_once(replicas: Replicas, token: str, mailbox: str) -> list[httpx.Response]:
    """Twenty requests, half of them to each replica."""
    answers = []

    async def ask(client: httpx.AsyncClient) -> None:
        answers.append(await client.get(Api.messages(mailbox)))

    one, other = replicas
    async with (
        one.async_client(token) as first,
        other.async_client(token) as second,
        trio.open_nursery() as nursery,
    ):
        for _ in range(10):
            nursery.start_soon(ask, first)
            nursery.start_soon(ask, second)
    return answers


async def test_of_twenty_at_once_over_two_replicas_exactly_the_limit_passes(
    replicas: Replicas, mailbox: str
) -> None:
    api = replicas[0]
    answers = await ask_at_once(replicas, api.create_token(), mailbox)
    passed = [answer for answer in answers if answer.status_code == 200]
    refused = [answer for answer in answers if answer.status_code != 200]
    assert Counter(map(problem, refused)) == {(429, "rate-limited"): 15}
    assert {answer.headers["RateLimit-Limit"] for answer in answers} == {str(LIMIT)}
    remaining = sorted(int(answer.headers["RateLimit-Remaining"]) for answer in passed)
    assert remaining == [0, 1, 2, 3, 4]
    assert {answer.headers["RateLimit-Remaining"] for answer in refused} == {"0"}
    assert all(0 < int(answer.headers["RateLimit-Reset"]) <= 60 for answer in answers)
    assert all(1 <= int(answer.headers["Retry-After"]) <= 60 / LIMIT for answer in refused)
    assert get_with(api, api.create_token(), mailbox).status_code == 200  # another token


def test_after_retry_after_one_more_request_passes(replicas: Replicas, mailbox: str) -> None:
    api, other = replicas
    api.execute("DELETE FROM rate_limit")
    token = api.create_token()
    statuses = [get_with(api, token, mailbox).status_code for _ in range(LIMIT)]
    refused = get_with(other, token, mailbox)
    assert (statuses, refused.status_code) == ([200] * LIMIT, 429)
    # The same as waiting: only the database's clock counts.
    waited = timedelta(seconds=int(refused.headers["Retry-After"]))
    api.execute("UPDATE rate_limit SET tat = tat - %s", waited)
    assert [get_with(each, token, mailbox).status_code for each in replicas] == [200, 429]


def test_what_is_refused_for_its_rights_counts_too(api: Api, mailbox: str) -> None:
    token = api.create_token(mailboxes=("mine@example.com",))
    statuses = [get_with(api, token, mailbox).status_code for _ in range(LIMIT + 1)]
    assert statuses == [403] * LIMIT + [429]


def test_a_token_is_stored_as_its_hash_alone_and_never_logged(api: Api, mailbox: str) -> None:
    token = api.create_token()
    assert get_with(api, token, mailbox).status_code == 200
    assert token not in api.replica.log.read_text()


def test_without_the_database_it_is_a_503_until_it_is_back(
    dovecot: Dovecot, tmp_path: Path
) -> None:
    with PostgresCluster() as cluster:
        url = cluster.create_database("away")
        trio.run(migrate, url)
        with open_api(tmp_path, url) as api:
            user, token = dovecot.new_user(), api.create_token()
            api.add_mailbox(user, dovecot.imap_port)
            assert get_with(api, token, user).status_code == 200
            cluster.stop()
            for rest in ("", "/1", ":await"):
                response = get_with(api, token, user, rest)
                assert problem(response) == (503, "database-unavailable")
                assert int(response.headers["Retry-After"]) >= 1
            assert (api.replica.status("/readyz"), api.replica.status("/healthz")) == (503, 200)
            cluster.start()
            wait_until(lambda: get_with(api, token, user).status_code == 200)
