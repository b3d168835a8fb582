"""Thousands of clients of the API in one process of their own: bare sockets that cost little.

`python -m benchmarks.await_clients PLAN` (JSON) sends the plan's requests at its rate, whatever
becomes of those before them. It reports once all are answered; with "leave" on standard input all
clients disconnect instead, every other one with a reset.
"""

import asyncio
import json
import resource
import socket
import struct
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass
from itertools import cycle
from typing import Any

HOST = "127.0.0.1"
LEAVE = b"leave\n"
UNANSWERED = "unanswered"
# Beside the sockets: what Python, the database and the mail server need.
SPARE_FILES = 300
_RESET_AT_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER of no time


@dataclass(frozen=True, slots=True)
class Plan:
    """`clients` requests for the `targets` in turn, each over a connection of its own.

    A client closes it when it has its answer, or stays connected (`stays`).
    """

    port: int
    token: str
    targets: list[str]
    clients: int
    per_second: float
    stays: bool

    def to_json(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class Report:
    """How many ended how: `200`, a problem such as `503 await-overloaded`, or UNANSWERED.

    When the first and the last answer was complete, or the first and the last client left, by the
    monotonic clock; and the seconds from each request's moment in the plan.
    """

    outcomes: dict[str, int]
    first_at: float
    last_at: float
    seconds: list[float]


def allow_open_files(count: int) -> None:
    """For this process and those that it starts. RuntimeError when the machine's limit is lower."""
    needed = count + SPARE_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise RuntimeError(f"{needed} open files are needed, and `ulimit -Hn` is {hard}: raise it")
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


class _Client(asyncio.Protocol):
    """One request and its answer."""

    def __init__(self, request: bytes, planned_at: float, *, stays: bool) -> None:
        self.outcome = UNANSWERED
        self.ended_at = 0.0
        self.planned_at = planned_at
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.transport: Any = None
        self._request = request
        self._stays = stays
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._received += data
        header, separator, content = self._received.partition(b"\r\n\r\n")
        if separator and len(content) >= _content_length(header):
            self.outcome = _outcome(header, content)
            self._end()
            if not self._stays:
                self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._end()

    def leave(self, *, reset: bool) -> None:
        """Close the connection in the middle of the wait."""
        if reset:
            sock = self.transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
        self._end()
        self.transport.abort()

    def _end(self) -> None:
        if not self.ended.done():
            self.ended_at = time.monotonic()
            self.ended.set_result(None)


def _outcome(header: bytes, content: bytes) -> str:
    status = header[9:12].decode()
    if status == "200":
        return status
    return f"{status} {json.loads(content)['type'].rpartition('/')[2]}"


def _content_length(header: bytes) -> int:
    for line in header.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    raise ValueError(f"an answer without a Content-Length: {header!r}")


async def run(plan: Plan) -> Report:
    """Send the requests, and wait for the answers or for the word to leave."""
    told_to_leave = _watch_input()
    clients = await _connect_all(plan)
    answered = asyncio.gather(*(client.ended for client in clients))
    leaving = asyncio.ensure_future(told_to_leave.wait())
    await asyncio.wait((answered, leaving), return_when=asyncio.FIRST_COMPLETED)
    leaving.cancel()
    if not answered.done():
        for number, client in enumerate(clients):
            client.leave(reset=number % 2 == 1)
    await answered
    return _report(clients)


def _watch_input() -> asyncio.Event:
    """Set by the word to leave; the end of the input means nothing."""
    loop, told_to_leave = asyncio.get_running_loop(), asyncio.Event()

    def read() -> None:
        loop.remove_reader(sys.stdin.fileno())
        if sys.stdin.buffer.readline() == LEAVE:
            told_to_leave.set()

    loop.add_reader(sys.stdin.fileno(), read)
    return told_to_leave


async def _connect_all(plan: Plan) -> list[_Client]:
    requests = cycle([_request(plan, target) for target in plan.targets])
    began = time.monotonic()
    async with asyncio.TaskGroup() as connecting:
        tasks = []
        for number, request in zip(range(plan.clients), requests, strict=False):
            planned_at = began + number / plan.per_second
            await asyncio.sleep(max(0, planned_at - time.monotonic()))
            client = _Client(request, planned_at, stays=plan.stays)
            tasks.append(connecting.create_task(_connect(plan.port, client)))
    return [task.result() for task in tasks]


async def _connect(port: int, client: _Client) -> _Client:
    await asyncio.get_running_loop().create_connection(lambda: client, HOST, port)
    return client


def _request(plan: Plan, target: str) -> bytes:
    return (
        f"GET {target} HTTP/1.1\r\nHost: {HOST}:{plan.port}\r\n"
        f"Authorization: Bearer {plan.token}\r\nAccept: application/json\r\n\r\n"
    ).encode()


def _report(clients: list[_Client]) -> Report:
    ends = [client.ended_at for client in clients]
    return Report(
        outcomes=dict(Counter(client.outcome for client in clients)),
        first_at=min(ends),
        last_at=max(ends),
        seconds=[client.ended_at - client.planned_at for client in clients],
    )


if __name__ == "__main__":
    plan = Plan(**json.loads(sys.argv[1]))
    allow_open_files(plan.clients)
    print(json.dumps(asdict(asyncio.run(run(plan)))))
