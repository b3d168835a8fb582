"""A local validation API that takes its time: every domain is valid, after a set delay.

`python -m benchmarks.slow_api DELAY_SECONDS` prints the port it listens on, then serves until it
is terminated: `GET /?domain=…` after the delay, `GET /counts` at once. A process of its own, so
that it shares no interpreter lock with what is measured; hundreds of requests may be in flight.
"""

import json
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Self
from urllib.parse import parse_qs, urlsplit

import h11
import httpx
import trio

_BACKLOG = 512
_RECEIVE_BYTES = 65536


@dataclass(frozen=True, slots=True)
class Counts:
    """What was asked so far; `busy_seconds` from the first question to the last answer."""

    calls: int
    domains: int
    most_at_once: int
    busy_seconds: float


class SlowApi:
    """The process, ready once entered; `url` is what ENRICH_API_URL takes."""

    def __init__(self, delay_seconds: float) -> None:
        self._delay_seconds = delay_seconds

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "benchmarks.slow_api", str(self._delay_seconds)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.url = f"http://127.0.0.1:{int(self._process.stdout.readline())}/"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.__exit__(kind, error, traceback)

    def counts(self) -> Counts:
        return Counts(**httpx.get(f"{self.url}counts", trust_env=False).raise_for_status().json())


class _Answers:
    """What the process does: waits, answers, counts."""

    def __init__(self, delay_seconds: float) -> None:
        self._delay_seconds = delay_seconds
        self._domains: set[str] = set()
        self._calls = self._at_once = self._most_at_once = 0
        self._first_at = self._last_at = time.monotonic()

    async def answer(self, target: str) -> dict[str, object]:
        url = urlsplit(target)
        if url.path == "/counts":
            seconds = self._last_at - self._first_at
            return asdict(Counts(self._calls, len(self._domains), self._most_at_once, seconds))
        (domain,) = parse_qs(url.query)["domain"]
        self._begin(domain)
        await trio.sleep(self._delay_seconds)
        self._at_once -= 1
        self._last_at = time.monotonic()
        return {"verdict": "valid"}

    def _begin(self, domain: str) -> None:
        if not self._calls:
            self._first_at = time.monotonic()
        self._calls += 1
        self._domains.add(domain)
        self._at_once += 1
        self._most_at_once = max(self._most_at_once, self._at_once)

    async def serve_client(self, stream: trio.SocketStream) -> None:
        """Requests of one connection, one after the other, until the client ends it."""
        async with stream:
            http = h11.Connection(h11.SERVER)
            while target := await _next_target(http, stream):
                body = json.dumps(await self.answer(target)).encode()
                await _send(http, stream, body)
                http.start_next_cycle()


async def _next_target(http: h11.Connection, stream: trio.SocketStream) -> str | None:
    target = None
    while True:
        match http.next_event():
            case h11.NEED_DATA:
                http.receive_data(await stream.receive_some(_RECEIVE_BYTES))
            case h11.Request() as request:
                target = request.target.decode()
            case h11.EndOfMessage():
                return target
            case h11.ConnectionClosed():
                return None


async def _send(http: h11.Connection, stream: trio.SocketStream, body: bytes) -> None:
    headers = [("content-type", "application/json"), ("content-length", str(len(body)))]
    response = http.send(h11.Response(status_code=200, headers=headers)) or b""
    content = http.send(h11.Data(data=body)) or b""
    await stream.send_all(response + content + (http.send(h11.EndOfMessage()) or b""))


async def serve(delay_seconds: float) -> None:
    """Print the port, then answer."""
    answers = _Answers(delay_seconds)

    async def serve_client(stream: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError, h11.RemoteProtocolError):  # a client was killed
            await answers.serve_client(stream)

    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1", backlog=_BACKLOG)
    print(listeners[0].socket.getsockname()[1], flush=True)
    await trio.serve_listeners(serve_client, listeners)


if __name__ == "__main__":
    trio.run(serve, float(sys.argv[1]))
