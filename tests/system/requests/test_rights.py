"""Who sees which requests: tokens, scopes, mailboxes and allowances."""

from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from service.db.tokens import MESSAGES_INDEX, REQUESTS_INDEX, REQUESTS_WRITE
from tests.system.api import Api, open_api
from tests.system.requests.rows import Rows, found, problem

BOTH = (REQUESTS_INDEX, REQUESTS_WRITE)
RATE_LIMIT_HEADERS = ("RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset")
ROUTES: dict[str, tuple[str, str]] = {
    "list": ("GET", "/api/v1/requests"),
    "show": ("GET", "/api/v1/requests/{request}"),
    "content": ("GET", "/api/v1/attachments/{attachment}/content"),
    "retry": ("POST", "/api/v1/attachments/{attachment}/retry"),
}

Ask = Callable[[str, str], httpx.Response]


@pytest.fixture
def ask(api: Api, rows: Rows) -> Ask:
    """Ask with a token for the resources of one request; its attachment can be tried again."""
    request_id = rows.request()
    attachment_id = rows.file(request_id, "failed")

    def send(route: str, token: str) -> httpx.Response:
        method, path = ROUTES[route]
        with api.client(token) as client:
            return client.request(method, path.format(request=request_id, attachment=attachment_id))

    return send


@pytest.mark.parametrize("route", ROUTES)
def test_without_a_valid_token_it_is_a_401(api: Api, ask: Ask, route: str) -> None:
    method, path = ROUTES[route]
    without = httpx.request(method, api.origin + path, verify=False)
    for answer in (without, ask(route, "mr_unknown")):
        assert problem(answer) == (401, "unauthorized")
        assert answer.headers["WWW-Authenticate"].startswith("Bearer")


@pytest.mark.parametrize("route", ROUTES)
def test_without_the_scope_it_is_a_403(api: Api, ask: Ask, route: str) -> None:
    needed = REQUESTS_WRITE if route == "retry" else REQUESTS_INDEX
    other = REQUESTS_INDEX if route == "retry" else REQUESTS_WRITE
    answer = ask(route, api.create_token(scopes=(MESSAGES_INDEX, other)))
    assert problem(answer) == (403, "forbidden")
    assert needed in answer.json()["detail"]
    assert ask(route, api.create_token(scopes=(needed,))).is_success


@pytest.mark.parametrize("route", ["show", "content", "retry"])
def test_what_came_to_another_mailbox_is_not_there(
    api: Api, ask: Ask, rows: Rows, route: str
) -> None:
    for mailboxes in ([], ["other@example.com"], [rows.address + "x"]):
        stranger = api.create_token(scopes=BOTH, mailboxes=mailboxes)
        assert problem(ask(route, stranger)) == (404, "not-found")
    owner = api.create_token(scopes=BOTH, mailboxes=[rows.address.upper(), "other@example.com"])
    assert ask(route, owner).is_success


def test_the_list_lacks_what_came_to_other_mailboxes(api: Api, rows: Rows) -> None:
    other = Rows(api, "second@example.com", api.insert_mailbox("second@example.com"))
    Rows(api, "third@example.com", api.insert_mailbox("third@example.com")).request("done")
    mine, theirs = rows.request("done"), other.request("failed")
    token = api.create_token(scopes=BOTH, mailboxes=[rows.address.upper(), other.address])

    def listed(**filters: str) -> list[int]:
        with api.client(token) as client:
            params = {f"filter[{name}]": value for name, value in filters.items()}
            return [one["id"] for one in found(client.get("/api/v1/requests", params=params))]

    assert listed() == [theirs, mine]
    assert listed(mailbox=rows.address) == [mine]
    assert listed(mailbox=other.address, status="done") == []
    assert listed(status="failed") == [theirs]
    assert listed(mailbox="third@example.com") == []


def test_what_came_to_a_removed_mailbox_is_for_unlimited_tokens(
    api: Api, client: httpx.Client, rows: Rows
) -> None:
    request_id = rows.request("done")
    path = f"/api/v1/requests/{request_id}"
    limited = api.create_token(scopes=BOTH, mailboxes=[rows.address, ""])
    with api.client(limited) as owner:
        assert owner.get(path).status_code == 200
        api.execute("DELETE FROM email_mailbox_config WHERE address = %s", rows.address)
        assert problem(owner.get(path)) == (404, "not-found")
        assert found(owner.get("/api/v1/requests")) == []
    assert found(client.get(path))[0]["mailbox"] is None


def test_requests_are_counted_on_every_route(tmp_path: Path, database_url: str) -> None:
    with open_api(tmp_path, database_url, RATE_LIMIT_PER_MINUTE="4") as api:
        token = api.create_token(scopes=BOTH)
        rows = Rows(api, "a@example.com", api.insert_mailbox("a@example.com"))
        request_id = rows.request()
        attachment_id = rows.file(request_id)
        remaining = []
        with api.client(token) as client:
            paths = [
                (method, path.format(request=request_id, attachment=attachment_id))
                for method, path in ROUTES.values()
            ]
            for method, path in paths:
                answer = client.request(method, path)
                assert answer.is_success
                remaining.append(int(answer.headers["RateLimit-Remaining"]))
            assert remaining == [3, 2, 1, 0]
            for method, path in paths:
                answer = client.request(method, path)
                assert problem(answer) == (429, "rate-limited")
                assert int(answer.headers["Retry-After"]) > 0
                assert all(name in answer.headers for name in RATE_LIMIT_HEADERS)
