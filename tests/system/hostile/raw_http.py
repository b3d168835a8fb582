"""Requests as they go over the wire, and what comes back: no answer but one that makes sense."""

import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass

import httpx

from tests.system.api import Api


@dataclass(frozen=True)
class Answer:
    """What came over a raw socket."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def check_decent(status: int, content_type: str, body: bytes) -> None:
    """No crash, and no error but as a problem document; the HTTP layer's own have no content."""
    assert status != 500
    if status >= 400 and body:
        assert content_type == "application/problem+json"
        document = json.loads(body)
        assert document["status"] == status
        assert {"type", "title", "detail"} <= document.keys()


def check_response(response: httpx.Response) -> httpx.Response:
    check_decent(response.status_code, response.headers["content-type"], response.content)
    return response


def request_bytes(
    target: str | bytes, *headers: bytes, method: bytes = b"GET", body: bytes = b""
) -> bytes:
    """A request as it goes over the wire, the last of its connection."""
    target = target.encode("latin-1") if isinstance(target, str) else target
    lines = [method + b" " + target + b" HTTP/1.1", b"Host: localhost", *headers]
    return b"\r\n".join([*lines, b"Connection: close", b"", body])


def bearer(token: str) -> bytes:
    return f"Authorization: Bearer {token}".encode()


def connect(api: Api) -> socket.socket:
    return socket.create_connection(("127.0.0.1", api.replica.http_port), timeout=15)


def exchange(api: Api, data: bytes) -> list[Answer]:
    """Send this, and read until the server closes."""
    received = b""
    with connect(api) as sock:
        try:
            sock.sendall(data)
            while piece := sock.recv(65536):
                received += piece
        except ConnectionError:
            pass  # it was refused before all of it was sent
    answers = read_answers(received)
    for answer in answers:
        check_decent(answer.status, answer.headers.get("content-type", ""), answer.body)
    return answers


def read_answers(data: bytes) -> list[Answer]:
    answers = []
    while data:
        head, _, rest = data.partition(b"\r\n\r\n")
        status_line, *lines = head.decode("latin-1").split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        size = int(headers.get("content-length", 0))
        answers.append(Answer(int(status_line.split(" ")[1]), headers, rest[:size]))
        data = rest[size:]
    return answers


def status_of(api: Api, target: str, token: str) -> int:
    """The status of a GET whose target goes over the wire exactly so."""
    (answer,) = exchange(api, request_bytes(target, bearer(token)))
    return answer.status
