"""The OpenAPI 3.1 document at `/openapi.json`: quart-schema reads it off the handlers.

quart-schema knows models and parameters. What it does not know is added here: the problems that a
handler declares with `answers_problems`, headers, the token, and an order that stays the same.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from http import HTTPStatus
from typing import Any, TypeVar

from pydantic import BaseModel
from quart import Response, current_app
from quart_schema import Info, OpenAPIProvider, QuartSchema, Tag, hide
from quart_schema.casing import snake_to_camel
from quart_schema.typing import Model
from quart_trio import QuartTrio
from werkzeug.routing.converters import BaseConverter
from werkzeug.routing.rules import Rule

from service.db.tokens import MESSAGES_INDEX, REQUESTS_INDEX, REQUESTS_WRITE
from service.web.problem_documents import EXAMPLE_BASE_URL, document_model, example_document
from service.web.problem_types import PAGES_PATH, RATE_LIMITED, UNAUTHORIZED, ProblemType

OPENAPI_PATH = "/openapi.json"
API_PREFIX = "/api/"
_PROBLEMS_ATTRIBUTE = "_mailroom_problems"
_OCTETS_ATTRIBUTE = "_mailroom_octets"
_TAGS = (
    Tag("messages", "Messages of a mailbox, read live from its mail server."),
    Tag("requests", "What mails became: requests, their attachments, and what was read in them."),
    Tag("service", "How this replica is doing. No token needed."),
)
# By the beginning of the path; the first that fits.
_TAG_NAMES = {"/api/v1/email/": "messages", API_PREFIX: "requests", "/": "service"}
_TOKEN = {
    "type": "http",
    "scheme": "bearer",
    "description": "A token from `python -m service token create`, with the scope "
    f"`{MESSAGES_INDEX}` for messages; for requests and attachments `{REQUESTS_INDEX}` to read "
    f"them, `{REQUESTS_WRITE}` for a retry.",
}
_PATH_PARAMETERS: Mapping[str, Mapping[str, Any]] = {
    "mailbox": {
        "description": "The mailbox's e-mail address.",
        "example": "mybox@example.com",
        "schema": {"type": "string", "pattern": r"^[^\r\n\x00]+$"},
    },
    "email_id": {"description": "The `email_id` of a message in an earlier answer."},
    "request_id": {"description": "The `id` of a request."},
    "attachment_id": {"description": "The `id` of an attachment of a request."},
}
_HEADERS = {
    "Content-Disposition": ("string", "`attachment`, with a name to save it under (RFC 6266)."),
    "WWW-Authenticate": ("string", "`Bearer`; where a token was sent, what is wrong with it."),
    "Retry-After": ("integer", "Seconds after which to try again."),
    "RateLimit-Limit": ("integer", "Requests that the token has per minute, over all replicas."),
    "RateLimit-Remaining": ("integer", "Requests that are left of these at the moment."),
    "RateLimit-Reset": ("integer", "Seconds until all of them are there again."),
}
_RATE_LIMIT_HEADERS = tuple(name for name in _HEADERS if name.startswith("RateLimit-"))
_PROBLEM_HEADERS = {401: ("WWW-Authenticate",), 429: ("Retry-After",), 503: ("Retry-After",)}

Handler = TypeVar("Handler", bound=Callable[..., Any])


def answers_problems(*kinds: ProblemType) -> Callable[[Handler], Handler]:
    """Declare the problems that a handler answers with, beside quart-schema's declarations."""

    def declare(handler: Handler) -> Handler:
        setattr(handler, _PROBLEMS_ATTRIBUTE, kinds)
        return handler

    return declare


def answers_octets(description: str) -> Callable[[Handler], Handler]:
    """Declare that a handler answers with bytes to save, not with JSON."""

    def declare(handler: Handler) -> Handler:
        setattr(handler, _OCTETS_ATTRIBUTE, description)
        return handler

    return declare


def install_openapi(app: QuartTrio) -> None:
    """Serve the document of all handlers that are not hidden.

    `PUBLIC_BASE_URL` and the handlers are read at the first request for it.
    """
    _Documentation(
        app,
        openapi_path=OPENAPI_PATH,
        redoc_ui_path=None,
        scalar_ui_path=None,
        swagger_ui_path=None,
        info=Info(
            title="mailroom",
            version="1.0.0",
            description="Reads mailboxes, waits for mail to arrive in them, and gives what was "
            "read in their attachments. Every error is a problem document (RFC 9457), each type "
            f"explained at `{PAGES_PATH}`.",
        ),
        tags=list(_TAGS),
        openapi_provider_class=_Provider,
    )


class _Documentation(QuartSchema):
    """Makes the document once, and keeps its order where app.json would sort it."""

    @hide
    async def openapi(self) -> Response:
        return Response(self._document, content_type="application/json")

    @cached_property
    def _document(self) -> bytes:
        return json.dumps(self.openapi_provider.schema(), ensure_ascii=False).encode()


