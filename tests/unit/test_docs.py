"""The OpenAPI document, and the pages that a browser or a person without one may read."""

import json
import re
from html.parser import HTMLParser
from typing import Annotated, Any
from urllib.parse import urljoin, urlsplit

import httpx
import pytest
import schemathesis
from openapi_spec_validator import OpenAPIV31SpecValidator
from pydantic import BaseModel, ConfigDict, Field
from quart import Blueprint, Response, jsonify
from quart_schema import document_response, validate_querystring
from quart_trio import QuartTrio

from service.db.tokens import SCOPES
from service.web.docs import create_docs_blueprint
from service.web.openapi import answers_octets, answers_problems, install_openapi
from service.web.problem_documents import document_model
from service.web.problem_types import (
    AWAIT_OVERLOADED,
    AWAIT_TIMEOUT,
    DATABASE_UNAVAILABLE,
    INVALID_REQUEST,
    NOT_FOUND,
    PAGES_PATH,
    PROBLEM_TYPES,
    RATE_LIMITED,
    SHUTTING_DOWN,
    UNAUTHORIZED,
    ProblemType,
)
from service.web.problems import register_problems

AWAIT_PATH = "/api/v1/email/account/{mailbox}/messages:await"
SHOW_PATH = "/api/v1/email/account/{mailbox}/messages/{email_id}"
CONTENT_PATH = "/api/v1/attachments/{attachment_id}/content"
RATE_LIMIT_HEADERS = {"RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset"}
PAGE_PATHS = ["/docs", PAGES_PATH, *(f"{PAGES_PATH}/{kind.slug}" for kind in PROBLEM_TYPES)]
AWAIT_PROBLEMS = (
    UNAUTHORIZED,
    AWAIT_TIMEOUT,
    INVALID_REQUEST,
    RATE_LIMITED,
    AWAIT_OVERLOADED,
    SHUTTING_DOWN,
    DATABASE_UNAVAILABLE,
)


class Wanted(BaseModel):
    model_config = ConfigDict(extra="forbid")

    sender: Annotated[
        str | None, Field(alias="filter[from]", description="A part of the sender.")
    ] = None
    timeout: Annotated[float, Field(ge=0, description="Seconds to wait.")] = 30


class Item(BaseModel):
    subject: str | None


class Answer(BaseModel):
    """The messages that were found."""

    collection: list[Item]


def create_messages_blueprint() -> Blueprint:
    blueprint = Blueprint("messages", __name__)

    @blueprint.get("/api/v1/email/account/<mailbox>/messages:await")
    @validate_querystring(Wanted)
    @document_response(Answer)
    @answers_problems(*AWAIT_PROBLEMS)
    async def await_message(mailbox: str, query_args: Wanted) -> Response:
        """Wait for a message.

        The first that matches.
        """
        return jsonify(collection=[])

    @blueprint.get("/api/v1/email/account/<mailbox>/messages/<email_id>")
    @answers_problems(UNAUTHORIZED, NOT_FOUND)
    @document_response(Answer)
    async def show_message(mailbox: str, email_id: str) -> Response:
        """Show one message."""
        return jsonify(collection=[])

    @blueprint.get("/api/v1/attachments/<attachment_id>/content")
    @answers_problems(UNAUTHORIZED, NOT_FOUND, RATE_LIMITED)
    @answers_octets("The bytes.")
    async def download(attachment_id: str) -> Response:
        """Download."""
        return Response(b"", content_type="application/octet-stream")

    @blueprint.get("/healthz")
    async def healthz() -> Response:
        """Say that the process lives."""
        return jsonify(status="alive")

    return blueprint


def create_app(public_base_url: str | None = None) -> QuartTrio:
    app = QuartTrio("service")
    app.config["PUBLIC_BASE_URL"] = public_base_url
    register_problems(app)
    install_openapi(app)
    app.register_blueprint(create_docs_blueprint())
    app.register_blueprint(create_messages_blueprint())
    return app


def connect(app: QuartTrio) -> httpx.AsyncClient:
    # quart-trio's own client stops at bodies of more than ten chunks.
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost")


@pytest.fixture
def client() -> httpx.AsyncClient:
    return connect(create_app())


@pytest.fixture
async def document(client: httpx.AsyncClient) -> dict[str, Any]:
    answer = await client.get("/openapi.json")
    assert answer.status_code == 200
    assert answer.headers["Content-Type"] == "application/json"
    return answer.json()


