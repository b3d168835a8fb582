"""The quart-trio app, and serving it inside the supervisor's nursery."""

import logging
from collections.abc import Awaitable, Callable

import hypercorn.trio
import trio
from hypercorn.config import Config
from hypercorn.typing import (
    ASGIFramework,
    ASGIReceiveCallable,
    ASGISendCallable,
    ASGISendEvent,
    Scope,
)
from quart_trio import QuartTrio

from service.db.pool import Database
from service.errors import SettingsError
from service.health import Health
from service.listing import Listings
from service.settings import Settings
from service.waits import Waits
from service.web.auth import Gate
from service.web.docs import create_docs_blueprint
from service.web.health import create_health_blueprint
from service.web.messages import create_messages_blueprint
from service.web.metrics import create_metrics_blueprint
from service.web.openapi import install_openapi
from service.web.problems import register_problems

GRACEFUL_TIMEOUT_SECONDS = 2


def create_app(
    db: Database, health: Health, settings: Settings, listings: Listings, waits: Waits
) -> QuartTrio:
    """The app with all its resources."""
    app = QuartTrio("service", static_folder=None)
    app.config["PUBLIC_BASE_URL"] = settings.public_base_url
    register_problems(app)
    gate = Gate(db, settings.rate_limit_per_minute)
    app.register_blueprint(create_messages_blueprint(gate, listings, waits))
    app.register_blueprint(create_health_blueprint(db, health))
    app.register_blueprint(create_metrics_blueprint())
    app.register_blueprint(create_docs_blueprint())
    install_openapi(app)
    return app


async def serve_http(
    app: QuartTrio,
    bind: str,
    stop: Callable[[], Awaitable[None]],
    *,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until `stop()` returns; started with the URLs once the sockets listen."""
    config = Config()
    config.bind = [bind]
    config.errorlog = logging.getLogger("hypercorn.error")  # else it brings a handler of its own
    config.graceful_timeout = GRACEFUL_TIMEOUT_SECONDS
    try:
        await hypercorn.trio.serve(
            _ending_whole(app), config, shutdown_trigger=stop, task_status=task_status
        )
    except* OSError as group:
        raise SettingsError(f"HTTP_BIND: cannot listen on {bind}: {group.exceptions[0]}") from group


def _ending_whole(app: QuartTrio) -> ASGIFramework:
    """With its last piece hypercorn ends an answer: it closes the connection, or sets its idle
    time-out. It also tells quart-trio, which cancels the task that this is done in."""

    async def answer(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        async def send_whole(event: ASGISendEvent) -> None:
            is_last = event["type"] == "http.response.body" and not event.get("more_body")
            with trio.CancelScope(shield=is_last):
                await send(event)

        await app(scope, receive, send_whole)

    return answer
