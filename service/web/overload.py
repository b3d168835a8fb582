"""The refusal of waits that nobody can begin now, before Quart and the database work on them.

A crowd over the cap costs as little as it can: no token is looked up and no request counted.
"""

from collections.abc import Awaitable, Callable, Mapping

from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable, HTTPScope, Scope

from service import metrics
from service.errors import ServiceStopping, TooManyWaits
from service.waits import Waits
from service.web.messages import ACCOUNT_PATH, AWAIT_PATH
from service.web.problems import CONTENT_TYPE, Problem, problem_document, problem_of

AWAIT_ROUTE = ACCOUNT_PATH + AWAIT_PATH
_PREFIX, _SUFFIX = AWAIT_ROUTE.split("<mailbox>")

AsgiApp = Callable[[Scope, ASGIReceiveCallable, ASGISendCallable], Awaitable[None]]


def refuse_early(app: AsgiApp, waits: Waits, public_base_url: str | None) -> AsgiApp:
    """The app behind a look at the cap."""

    async def answer(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        if scope["type"] == "http" and _is_wait(scope):
            try:
                waits.refuse_if_full()
            except (TooManyWaits, ServiceStopping) as error:
                await _refuse(scope, send, problem_of(error), public_base_url)
                return
        await app(scope, receive, send)

    return answer


def _is_wait(scope: HTTPScope) -> bool:
    path = scope["path"]
    return scope["method"] == "GET" and path.startswith(_PREFIX) and path.endswith(_SUFFIX)


async def _refuse(
    scope: HTTPScope, send: ASGISendCallable, problem: Problem, public_base_url: str | None
) -> None:
    base_url = public_base_url or _origin(scope)
    content = problem_document(problem, base_url, scope["path"])
    headers: Mapping[str, str] = {
        "Content-Type": CONTENT_TYPE,
        "Content-Length": str(len(content)),
        **problem.headers,
    }
    metrics.HTTP_REQUESTS.labels(AWAIT_ROUTE, problem.type.status).inc()
    await send(
        {
            "type": "http.response.start",
            "status": problem.type.status,
            "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
        }
    )
    await send({"type": "http.response.body", "body": content, "more_body": False})


def _origin(scope: HTTPScope) -> str:
    host = next((value for name, value in scope["headers"] if name == b"host"), b"")
    return f"{scope['scheme']}://{host.decode('latin-1')}" if host else ""
