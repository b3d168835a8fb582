"""Bytes that are hardly HTTP, impossible headers, and clients that break off, stop or leave.

Whatever comes, the answer is a document that makes sense, and nobody else is held up.
"""

import itertools
import json
import socket
import struct
from contextlib import suppress
from pathlib import Path

import httpx
import psutil
import pytest

from tests.bounds import MEGABYTE, at_most
from tests.servers import wait_until
from tests.system.api import Api, open_api
from tests.system.hostile.mailbox import IN_FLIGHT, OpenMailbox, mails
from tests.system.hostile.raw_http import bearer, check_response, connect, exchange, request_bytes


@pytest.mark.parametrize(
    "data",
    [
        b"\r\n\r\n",
        b"\x00\xff\xfe\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500) + b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /healthz\r\n\r\n",
        b"GET http://[::1/healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
        b"GET ?x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
        b"GET * HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
        b"GET /a b c HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost : a\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: a\r\nX\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: a\r\nX: a\x00b\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 100_000 + b"\r\n\r\n",
        b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
        b"POST /healthz HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
        b"POST /healthz HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx",
        b"POST /healthz HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
    ],
    ids=lambda data: ascii(data[:50]),
)
def test_what_is_no_request_is_turned_away(api: Api, data: bytes) -> None:
    statuses = [answer.status for answer in exchange(api, data)]
    assert all(400 <= status < 500 for status in statuses), statuses


BROKEN = [
    b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET /healthz HTTP/1.0\r\n\r\n",
    b"POST /healthz HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
    b"POST /healthz HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n",
    b"POST /healthz HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nabc",
    b"garbage\r\n\r\n",
]


def test_a_thousand_connections_that_break_off_break_nothing_else(api: Api) -> None:
    """Some wait for an answer, some do not, some end with a reset."""
    for number, data in zip(range(1000), itertools.cycle(BROKEN), strict=False):
        with connect(api) as sock:
            sock.sendall(data)
            if number % 3:
                sock.settimeout(0.02)
                with suppress(OSError):
                    sock.recv(1000)
            if number % 5 == 0:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert api.replica.process.poll() is None


def test_a_client_that_does_not_read_does_not_keep_the_service_from_ending(
    database_url: str, tmp_path: Path
) -> None:
    """More is asked for than the buffers of a connection take."""
    request = b"GET /docs/assets/swagger-ui-bundle.js HTTP/1.1\r\nHost: a\r\n\r\n"
    asset = {"route": "/docs/assets/<name>", "status": "200"}
    with open_api(tmp_path, database_url) as api, connect(api) as sock:
        sock.sendall(20 * request)
        wait_until(lambda: api.metric("mailroom_http_requests_total", **asset) > 0)
        assert api.replica.stop(seconds=10) == 0


def test_a_connection_that_its_client_has_closed_is_gone_at_once(api: Api) -> None:
    process = psutil.Process(api.replica.process.pid)
    for _ in range(20):
        with connect(api) as sock:
            sock.sendall(BROKEN[0])
            assert sock.recv(1000).startswith(b"HTTP/1.1 200")
    wait_until(
        lambda: not [one for one in process.net_connections("tcp") if one.status == "CLOSE_WAIT"],
        seconds=2,
    )


@pytest.mark.parametrize("target", [b"/healthz", b"healthz", b"http://b/healthz", b"/healthz?%ff"])
@pytest.mark.parametrize("version", [b"1.0", b"1.1", b"9.9"])
def test_an_unusual_request_is_answered_and_its_connection_closed(
    api: Api, target: bytes, version: bytes
) -> None:
    data = b"GET %b HTTP/%b\r\nHost: a\r\nConnection: close\r\n\r\n" % (target, version)
    (answer,) = exchange(api, data)
    assert answer.status in (200, 404)


@pytest.mark.parametrize("path", ["/healthz", "/nothing", "/docs/errors/email/messages/x", "/api"])
@pytest.mark.parametrize(
    "host",
    [
        *[b"", b" ", b"<script>", b"a b", b"a:b:c", b"a:99999999", b"[::1", b"a/b?c#d", b"a@b"],
        *[b'"', b"\\", b"\xff\xfe", b"xn--\x80", b"x" * 5000, b"a,b", b".", b"..", b":80", b"-"],
        b"%00",
    ],
    ids=lambda host: ascii(host[:20]),
)
def test_any_host_gets_a_decent_answer(api: Api, host: bytes, path: str) -> None:
    data = b"GET %b HTTP/1.1\r\nHost: %b\r\nConnection: close\r\n\r\n" % (path.encode(), host)
    (answer,) = exchange(api, data)
    assert answer.status in (200, 400, 404)
    assert b"<script>" not in answer.body


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_a_problem_without_a_host_is_complete(api: Api, version: bytes) -> None:
    """HTTP/1.0 knows no Host."""
    answers = exchange(api, b"GET /nothing HTTP/%b\r\nConnection: close\r\n\r\n" % version)
    assert [answer.status for answer in answers] in ([400], [404])


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"Bearer",
        b"Bearer ",
        b"Bearer\t",
        b"bearer x",
        b"Bearer x y z",
        b"Bearer \xff\xfe\xfd",
        "Bearer 🦊".encode(),
        b"Bearer \xed\xa0\x80",
        b"\xff \xff",
        b"Basic dXNlcjpwYXNz",
        b"Digest username=x, realm=",
        b"Basic",
        b"Basic \xff",
        b"Basic " + b"=" * 100,
        b"Bearer %00",
        b"Bearer '; DROP TABLE api_token; --",
        b"Bearer " + b"x" * 10_000,
        b"Bearer, Bearer",
    ],
    ids=lambda value: ascii(value[:30]),
)
def test_a_wrong_authorization_is_unauthorized(api: Api, value: bytes) -> None:
    data = request_bytes(api.messages("a@example.com"), b"Authorization: " + value)
    (answer,) = exchange(api, data)
    assert answer.status == 401
    assert answer.headers["www-authenticate"].startswith("bearer")


