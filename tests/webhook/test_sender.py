"""One event over real HTTP: what is sent, what counts as delivered, and what never happens."""

import json
import logging
import ssl
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
import trio
import trustme
from standardwebhooks import Webhook, WebhookVerificationError

from service.db.pool import Database
from service.errors import IOInsideTransaction, SettingsError, TryLater
from service.webhook import WebhookSender
from tests.scripted_http import Drop, Hang, Reply, ScriptedHttp
from tests.servers.process import free_port
from tests.webhook.events import SECRET

PAYLOAD = json.dumps({"type": "request.completed", "data": {"subject": "ä 😀 \u2028"}})
TOKEN = "geheim%2B5"
BIG = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n" + b"x" * 100_000


def sender(
    url: str, *, allow_private: bool = True, timeout_seconds: float = 10, secret: str = SECRET
) -> WebhookSender:
    return WebhookSender(url, secret, allow_private=allow_private, timeout_seconds=timeout_seconds)


async def send(one: WebhookSender) -> None:
    await one.send("msg_1", datetime.now(UTC), PAYLOAD)


async def failure(one: WebhookSender) -> TryLater:
    """The error of an attempt that has to fail."""
    with pytest.raises(TryLater) as caught:
        await send(one)
    return caught.value


class Names(trio.abc.HostnameResolver):
    """Gives every name these addresses, or with none keeps silent; `asked` is what it was asked."""

    def __init__(self, *addresses: str) -> None:
        self.addresses: Sequence[str] = addresses
        self.asked: list[object] = []

    async def getaddrinfo(  # type: ignore[no-untyped-def]
        self,
        host,
        port,
        family=0,
        type=0,  # noqa: A002
        proto=0,
        flags=0,  # noqa: ARG002
    ):
        self.asked.append(host)
        if not self.addresses:
            await trio.sleep_forever()
        return [(family, type, proto, "", (one, port or 0)) for one in self.addresses]

    async def getnameinfo(self, sockaddr, flags):  # type: ignore[no-untyped-def]
        raise NotImplementedError


def knows(*addresses: str) -> Names:
    names = Names(*addresses)
    trio.socket.set_custom_hostname_resolver(names)  # for this run of Trio
    return names


async def test_an_event_is_posted_as_it_is_and_signed() -> None:
    with ScriptedHttp(Reply(204)) as server:
        await send(sender(f"{server.url}/hook?token={TOKEN}"))
    (request,) = server.requests
    assert (request.method, request.target) == ("POST", f"/hook?token={TOKEN}")
    assert request.body == PAYLOAD.encode()
    assert request.headers["host"] == server.url.removeprefix("http://")
    assert request.headers["content-type"] == "application/json"
    assert request.headers["user-agent"].startswith("mailroom/")
    assert request.headers["webhook-id"] == "msg_1"
    assert abs(int(request.headers["webhook-timestamp"]) - time.time()) < 60
    headers = dict(request.headers)
    assert Webhook(SECRET).verify(request.body, headers) == json.loads(PAYLOAD)
    for wrong in ({"webhook-id": "msg_2"}, {"webhook-timestamp": str(int(time.time()) - 9)}):
        with pytest.raises(WebhookVerificationError):
            Webhook(SECRET).verify(request.body, headers | wrong)
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRET).verify(request.body + b" ", headers)


