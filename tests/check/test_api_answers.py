"""What the validation API is asked, and what becomes of each answer, sensible or not."""

import gzip
import json
import logging
from dataclasses import replace
from typing import Any

import pytest
import trio

from service.check.api import PATIENCE
from service.check.domain_check import open_domain_check
from service.errors import IOInsideTransaction, SettingsError
from service.outbound import holding_connection
from service.settings import Settings
from tests.check.checking import (
    API_KEY,
    HASTY,
    api_settings,
    ask_api,
    asking_api,
    counted,
    open_sockets,
    says,
)
from tests.scripted_http import Answer, Drip, Drop, Hang, Reply, ScriptedHttp
from tests.servers import wait_until

HALF = b'HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n{"verdict": "valid'
ENDLESS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def elsewhere(status: int) -> Reply:
    return Reply(status, headers={"Location": "https://eve.example.net/check?domain=x"})


async def test_the_request_is_as_documented() -> None:
    with ScriptedHttp(says()) as server:
        await ask_api(server)
    (request,) = server.requests
    assert (request.method, request.target) == ("GET", "/v1/check?domain=example.com")
    assert request.headers["authorization"] == f"Bearer {API_KEY}"
    assert request.headers["accept"] == "application/json"
    assert request.headers["accept-encoding"] == "identity"


async def test_what_the_url_asks_for_already_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    with ScriptedHttp(Reply(401)) as server:
        url = f"{server.url}/check?token=geheim%2B5&format="
        settings = api_settings(server.url).model_copy(update={"enrich_api_url": url})
        async with open_domain_check(settings) as check:
            await check.check("xn--bcher-kva.example.org")
    query = {"token": "geheim+5", "format": "", "domain": "xn--bcher-kva.example.org"}
    assert server.requests[0].query == query
    assert caplog.records
    assert "geheim" not in caplog.text


async def test_without_a_key_none_is_sent() -> None:
    with ScriptedHttp(says()) as server:
        await ask_api(server, enrich_api_key=None)
    assert "authorization" not in server.requests[0].headers


@pytest.mark.parametrize(
    ("reply", "verdict", "detail"),
    [
        (says("valid"), "valid", "the validation API says that it takes mail"),
        (says("invalid"), "invalid", "the validation API says that it takes no mail"),
        (says("unknown"), "unknown", "the validation API does not know"),
        (says("invalid", "No such\x00 domain.\r\n"), "invalid", "No such domain."),
        (says("valid", " \n"), "valid", "the validation API says that it takes mail"),
        (says("valid", "é" * 5000), "valid", "é" * 300),
        (says("invalid", f"Seen {API_KEY}."), "invalid", "Seen [ENRICH_API_KEY]."),
        (Reply(200, b'{"verdict": "valid"}', content_type="text/html"), "valid", None),
        (Reply.json({"verdict": "valid", "score": 0.9, "more": [{}]}), "valid", None),
        (replace(says(), headers={"Retry-After": "3600"}), "valid", None),
    ],
)
async def test_its_verdict_is_taken(reply: Reply, verdict: str, detail: str | None) -> None:
    with ScriptedHttp(reply) as server:
        found = await ask_api(server)
    assert (found.verdict, found.reason, found.was_asked) == (verdict, "api", True)
    assert detail is None or found.detail == detail