@pytest.mark.parametrize("value", [b"Bearer a\x00b", b"Bearer " + b"x" * MEGABYTE, b"Bearer a\rb"])
def test_an_impossible_authorization_is_turned_away(api: Api, value: bytes) -> None:
    answers = exchange(
        api, request_bytes(api.messages("a@example.com"), b"Authorization: " + value)
    )
    assert all(400 <= answer.status < 500 for answer in answers)


def test_two_authorizations_give_no_more_rights(api: Api, token: str) -> None:
    headers = (b"Authorization: Bearer x", bearer(token))
    (answer,) = exchange(api, request_bytes(api.messages("a@example.com"), *headers))
    assert answer.status in (401, 404)


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "TRACE", "FOO", "🦊"])
@pytest.mark.parametrize("rest", ["", ":await", "/1"])
def test_other_methods_are_not_allowed(
    open_mailbox: OpenMailbox, token: str, method: str, rest: str
) -> None:
    mailbox = open_mailbox(mails(1))
    headers = (bearer(token), b"Content-Length: 9", b"Content-Type: application/json")
    data = request_bytes(mailbox.path(rest), *headers, method=method.encode(), body=b'{"a": 1}\n')
    (answer,) = exchange(mailbox.api, data)
    assert answer.status == (405 if method.isascii() else 400)
    if method.isascii():
        assert set(answer.headers["allow"].split(", ")) >= {"get", "head"}
    assert mailbox.server.connections_total == 0


def test_head_and_options(open_mailbox: OpenMailbox) -> None:
    mailbox = open_mailbox(mails(1))
    head = mailbox.client.head(mailbox.path())
    assert (head.status_code, head.content) == (200, b"")
    assert mailbox.client.head(mailbox.path("/99")).status_code == 404
    assert mailbox.client.head(mailbox.path(":await"), params={"timeout": 0}).status_code == 200
    assert check_response(mailbox.client.options(mailbox.path())).status_code in (200, 405)


def test_a_get_with_a_body_is_answered(open_mailbox: OpenMailbox, token: str) -> None:
    mailbox = open_mailbox(mails(1))
    headers = (bearer(token), b"Content-Type: application/json", b"Content-Length: 1000000")
    data = request_bytes(mailbox.path(), *headers, body=b"x" * 1_000_000)
    (answer,) = exchange(mailbox.api, data)
    assert answer.status in (200, 413)


def test_pipelined_requests_are_answered_in_order(open_mailbox: OpenMailbox, token: str) -> None:
    mailbox = open_mailbox(mails(1))
    targets = [mailbox.path("/1"), "/healthz", mailbox.path("/9"), mailbox.path()]
    kept_open = [
        request_bytes(target, bearer(token)).replace(b"Connection: close\r\n", b"")
        for target in targets
    ]
    answers = exchange(mailbox.api, b"".join([*kept_open, request_bytes("/nothing")]))
    assert [answer.status for answer in answers] == [200, 200, 404, 200, 404]
    assert json.loads(answers[0].body)["meta"]["imap_search"] == "UID 1"


def test_clients_that_stop_in_the_middle_of_a_request_hold_nobody_up(
    api: Api, client: httpx.Client
) -> None:
    halves = [b"", b"G", b"GET /healthz HT", b"GET /healthz HTTP/1.1\r\nHost: a\r\n"]
    sockets = []
    try:
        for half in halves * 10:
            sockets.append(connect(api))
            sockets[-1].sendall(half)
        with at_most(5):
            assert client.get("/healthz").status_code == 200
    finally:
        for sock in sockets:
            sock.close()


def test_a_connection_that_nobody_uses_is_closed(api: Api) -> None:
    with connect(api) as sock:
        sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
        assert sock.recv(65536)
        with at_most(10):
            assert sock.recv(65536) in (b'{"status":"alive"}\n', b"")
            assert sock.recv(65536) == b""


def leave(sock: socket.socket, *, reset: bool) -> None:
    if reset:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


@pytest.mark.parametrize("reset", [False, True], ids=["fin", "rst"])
def test_clients_that_leave_a_wait_free_their_slots(
    open_mailbox: OpenMailbox, token: str, reset: bool
) -> None:
    mailbox = open_mailbox()
    target = f"{mailbox.path(':await')}?timeout=100"
    sockets = [connect(mailbox.api) for _ in range(10)]
    for sock in sockets:
        sock.sendall(request_bytes(target, bearer(token)))
    wait_until(lambda: mailbox.api.metric(IN_FLIGHT) == 10)
    for sock in sockets:
        leave(sock, reset=reset)
    wait_until(lambda: mailbox.api.metric(IN_FLIGHT) == 0)
    wait_until(lambda: mailbox.server.connections_open == 0)