class _Links(HTMLParser):
    """Every address that a page names, wherever it stands."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, _tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = {"href", "src", "action", "data-url"}
        self.found += [value or "" for name, value in attrs if name in names]


async def read_page(client: httpx.AsyncClient, path: str) -> str:
    answer = await client.get(path)
    assert answer.status_code == 200, path
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    return answer.text


# The OpenAPI document


async def test_the_document_is_openapi_3_1(document: dict[str, Any]) -> None:
    assert document["openapi"].startswith("3.1")
    OpenAPIV31SpecValidator(document).validate()


async def test_schemathesis_reads_every_operation(document: dict[str, Any]) -> None:
    schema = schemathesis.openapi.from_dict(document)
    labels = [operation.ok().label for operation in schema.get_all_operations()]
    paths = [CONTENT_PATH, SHOW_PATH, AWAIT_PATH, "/healthz"]
    assert labels == [f"GET {path}" for path in paths]


async def test_paths_and_tags_stand_in_a_fixed_order(document: dict[str, Any]) -> None:
    assert list(document["paths"]) == [CONTENT_PATH, SHOW_PATH, AWAIT_PATH, "/healthz"]
    assert [tag["name"] for tag in document["tags"]] == ["messages", "requests", "service"]
    tags = [path["get"]["tags"] for path in document["paths"].values()]
    assert tags == [["requests"], ["messages"], ["messages"], ["service"]]


async def test_an_operation_is_named_and_described_by_its_handler(
    document: dict[str, Any],
) -> None:
    operation = document["paths"][AWAIT_PATH]["get"]
    assert operation["operationId"] == "awaitMessage"
    assert operation["summary"] == "Wait for a message."
    assert operation["description"] == "The first that matches."
    assert "description" not in document["paths"][SHOW_PATH]["get"]


async def test_parameters(document: dict[str, Any]) -> None:
    mailbox, sender, timeout = document["paths"][AWAIT_PATH]["get"]["parameters"]
    assert mailbox["name"] == "mailbox"
    assert mailbox["required"] is True
    assert mailbox["description"]
    assert re.search(mailbox["schema"]["pattern"], "mybox@example.com")
    assert not re.search(mailbox["schema"]["pattern"], "my\rbox@example.com")
    assert sender == {
        "name": "filter[from]",
        "in": "query",
        "required": False,
        "description": "A part of the sender.",
        "schema": {"type": "string"},
    }
    assert timeout["schema"] == {"type": "number", "minimum": 0, "default": 30}


async def test_models_are_components(document: dict[str, Any]) -> None:
    success = document["paths"][AWAIT_PATH]["get"]["responses"]["200"]
    assert success["description"] == "The messages that were found."
    assert success["content"] == {
        "application/json": {"schema": {"$ref": "#/components/schemas/Answer"}}
    }
    names = ["Answer", "AwaitTimeout", "InvalidParameter", "InvalidRequest", "Item", "Problem"]
    assert list(document["components"]["schemas"]) == names


async def test_bytes_are_no_json(document: dict[str, Any]) -> None:
    success = document["paths"][CONTENT_PATH]["get"]["responses"]["200"]
    assert success["description"] == "The bytes."
    assert success["content"] == {"application/octet-stream": {}}
    assert set(success["headers"]) == RATE_LIMIT_HEADERS | {"Content-Disposition"}


async def test_every_problem_is_described_under_its_status(document: dict[str, Any]) -> None:
    responses = document["paths"][AWAIT_PATH]["get"]["responses"]
    assert list(responses) == ["200", "401", "408", "422", "429", "503"]
    for kind in AWAIT_PROBLEMS:
        response = responses[str(kind.status)]
        link = f"[`{kind.slug}`]({PAGES_PATH}/{kind.slug})"
        assert f"{link}: {kind.meaning} {kind.remedy}" in response["description"]
        assert list(response["content"]) == ["application/problem+json"]
        assert kind.slug in response["content"]["application/problem+json"]["examples"]


async def test_the_documents_of_408_and_422_say_more(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    common = ["type", "title", "status", "detail", "instance"]
    seen = ["timeout_seconds", "rounds", "messages_seen", "rejected_by", "last_error"]
    further = [*seen, "imap_search", "cursor"]
    assert list(schemas["Problem"]["properties"]) == common
    assert list(schemas["AwaitTimeout"]["properties"]) == common + further
    assert list(schemas["InvalidRequest"]["properties"]) == [*common, "errors"]
    for status, name in {"408": "AwaitTimeout", "422": "InvalidRequest", "503": "Problem"}.items():
        response = document["paths"][AWAIT_PATH]["get"]["responses"][status]
        schema = response["content"]["application/problem+json"]["schema"]
        assert schema == {"$ref": f"#/components/schemas/{name}"}


@pytest.mark.parametrize("kind", PROBLEM_TYPES, ids=lambda kind: kind.slug)
async def test_the_example_fits_its_schema(kind: ProblemType, client: httpx.AsyncClient) -> None:
    page = await read_page(client, f"{PAGES_PATH}/{kind.slug}")
    shown = re.search(r"<pre><code>(.*?)</code></pre>", page, re.DOTALL)
    assert shown is not None
    example = json.loads(shown[1].replace("&#34;", '"').replace("&#39;", "'"))
    document_model(kind).model_validate(example, extra="forbid", strict=True)
    assert (await client.get(urlsplit(example["type"]).path)).status_code == 200


async def test_headers_are_described_where_they_are_sent(document: dict[str, Any]) -> None:
    responses = document["paths"][AWAIT_PATH]["get"]["responses"]
    for status, names in {
        "200": RATE_LIMIT_HEADERS,
        "401": {"WWW-Authenticate"},
        "408": RATE_LIMIT_HEADERS,
        "429": RATE_LIMIT_HEADERS | {"Retry-After"},
        "503": RATE_LIMIT_HEADERS | {"Retry-After"},
    }.items():
        assert set(responses[status]["headers"]) == names
    assert "headers" not in document["paths"][SHOW_PATH]["get"]["responses"]["404"]


async def test_the_token_is_wanted_where_it_is_checked(document: dict[str, Any]) -> None:
    token = document["components"]["securitySchemes"]["token"]
    assert token["scheme"] == "bearer"
    assert all(f"`{scope}`" in token["description"] for scope in SCOPES)
    assert document["paths"][AWAIT_PATH]["get"]["security"] == [{"token": []}]
    assert "security" not in document["paths"]["/healthz"]["get"]


@pytest.mark.parametrize("base_url", [None, "https://mail.example.org/rooms"])
async def test_the_server_is_the_public_one(base_url: str | None) -> None:
    answer = await connect(create_app(base_url)).get("/openapi.json")
    document = answer.json()
    assert document["servers"] == [{"url": base_url or "/"}]
    assert f"{base_url or 'https://mailroom.example.com'}{PAGES_PATH}/" in json.dumps(document)


# The pages


async def test_every_problem_type_is_listed_and_has_a_page(client: httpx.AsyncClient) -> None:
    listed = _Links(await read_page(client, PAGES_PATH)).found
    for kind in PROBLEM_TYPES:
        path = f"{PAGES_PATH}/{kind.slug}"
        assert path in listed
        page = await read_page(client, path)
        assert f"{kind.status} {kind.title}" in page
        assert PAGES_PATH in _Links(page).found
        assert "`" not in page


async def test_backticks_become_code_and_nothing_becomes_markup(
    client: httpx.AsyncClient,
) -> None:
    page = await read_page(client, f"{PAGES_PATH}/unauthorized")
    assert "<code>Authorization: Bearer &lt;token&gt;</code>" in page


@pytest.mark.parametrize("path", PAGE_PATHS)
async def test_every_link_of_a_page_leads_somewhere_here(
    path: str, client: httpx.AsyncClient
) -> None:
    for link in _Links(await read_page(client, path)).found:
        if link != "data:,":
            assert urlsplit(link).netloc == "", link
            assert (await client.get(urljoin(path, link))).status_code == 200, link


@pytest.mark.parametrize("path", [*PAGE_PATHS, "/openapi.json"])
async def test_no_page_names_another_host(path: str, client: httpx.AsyncClient) -> None:
    text = (await client.get(path)).text
    hosts = set(re.findall(r"https?://([^/\"&\s]+)", text))
    assert hosts <= {"localhost", "mailroom.example.com"}


@pytest.mark.parametrize("path", PAGE_PATHS)
async def test_a_page_may_load_nothing_from_elsewhere(path: str, client: httpx.AsyncClient) -> None:
    answer = await client.get(path)
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'self';")
    assert "http" not in policy
    page = answer.text
    assert not re.search(r"<style|style=|<script(?![^>]* src=)| on\w+=", page)


async def test_assets_have_their_types_and_are_cached_for_good(
    client: httpx.AsyncClient,
) -> None:
    types = {}
    for link in _Links(await read_page(client, "/docs")).found:
        if link.startswith("/docs/assets/"):
            answer = await client.get(link)
            types[urlsplit(link).path.rpartition("/")[2]] = answer.headers["Content-Type"]
            assert answer.headers["Cache-Control"] == "public, max-age=31536000, immutable"
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert len(answer.content) == int(answer.headers["Content-Length"])
            again = await client.get(link, headers={"If-None-Match": answer.headers["ETag"]})
            assert again.status_code == 304
    assert types == {
        "pages.css": "text/css; charset=utf-8",
        "api.js": "text/javascript; charset=utf-8",
        "swagger-ui.css": "text/css; charset=utf-8",
        "swagger-ui-bundle.js": "text/javascript; charset=utf-8",
    }


@pytest.mark.parametrize("path", [*PAGE_PATHS, "/openapi.json", "/docs/assets/pages.css"])
async def test_head_is_answered_like_get(path: str, client: httpx.AsyncClient) -> None:
    head, get = await client.head(path), await client.get(path)
    assert head.status_code == 200
    assert head.headers["Content-Type"] == get.headers["Content-Type"]
    assert head.headers["Content-Length"] == get.headers["Content-Length"]


@pytest.mark.parametrize(
    "path",
    [
        f"{PAGES_PATH}/no-such-thing",
        f"{PAGES_PATH}/unauthorized/more",
        "/docs/assets/page.html",
        "/docs/assets/%2e%2e%2fdocs.py",
    ],
)
async def test_what_does_not_exist_is_a_problem(path: str, client: httpx.AsyncClient) -> None:
    answer = await client.get(path)
    assert answer.status_code == 404
    assert answer.headers["Content-Type"] == "application/problem+json"
    document = answer.json()
    assert document["type"] == f"http://localhost{PAGES_PATH}/not-found"