async def test_the_time_is_utc_whatever_the_zone_of_the_stamp() -> None:
    zone = timezone(timedelta(hours=5, minutes=30))
    with ScriptedHttp(Reply(200)) as server:
        await sender(server.url).send("msg_1", datetime.now(zone), PAYLOAD)
    (request,) = server.requests
    Webhook(SECRET).verify(request.body, dict(request.headers))


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
async def test_each_2xx_is_a_delivery(status: int) -> None:
    with ScriptedHttp(Reply(status)) as server:
        await send(sender(server.url))


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (Reply(500), "answered with 500 Internal Server Error"),
        (Reply(404, b"<html>"), "answered with 404 Not Found"),
        (Reply(410), "answered with 410 Gone"),
        (Reply(599), "answered with 599"),
        (Reply(302, headers={"Location": "/"}), "answered with 302 Found, and redirects are not"),
        (Reply(308, headers={"Location": "/"}), "308 Permanent Redirect, and redirects are not"),
        (Reply(304), "answered with 304 Not Modified"),
        (Drop(), "the connection broke: "),
        (Drop(b"HTTP/1.1 200"), "the connection broke: "),
        (Drop(b"220 mail.example.com ESMTP\r\n"), "the connection broke: "),
        (Drop(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000), "the connection broke: "),
    ],
)
async def test_all_else_is_a_failure_with_its_reason(answer: Reply | Drop, expected: str) -> None:
    with ScriptedHttp(answer, Reply(200)) as server:
        assert expected in str(await failure(sender(server.url)))
        assert len(server.requests) == 1, "it must neither be followed nor sent twice"


@pytest.mark.parametrize(
    ("value", "seconds"), [("120", 120.0), ("soon", None), ("99999999999", 86_400.0)]
)
async def test_the_receiver_may_say_when_to_come_back(value: str, seconds: float | None) -> None:
    with ScriptedHttp(Reply(429, headers={"Retry-After": value})) as server:
        error = await failure(sender(server.url))
    assert str(error) == "answered with 429 Too Many Requests"
    assert error.retry_after_seconds == seconds


@pytest.mark.parametrize("before", [b"", b"HTTP/1.1 200 OK\r\nX-Slow:"])
async def test_a_receiver_that_hangs_is_left_in_time(before: bytes) -> None:
    with ScriptedHttp(Hang(before)) as server:
        began = trio.current_time()
        error = await failure(sender(server.url, timeout_seconds=0.3))
        assert str(error) == "no answer within 0.3 s"
        assert trio.current_time() - began < 2
    assert server.hung_up == 1


async def test_the_body_of_the_answer_is_not_waited_for() -> None:
    with ScriptedHttp(Hang(BIG)) as server, trio.fail_after(5):
        await send(sender(server.url))


async def test_nobody_listens_or_the_name_is_unknown() -> None:
    error = await failure(sender(f"http://127.0.0.1:{free_port()}/"))
    assert str(error).startswith("cannot connect to 127.0.0.1: ")
    assert "Connection refused" in str(error)
    error = await failure(sender("https://nobody.invalid/hook"))
    assert str(error).startswith("nobody.invalid cannot be resolved: ")
    error = await failure(sender(f"https://{'a' * 70}.example.com/hook"))
    assert "cannot be resolved: " in str(error)


async def test_a_resolver_that_hangs_is_left_in_time() -> None:
    knows()
    error = await failure(sender("https://hook.example.com/", timeout_seconds=0.2))
    assert str(error) == "no answer within 0.2 s"


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "127.0.0.1",
        "127.1",
        "0x7f000001",
        "2130706433",
        "0",
        "[::1]",
        "[::ffff:7f00:1]",
    ],
)
async def test_a_private_receiver_is_refused_before_a_connection(host: str) -> None:
    with ScriptedHttp(Reply(200)) as server:
        port = server.server_address[1]
        error = await failure(sender(f"http://{host}:{port}/", allow_private=False))
        assert "private address" in str(error)
        assert "WEBHOOK_ALLOW_PRIVATE" in str(error)
    assert server.requests == []


async def test_one_private_address_among_public_ones_is_enough_to_refuse() -> None:
    knows("1.1.1.1", "127.0.0.1")
    error = await failure(sender("https://hook.example.com/", allow_private=False))
    assert str(error).startswith("hook.example.com has the private address 127.0.0.1; ")


