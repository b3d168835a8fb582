"""Serving the app inside the supervisor's nursery, and what hypercorn and Quart need help with."""

import logging
import math
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

import hypercorn.trio.run
import trio
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.typing import (
    ASGIFramework,
    ASGIReceiveCallable,
    ASGISendCallable,
    ASGISendEvent,
    HTTPResponseBodyEvent,
    Scope,
)
from quart_trio import QuartTrio

from service.errors import DatabaseUnreachable, SettingsError

log = logging.getLogger(__name__)

GRACEFUL_TIMEOUT_SECONDS = 2
SEND_TIMEOUT_SECONDS = 30
# Clients come in larger crowds than hypercorn's 100.
BACKLOG = 4096
PIECE_BYTES = 64 * 1024


class _Connection(TCPServer):
    """hypercorn's, but for four faults: it keeps what its client has closed until the idle time-out
    is over, waits for ever for one that does not read, closes in one task while another one sends,
    and what then fails ends the whole process."""

    async def run(self) -> None:
        try:
            await super().run()
        except* Exception as group:
            log.warning("an HTTP connection broke: %r", group.exceptions[0])

    async def protocol_send(self, event: Event) -> None:
        """A client that does not read has its time, and then is gone."""
        if not isinstance(event, RawData):
            await super().protocol_send(event)
            return
        try:
            async with self.send_lock:
                with trio.fail_after(SEND_TIMEOUT_SECONDS):
                    await self.stream.send_all(event.data)
        except (trio.TooSlowError, trio.BrokenResourceError, trio.ClosedResourceError):
            await self.protocol.handle(Closed())

    async def _close(self) -> None:
        async with self.send_lock:
            await super()._close()

    async def _read_data(self) -> None:
        await super()._read_data()
        if self._task_group._nursery is not None:
            self._task_group._nursery.cancel_scope.cancel()


hypercorn.trio.run.TCPServer = _Connection  # type: ignore[attr-defined]


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
    config.backlog = BACKLOG
    try:
        await hypercorn.trio.serve(
            _with_whole_answers(app), config, shutdown_trigger=stop, task_status=task_status
        )
    except* OSError as group:
        raise SettingsError(f"HTTP_BIND: cannot listen on {bind}: {group.exceptions[0]}") from group


def _with_whole_answers(app: QuartTrio) -> ASGIFramework:
    """Quart sends a body in pieces and then an empty last one: small ones go in one, sooner.

    With the last piece hypercorn ends the answer: it closes the connection, or sets its idle
    time-out. It also tells quart-trio, which cancels the task that this is done in.
    """

    async def answer(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        held = b""

        async def send_whole(event: ASGISendEvent) -> None:
            nonlocal held
            if event["type"] != "http.response.body":
                await send(event)
                return
            body, is_last = held + event.get("body", b""), not event.get("more_body")
            held = b"" if is_last or len(body) > PIECE_BYTES else body
            if not held:
                with trio.move_on_after(GRACEFUL_TIMEOUT_SECONDS if is_last else math.inf) as last:
                    last.shield = is_last
                    await send(_body_event(body, is_last))

        try:
            await app(_with_readable_path(scope), receive, send_whole)
        except* DatabaseUnreachable as group:  # in the middle: all that is left is to hang up
            log.warning("an answer broke off: %s", group.exceptions[0])

    return answer


def _body_event(body: bytes, is_last: bool) -> HTTPResponseBodyEvent:
    return {"type": "http.response.body", "body": body, "more_body": not is_last}


def _with_readable_path(scope: Scope) -> Scope:
    """A request target may be a whole URL (RFC 9112 section 3.2.2), which Quart takes apart; it
    fails on one that is none, which becomes a path that nothing is at."""
    if scope["type"] != "http" or scope["path"].startswith("/"):
        return scope
    try:
        is_url = bool(urlsplit(scope["path"]).path)
    except ValueError:
        is_url = False
    return scope if is_url else {**scope, "path": "/" + scope["path"]}
