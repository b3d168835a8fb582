"""An endpoint that is slow, away, overloaded or set up wrongly: what is tried again, and told."""

import gzip
import json
import logging
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
import trio
from prometheus_client import REGISTRY

from service.errors import ReadFailed, TryLater
from tests.llm.endpoint import (
    API_KEY,
    HASTY,
    OUTPUT,
    ask,
    asking,
    completion,
    counted,
    document,
    failure,
)
from tests.scripted_http import Drop, Hang, Reply, ScriptedHttp

HALF_AN_ANSWER = b'HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n{"choices": ['
PAGE = Reply(200, b"<html><h1>Welcome</h1></html>", content_type="text/html")


async def later(server: ScriptedHttp, **settings: float) -> TryLater:
    """The TryLater that asking ends in."""
    with pytest.raises(TryLater) as caught:
        await ask(server, **settings)
    return caught.value


@pytest.mark.parametrize(
    "trouble",
    [
        pytest.param(failure(500), id="500"),
        pytest.param(Reply(502, b"<html>Bad Gateway</html>"), id="502"),
        pytest.param(failure(503), id="503"),
        pytest.param(failure(429), id="429"),
        pytest.param(failure(408), id="408"),
        pytest.param(failure(409), id="409"),
        pytest.param(Drop(), id="reset at once"),
        pytest.param(Drop(HALF_AN_ANSWER), id="reset in the middle"),
        pytest.param(Drop(b"220 mail.example.com ESMTP\r\n"), id="no HTTP"),
        pytest.param(PAGE, id="HTML"),
        pytest.param(Reply(200, b'{"choices": [{"mess'), id="truncated"),
        pytest.param(Reply(200, b"\xff\xfe\xfd"), id="no text"),
        pytest.param(Reply(200, b"[" * 100_000), id="nested"),
        pytest.param(Reply.json([]), id="no object"),
        pytest.param(Reply.json({"choices": []}), id="no choices"),
        pytest.param(Reply.json({"choices": [{"message": {"content": [1]}}]}), id="no text in it"),
        pytest.param(Reply.json({"error": {"message": "Overloaded."}}), id="200 with an error"),
        pytest.param(replace(completion(), body=gzip.compress(b"{}")), id="compressed"),
    ],
)
async def test_what_may_pass_is_tried_again(trouble: Reply | Drop) -> None:
    with ScriptedHttp(trouble, completion()) as server:
        answer = await ask(server)
    assert answer["output"] == OUTPUT
    assert answer["calls"] == len(server.requests) == 2
    assert server.requests[0].body == server.requests[1].body


@pytest.mark.parametrize(
    ("trouble", "told", "outcome"),
    [
        (failure(500, "Out of\x00 order."), "500 Out of order.", "server_error"),
        (failure(429, "You exceeded your quota."), "429 You exceeded your quota.", "throttled"),
        (PAGE, "200 with no JSON: <html><h1>Welcome</h1></html>", "garbled"),
        (Reply.json({"error": {"message": "Overloaded."}}), "completion: Overloaded.", "garbled"),
        (Drop(), "Error", "unreachable"),
    ],
)
async def test_after_three_calls_it_is_for_later(
    trouble: Reply | Drop, told: str, outcome: str
) -> None:
    before = counted("calls_total", outcome=outcome)
    with ScriptedHttp(trouble) as server:
        error = await later(server)
    assert str(error).startswith(f"the LLM endpoint {server.url}/v1: ")
    assert told in str(error)
    assert error.retry_after_seconds is None
    assert len(server.requests) == 3
    assert counted("calls_total", outcome=outcome) - before == 3


async def test_nobody_there() -> None:
    with ScriptedHttp(completion()) as gone:
        pass
    assert "ConnectError" in str(await later(gone))


async def test_a_hang_ends_with_the_time_out() -> None:
    with ScriptedHttp(Hang()) as server:
        error = await later(server, llm_timeout_seconds=0.2)
    # The third time-out and the limit for all calls are close to each other.
    assert "no answer within 0.2 s" in str(error) or "not done within 0.6 s" in str(error)
    assert 1 <= server.hung_up == len(server.requests) <= 3


async def test_a_hang_is_tried_again() -> None:
    with ScriptedHttp(Hang(HALF_AN_ANSWER), completion()) as server:
        answer = await ask(server, llm_timeout_seconds=0.5)
    assert answer["calls"] == 2