async def test_the_name_is_asked_for_once_and_its_addresses_are_tried_in_turn() -> None:
    names = knows("127.0.0.2", "127.0.0.1")
    with ScriptedHttp(Reply(200)) as server:
        port = server.server_address[1]
        await send(sender(f"http://hook.example.com:{port}/"))
    assert names.asked == [b"hook.example.com"]
    (request,) = server.requests
    assert request.headers["host"] == f"hook.example.com:{port}"


def https(server: ScriptedHttp, ca: trustme.CA, name: str) -> str:
    """Make it speak TLS as this name; the end of its URL."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert(name).configure_cert(context)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    return f":{server.server_address[1]}/hook"


@pytest.fixture
def ca(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> trustme.CA:
    """One that SSL_CERT_FILE names."""
    ca = trustme.CA()
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    return ca


@pytest.mark.parametrize("host", ["hook.example.com", "hook.example.com.", "HOOK.example.com"])
async def test_the_certificate_is_verified_for_the_name_of_the_url(
    ca: trustme.CA, host: str
) -> None:
    knows("127.0.0.1")
    server = ScriptedHttp(Reply(200))
    end = https(server, ca, "hook.example.com")
    with server:
        await send(sender(f"https://{host}{end}"))
        error = await failure(sender(f"https://other.example.com{end}"))
        assert "certificate is not valid for 'other.example.com'" in str(error)
    assert len(server.requests) == 1


async def test_an_address_as_the_host_has_a_certificate_too(ca: trustme.CA) -> None:
    server = ScriptedHttp(Reply(200))
    end = https(server, ca, "127.0.0.1")
    with server:
        await send(sender(f"https://127.0.0.1{end}"))
    assert len(server.requests) == 1


async def test_a_certificate_of_nobody_known_is_refused(ca: trustme.CA) -> None:
    knows("127.0.0.1")
    server = ScriptedHttp(Reply(200))
    end = https(server, trustme.CA(), "hook.example.com")
    with server:
        error = await failure(sender(f"https://hook.example.com{end}"))
    assert "certificate verify failed" in str(error)
    assert server.requests == []


async def test_a_tls_handshake_that_hangs_is_left_with_its_connection_closed() -> None:
    listener = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener[0].socket.getsockname()[1]
    async with listener[0], trio.open_nursery() as nursery:
        with trio.fail_after(5):
            nursery.start_soon(failure, sender(f"https://127.0.0.1:{port}", timeout_seconds=0.3))
            async with await listener[0].accept() as client:
                while await client.receive_some():
                    pass


async def test_a_proxy_of_the_environment_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    with ScriptedHttp(Reply(200)) as server:
        await send(sender(server.url))


async def test_nothing_is_sent_inside_a_transaction(db: Database) -> None:
    with ScriptedHttp(Reply(200)) as server:
        one = sender(server.url)
        async with db.transaction():
            with pytest.raises(IOInsideTransaction, match="a webhook to http"):
                await send(one)
    assert server.requests == []


async def test_the_token_in_the_url_and_the_secret_are_told_to_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    with ScriptedHttp(Reply(200), Reply(302, headers={"Location": "/"}), Drop()) as server:
        one = sender(f"{server.url}/{TOKEN}?token={TOKEN}")
        await send(one)
        said = [one.receiver, *[str(await failure(one)) for _ in range(2)]]
    said.append(str(await failure(sender(f"http://127.0.0.1:{free_port()}/{TOKEN}"))))
    said += [record.getMessage() for record in caplog.records]
    assert "geheim" not in "\n".join(said)
    assert SECRET.removeprefix("whsec_") not in "\n".join(said)


@pytest.mark.parametrize(
    "url",
    [
        "http://[::1",
        "https://h:99999/",
        "https://h:0/",
        "https://anna:geheim@example.com/",
        "https://:80/",
    ],
)
def test_an_url_that_cannot_be_one_is_told_at_the_start(url: str) -> None:
    with pytest.raises(SettingsError, match=r"^WEBHOOK_URL: ") as caught:
        sender(url)
    assert "geheim" not in str(caught.value)