@pytest.mark.parametrize(
    ("answer", "reason", "told"),
    [
        (Reply(200, b"<html><h1>Welcome</h1>", content_type="text/html"), "api_garbled", "<h1>Wel"),
        (Reply(200), "api_garbled", "200 without a verdict"),
        (Reply(200, b"\xff\xfe\x00"), "api_garbled", "200 without a verdict"),
        (Reply(200, b'{"verdict": "val'), "api_garbled", "200 without a verdict"),
        (Reply(200, b"[" * 60_000), "api_garbled", "200 without a verdict"),
        (Reply.json([]), "api_garbled", "200 without a verdict"),
        (Reply.json(None), "api_garbled", "200 without a verdict"),
        (Reply.json({}), "api_garbled", "200 without a verdict"),
        (says(True), "api_garbled", "200 without a verdict"),
        (says("VALID"), "api_garbled", "200 without a verdict"),
        (says("deliverable"), "api_garbled", "200 without a verdict"),
        (says(["valid"]), "api_garbled", "200 without a verdict"),
        (says("valid", "\ud800"), "api_garbled", "200 without a verdict"),
        (says("valid", 5), "api_garbled", "200 without a verdict"),
        (Reply.json({"error": {"message": "Over quota"}}), "api_garbled", "verdict: Over quota"),
        (Reply(200, gzip.compress(b'{"verdict": "valid"}')), "api_garbled", "without a verdict"),
        (replace(says(), body=b" " * 65_536 + says().body), "api_garbled", "more than 65536 bytes"),
        (Reply(200, b" " * 50_000_000), "api_garbled", "more than 65536 bytes"),
        (Reply(204), "api_garbled", "the validation API: 204"),
        (elsewhere(301), "api_garbled", "301 https://eve.example.net/check?domain=x, and redire"),
        (elsewhere(302), "api_garbled", "redirects are not followed"),
        (elsewhere(308), "api_garbled", "redirects are not followed"),
        (Reply(304), "api_garbled", "304, and redirects"),
        (Reply.json({"message": "Wrong key"}, 401), "api_refused", "401 Wrong key (look at ENRICH"),
        (Reply(403), "api_refused", "403 (look at ENRICH_API_KEY)"),
        (Reply(400, b"What?"), "api_error", "the validation API: 400 What?"),
        (Reply(404), "api_error", "404"),
        (Reply(500, b"Out of\x00 order"), "api_error", "500 Out of order"),
        (Reply(502, b"<html>Bad Gateway"), "api_error", "502 <html>Bad Gateway"),
        (Reply(503), "api_error", "503"),
        (Drop(), "api_unreachable", "Error"),
        (Drop(HALF), "api_unreachable", "Error"),
        (Drop(b"220 mail.example.com ESMTP\r\n"), "api_unreachable", "RemoteProtocolError"),
        (Drop(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000), "api_unreachable", "RemoteProtocol"),
        (Hang(), "api_timeout", "no answer within 0.4 s"),
        (Hang(HALF), "api_timeout", "no answer within 0.4 s"),
        (Drip(ENDLESS, b"1\r\n \r\n"), "api_timeout", "no answer within 0.4 s"),
        (Drip(b"HTTP/1.1 200 OK\r\n", b"X: 1\r\n"), "api_timeout", "no answer within 0.4 s"),
    ],
)
async def test_all_else_is_unknown_with_its_reason(answer: Answer, reason: str, told: str) -> None:
    before = open_sockets()
    timeout_seconds = 0.4 if reason == "api_timeout" else 10
    with ScriptedHttp(answer) as server:
        began = trio.current_time()
        found = await ask_api(server, enrich_timeout_seconds=timeout_seconds)
        assert trio.current_time() - began < 4
    assert (found.verdict, found.reason, found.was_asked) == ("unknown", reason, True)
    assert told in found.detail
    assert found.detail.isprintable()
    assert len(found.detail) < 400
    assert len(server.requests) == 1
    assert open_sockets() <= before


async def test_nobody_there() -> None:
    with ScriptedHttp(says()) as gone:
        pass
    found = await ask_api(gone)
    assert (found.verdict, found.reason) == ("unknown", "api_unreachable")
    assert "ConnectError" in found.detail


async def test_a_refused_key_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    with ScriptedHttp(Reply(401), Reply(403), says(), Reply(401)) as server:
        async with asking_api(server, PATIENCE) as check:
            for expected in ("api_refused", "api_refused", "api", "api_refused"):
                assert (await check.check("example.com")).reason == expected
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2
    assert all("ENRICH_API_KEY" in one and server.url in one for one in told)
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