async def test_an_answer_without_end_is_not_read_to_its_end() -> None:
    endless = Reply(200, b" " * (32 * 1024 * 1024))
    with ScriptedHttp(endless) as server:
        error = await later(server)
    assert "more than 4194304 bytes" in str(error)


# Retry-After


async def test_a_short_retry_after_is_waited_for() -> None:
    began = trio.current_time()
    with ScriptedHttp(failure(429, Retry_After="0.3"), completion()) as server:
        answer = await ask(server)
    assert answer["calls"] == 2
    assert 0.3 <= trio.current_time() - began < 3


@pytest.mark.parametrize("status", [429, 503])
async def test_a_long_retry_after_is_for_the_caller(status: int) -> None:
    with ScriptedHttp(failure(status, Retry_After="90")) as server:
        error = await later(server)
    assert error.retry_after_seconds == 90
    assert len(server.requests) == 1


async def test_retry_after_as_a_date() -> None:
    soon = format_datetime(datetime.now(UTC) + timedelta(minutes=2), usegmt=True)
    with ScriptedHttp(failure(429, Retry_After=soon)) as server:
        error = await later(server)
    assert error.retry_after_seconds == pytest.approx(120, abs=5)


# What waiting does not mend


@pytest.mark.parametrize(
    ("reply", "variable"),
    [
        (failure(401), "LLM_API_KEY"),
        (failure(403), "LLM_API_KEY"),
        (failure(404), "LLM_MODEL"),
        (failure(405), "LLM_BASE_URL"),
        (Reply(301, headers={"Location": "https://llm.example.com/"}), "LLM_BASE_URL"),
        (Reply(204), "LLM_BASE_URL"),
    ],
)
async def test_a_wrong_setting_is_named(reply: Reply, variable: str) -> None:
    with ScriptedHttp(reply) as server:
        error = await later(server)
    assert variable in str(error)
    assert f": {reply.status}" in str(error)
    assert error.retry_after_seconds is not None
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [400, 413, 422])
async def test_a_document_that_is_refused_is_final(status: int) -> None:
    long = "The context\n\tis too \x1b[31mlong. " + "x" * 5000
    with ScriptedHttp(failure(status, long)) as server, pytest.raises(ReadFailed) as caught:
        await ask(server)
    assert caught.value.code == "llm_refused"
    assert f"refused the document: {status} The context is too [31mlong. xxx" in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "reply",
    [
        failure(401, f"Wrong key {API_KEY}."),
        failure(400, "x" * 290 + API_KEY),
        failure(500, f"Authorization: Bearer {API_KEY}"),
        Reply(500, f"<p>Bearer {API_KEY}</p>".encode()),
        Reply(500, API_KEY.replace("/", "\\/").join('""').encode()),  # as PHP writes it
        Reply(500, b'{"headers": {"key": "%s"}}' % API_KEY.replace("/", "\\/").encode()),
        Reply(302, headers={"Location": f"https://llm.example.com/{API_KEY}"}),
        Drop(f"HTTP/1.1 {API_KEY}\r\n\r\n".encode()),
        Drop(f"HTTP/1.1 200 OK\r\n{API_KEY}\r\n\r\n".encode()),
        completion(f"no JSON {API_KEY}"),
        completion(json.dumps({API_KEY: 1})),
        completion(refusal=f"I do not like {API_KEY}."),
        completion(headers={"X-Key": API_KEY}),
    ],
)
async def test_the_key_is_told_to_nobody(
    reply: Reply | Drop, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with ScriptedHttp(reply) as server:
        async with asking(server) as llm:
            try:
                await llm.ask(document())
            except (ReadFailed, TryLater) as error:
                logging.getLogger("test").warning("%r", error, exc_info=error)
    assert API_KEY[:8] not in caplog.text


async def test_retrying_adds_no_metric_and_no_record(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with ScriptedHttp(failure(500), completion()) as server:
        async with asking(server, replace(HASTY, attempts=2)) as llm:
            await llm.ask(document())
    assert not [family.name for family in REGISTRY.collect() if family.name.startswith("stamina")]
    assert not [record for record in caplog.records if record.name.startswith(("stamina", "http"))]