class _Provider(OpenAPIProvider):
    def schema(self) -> dict[str, Any]:
        document = super().schema()
        document["servers"] = [{"url": current_app.config["PUBLIC_BASE_URL"] or "/"}]
        components = document["components"]
        components["schemas"] = dict(sorted(components["schemas"].items()))
        components["headers"] = {
            name: {"description": description, "schema": {"type": type_}}
            for name, (type_, description) in _HEADERS.items()
        }
        components["securitySchemes"] = {"token": _TOKEN}
        return document

    def generate_rules(self) -> Iterable[Rule]:
        """The API first, and each part by path."""
        return sorted(
            super().generate_rules(),
            key=lambda rule: (not rule.rule.startswith(API_PREFIX), rule.rule),
        )

    def generate_methods(self, rule: Rule) -> Iterable[str]:
        return sorted(super().generate_methods(rule))

    def operation_id(self, method: str, path: str, func: Callable[..., Any]) -> str | None:
        """The handler's name, or what `operation_id` gives it, without the method."""
        name = super().operation_id(method, path, func) or ""
        return str(snake_to_camel(name.removeprefix(f"{method.lower()}_")))

    def build_paths(self, rule: Rule) -> tuple[dict[str, Any], dict[str, Any]]:
        paths, schemas = super().build_paths(rule)
        handler = self._app.view_functions[rule.endpoint]
        kinds: tuple[ProblemType, ...] = getattr(handler, _PROBLEMS_ATTRIBUTE, ())
        octets: str | None = getattr(handler, _OCTETS_ATTRIBUTE, None)
        answered = {} if octets is None else {"responses": {"200": _octets_response(octets)}}
        completed = {
            path: {
                name: _complete(path, operation | answered, kinds)
                for name, operation in methods.items()
            }
            for path, methods in paths.items()
        }
        for kind in kinds:
            schemas |= _components(document_model(kind))
        return completed, schemas

    def build_path_parameter(self, name: str, converter: BaseConverter) -> dict[str, Any]:
        parameter = super().build_path_parameter(name, converter)
        return {**parameter, **_PATH_PARAMETERS.get(name, {})}

    def build_querystring_parameters(
        self, model: type[Model]
    ) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        parameters, schemas = super().build_querystring_parameters(model)
        for parameter in parameters:
            parameter["required"] = False
            parameter["schema"] = _sent_schema(parameter["schema"])
        return parameters, schemas

    def build_response_object(
        self, model: type[Model], headers_model: type[Model] | None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """With the schema as a component; quart-schema has it in the response itself."""
        response, schemas = super().build_response_object(model, headers_model)
        media = response["content"]["application/json"]
        schemas[media["schema"]["title"]] = media["schema"]
        media["schema"] = _reference("schemas", media["schema"]["title"])
        return response, schemas


def _complete(
    path: str, operation: Mapping[str, Any], kinds: tuple[ProblemType, ...]
) -> dict[str, Any]:
    """The operation with its problems and all that follows from them."""
    completed = {name: value for name, value in operation.items() if value}
    if description := operation.get("description", "").strip():
        completed["description"] = description
    tag = next(name for prefix, name in _TAG_NAMES.items() if path.startswith(prefix))
    completed.setdefault("tags", [tag])
    if UNAUTHORIZED in kinds:
        completed["security"] = [{"token": []}]
    responses = {str(status): answer for status, answer in operation["responses"].items()}
    responses = responses or {"200": {"description": HTTPStatus.OK.phrase}}
    responses |= {str(kind.status): _problem_response(kind.status, kinds) for kind in kinds}
    if RATE_LIMITED in kinds:
        for status in responses.keys() - {"401"}:
            headers = responses[status].get("headers", {})
            responses[status]["headers"] = headers | _headers(_RATE_LIMIT_HEADERS)
    return completed | {"responses": dict(sorted(responses.items()))}


def _octets_response(description: str) -> dict[str, Any]:
    return {
        "description": description,
        "content": {"application/octet-stream": {}},
        "headers": _headers(["Content-Disposition"]),
    }


def _problem_response(status: int, kinds: tuple[ProblemType, ...]) -> dict[str, Any]:
    """One response for all of these types that share the status."""
    sharing = [kind for kind in kinds if kind.status == status]
    public_base_url = (current_app.config["PUBLIC_BASE_URL"] or "").rstrip("/")
    schema = _reference("schemas", _title(document_model(sharing[0])))
    examples = {
        kind.slug: {"value": example_document(kind, public_base_url or EXAMPLE_BASE_URL)}
        for kind in sharing
    }
    meanings = [
        f"[`{kind.slug}`]({public_base_url}{PAGES_PATH}/{kind.slug}): {kind.meaning} {kind.remedy}"
        for kind in sharing
    ]
    response: dict[str, Any] = {
        "description": "\n\n".join(meanings),
        "content": {"application/problem+json": {"schema": schema, "examples": examples}},
    }
    headers = _headers(_PROBLEM_HEADERS.get(status, ()))
    return response | ({"headers": headers} if headers else {})


def _headers(names: Iterable[str]) -> dict[str, Any]:
    return {name: _reference("headers", name) for name in names}


def _reference(section: str, name: str) -> dict[str, str]:
    return {"$ref": f"#/components/{section}/{name}"}


def _title(model: type[BaseModel]) -> str:
    return str(model.model_config["title"])


def _components(model: type[BaseModel]) -> dict[str, Any]:
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    return {**schema.pop("$defs", {}), _title(model): schema}


def _sent_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """What can stand in a query string: null, which means that it is left out, cannot."""
    kept = {name: value for name, value in schema.items() if name not in ("title", "anyOf")}
    if kept.get("default", ...) is None:
        del kept["default"]
    options = [option for option in schema.get("anyOf", ()) if option != {"type": "null"}]
    if len(options) == 1:
        return {**options[0], **kept}
    return kept | ({"anyOf": options} if options else {})
