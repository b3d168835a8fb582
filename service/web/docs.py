"""Pages for people: the API in Swagger UI at `/docs`, and a page for every type of problem.

All of it comes from this process, and the Content-Security-Policy keeps the pages from loading
anything from elsewhere. Swagger UI is read from an installed package, which is not imported.
"""

import hashlib
import json
import re
from importlib import metadata
from pathlib import Path

from markupsafe import Markup, escape
from quart import Blueprint, Response, render_template, send_file, url_for
from quart_schema import hide

from service.web.openapi import OPENAPI_PATH
from service.web.problem_documents import example_document
from service.web.problem_types import NOT_FOUND, PAGES_PATH, PROBLEM_TYPES
from service.web.problems import Problem, public_url

_PAGES = Path(__file__).parent / "pages"
_MIMETYPES = {".css": "text/css", ".js": "text/javascript"}
_YEAR_SECONDS = 31_536_000
# Swagger UI puts styles and pictures into its page; scripts are files of ours alone.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_BY_SLUG = {kind.slug: kind for kind in PROBLEM_TYPES}


def create_docs_blueprint() -> Blueprint:
    """The pages and their assets. PackageNotFoundError when Swagger UI is not installed."""
    blueprint = Blueprint("docs", __name__, template_folder=_PAGES.name)
    assets = _locate_assets()
    versions = {name: _digest(path) for name, path in assets.items()}

    @blueprint.context_processor
    def page_context() -> dict[str, object]:
        def asset_url(name: str) -> str:
            return url_for("docs.asset", name=name, v=versions[name])

        return {"asset_url": asset_url, "openapi_path": OPENAPI_PATH}

    @blueprint.get("/docs")
    @hide
    async def api() -> str:
        return await render_template("api.html")

    @blueprint.get("/docs/assets/<name>")
    @hide
    async def asset(name: str) -> Response:
        if name not in assets:
            raise Problem(NOT_FOUND, f"There is no asset {name}.")
        response = await send_file(
            assets[name],
            mimetype=_MIMETYPES[assets[name].suffix],
            cache_timeout=_YEAR_SECONDS,
            conditional=True,
        )
        response.cache_control.immutable = True
        return response

    @blueprint.get(PAGES_PATH)
    @hide
    async def problems() -> str:
        return await render_template("problems.html", kinds=PROBLEM_TYPES)

    @blueprint.get(f"{PAGES_PATH}/<slug>")
    @hide
    async def problem(slug: str) -> str:
        if slug not in _BY_SLUG:
            raise Problem(NOT_FOUND, f"There is no problem type {slug}.")
        kind = _BY_SLUG[slug]
        example = json.dumps(example_document(kind, public_url("")), indent=2)
        return await render_template("problem.html", kind=kind, example=example)

    @blueprint.after_request
    async def protect(response: Response) -> Response:
        response.headers["Content-Security-Policy"] = _POLICY
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response

    blueprint.add_app_template_filter(_with_code, "with_code")
    return blueprint


def _locate_assets() -> dict[str, Path]:
    package = metadata.distribution("flask-openapi3-swagger")
    swagger = Path(str(package.locate_file("flask_openapi3_swagger/templates/swagger")))
    paths = (
        _PAGES / "pages.css",
        _PAGES / "api.js",
        swagger / "css/swagger-ui.css",
        swagger / "js/swagger-ui-bundle.js",
    )
    return {path.name: path for path in paths}


def _digest(path: Path) -> str:
    """Part of an asset's address, so that it can be cached for good."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


def _with_code(text: str) -> Markup:
    """Text as HTML, with what stands in backticks as code."""
    escaped = str(escape(text))
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", escaped))  # noqa: S704
