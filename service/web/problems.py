"""Every error as RFC 9457 `application/problem+json`."""

import json
import logging
from http import HTTPStatus

from quart import Response, request
from quart_trio import QuartTrio
from werkzeug.exceptions import HTTPException

log = logging.getLogger(__name__)


def problem(status: int, detail: str) -> Response:
    """A problem document without a type of its own (`about:blank`)."""
    document = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "instance": request.path,
    }
    return Response(json.dumps(document), status, content_type="application/problem+json")


def register_problems(app: QuartTrio) -> None:
    """Let no error leave the app as HTML."""

    async def http_error(error: HTTPException) -> Response:
        response = problem(error.code or 500, error.description or "")
        for name, value in error.get_headers():
            if name.lower() == "allow":
                response.headers[name] = value
        return response

    async def crash(_error: Exception) -> Response:
        log.exception("a request failed")
        return problem(500, "The service failed to answer; its log says why.")

    app.register_error_handler(HTTPException, http_error)
    app.register_error_handler(Exception, crash)