@pytest.mark.parametrize(
    "answer",
    [
        Reply.json({"message": f"Wrong key {API_KEY}."}, 401),
        Reply(500, f"<p>Bearer {API_KEY}</p>".encode()),
        Reply(400, json.dumps({"key": API_KEY}).replace("/", "\\/").encode()),
        Reply(302, headers={"Location": f"https://example.net/?key={API_KEY}"}),
        Drop(f"HTTP/1.1 {API_KEY}\r\n\r\n".encode()),
        Reply(200, b"x" * 250 + API_KEY.encode()),
        says("invalid", API_KEY, headers={"X-Key": API_KEY}),
        Reply(429, API_KEY.encode(), headers={"Retry-After": API_KEY}),
    ],
)
async def test_the_key_is_told_to_nobody(answer: Answer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with ScriptedHttp(answer) as server:
        async with asking_api(server, replace(HASTY, max_wait_seconds=0.1)) as check:
            for _ in range(4):
                logging.getLogger("test").info("%r", await check.check("example.com"))
            logging.getLogger("test").info("%r", vars(check))
    assert API_KEY[:8] not in caplog.text


async def test_a_cancelled_check_closes_its_connection() -> None:
    before = open_sockets()
    with ScriptedHttp(Hang()) as server:
        async with asking_api(server) as check, trio.open_nursery() as nursery:
            nursery.start_soon(check.check, "example.com")
            await trio.to_thread.run_sync(wait_until, lambda: server.requests)
            nursery.cancel_scope.cancel()
        await trio.to_thread.run_sync(wait_until, lambda: server.hung_up == 1)
    assert open_sockets() <= before


async def test_inside_a_transaction_it_is_refused() -> None:
    with ScriptedHttp(says()) as server:
        async with open_domain_check(api_settings(server.url)) as check:
            with holding_connection("rows.py:17"), pytest.raises(IOInsideTransaction) as caught:
                await check.check("example.com")
    assert "a call to the validation API" in str(caught.value)
    assert server.requests == []


# Which check it is


async def test_the_api_is_asked_where_there_is_one() -> None:
    before = counted("domain_checks_total", outcome="api")
    with ScriptedHttp(says()) as server:
        async with open_domain_check(api_settings(server.url)) as check:
            assert (await check.check("example.com")).reason == "api"
            assert check.pause_seconds == 0
    assert counted("domain_checks_total", outcome="api") == before + 1


@pytest.mark.parametrize(
    ("setting", "value", "told"),
    [
        ("enrich_api_key", "key-test\n", "ENRICH_API_KEY: must be"),
        ("enrich_api_key", "clé", "ENRICH_API_KEY: must be"),
        ("enrich_api_url", "https://anna:pass@api.example.com/", "ENRICH_API_URL: no user"),
        ("enrich_api_url", "https://api.example.com:99999/", "ENRICH_API_URL: "),
        ("enrich_api_url", "https://[::1/", "ENRICH_API_URL: "),
    ],
)
async def test_a_setting_that_cannot_work_stops_the_start(
    setting: str, value: Any, told: str
) -> None:
    fields: dict[str, Any] = {"enrich_api_url": "https://api.example.com", "enrich_api_key": "k"}
    settings = Settings(**{**fields, setting: value})
    with pytest.raises(SettingsError, match=told) as caught:
        async with open_domain_check(settings):
            raise AssertionError("it was opened")
    assert str(value) not in str(caught.value)


async def test_no_cookie_is_kept() -> None:
    with ScriptedHttp(says(headers={"Set-Cookie": "trail=1; Path=/"}), says()) as server:
        async with asking_api(server) as check:
            for domain in ("example.com", "example.org"):
                assert (await check.check(domain)).verdict == "valid"
    assert not [one for one in server.requests if "cookie" in one.headers]
