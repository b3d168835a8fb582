"""The client against a scripted server: one table for blocking, trio and asyncio."""

import asyncio
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from email.utils import format_datetime
from functools import partial
from typing import Any

import httpx
import pytest
import trio

from service.client import (
    Address,
    AsyncMailroomClient,
    Attachment,
    AwaitTimeout,
    ClientError,
    Link,
    MailboxAuthFailed,
    MailroomClient,
    Message,
    ProblemError,
    ServiceUnreachable,
    UnexpectedAnswer,
)
from service.client.answers import parse_retry_after
from service.client.flows import await_message
from tests.scripted_http import PROBLEM_JSON, Drop, Reply, ScriptedHttp

BOX = "box@example.com"
PATH = "/api/v1/email/account/box%40example.com/messages"
TOKEN = "s3cret-t0ken"

FULL = {
    "email_id": "17",
    "message_id": "<abc@example.com>",
    "datetime": "2026-05-19T12:34:56+00:00",
    "sent_at": "2026-05-19T14:34:50+02:00",
    "subject": "Überprüfen",
    "addresses": {
        "from": [{"name": "Ann", "address": "ann@example.org"}],
        "to": [{"name": None, "address": BOX}],
        "cc": [],
        "bcc": [],
        "reply_to": [{"name": "", "address": "answers@example.org"}],
    },
    "message": "Your code is 123456",
    "html": "<p>Your code is 123456</p>",
    "links": [{"url": "https://example.org/verify?t=1", "text": "Verify"}],
    "codes": ["123456"],
    "attachments": [
        {
            "part_id": "2",
            "filename": "a.pdf",
            "content_type": "application/pdf",
            "size_bytes": 9,
            "inline": False,
        }
    ],
    "size_bytes": 4711,
}
BARE = {"email_id": "18", "datetime": "2026-05-19T12:34:57Z"}


def answer(*messages: dict[str, Any], cursor: str | None = "c9") -> Reply:
    meta = {"emails_count": len(messages), "imap_search": "ALL", "cursor": cursor}
    return Reply.json({"data": {"collection": list(messages)}, "meta": meta})


FOUND = answer(FULL)
LATER = {"Retry-After": "0.01"}
HTML = b"<html><title>502 Bad Gateway</title></html>"


def timed_out(cursor: str | None) -> Reply:
    members = {"title": "Request Timeout", "detail": "No matching messages found.", "rounds": 2}
    return Reply.problem(408, "await-timeout", cursor=cursor, **members)


def page(status: int, **headers: str) -> Reply:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply(status, HTML, content_type="text/html", headers=names)


Action = Callable[[Any], Any]
Run = Callable[[str, Action], Any]


def run_blocking(url: str, action: Action) -> Any:
    with MailroomClient(url, TOKEN, transport=httpx.HTTPTransport(verify=False)) as client:
        return action(client)


async def run_async(url: str, action: Action) -> Any:
    transport = httpx.AsyncHTTPTransport(verify=False)
    async with AsyncMailroomClient(url, TOKEN, transport=transport) as client:
        return await action(client)


def run_trio(url: str, action: Action) -> Any:
    return trio.run(run_async, url, action)


def run_asyncio(url: str, action: Action) -> Any:
    return asyncio.run(run_async(url, action))


@pytest.fixture(params=[run_blocking, run_trio, run_asyncio])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs one action on a client of each kind."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def serve() -> Iterator[Callable[..., ScriptedHttp]]:
    """Starts a server with the given script."""
    servers: list[ScriptedHttp] = []

    def start(*script: Reply | Drop) -> ScriptedHttp:
        servers.append(ScriptedHttp(*script).__enter__())
        return servers[-1]

    yield start
    for server in servers:
        server.__exit__()


Serve = Callable[..., ScriptedHttp]


def wait(**arguments: Any) -> Action:
    return lambda client: client.await_message(BOX, **arguments)


def afters(server: ScriptedHttp) -> list[str | None]:
    return [request.query.get("after") for request in server.requests]


# What is asked


def test_everything_that_is_asked_is_on_the_wire(run: Run, serve: Serve) -> None:
    server = serve(FOUND)
    since = datetime(2026, 5, 19, 14, 0, 0, 700_000, timezone(timedelta(hours=2)))
    filters = {"subject": "März & 50% +1", "from_": "ann@", "to": 'a"b\\c'}
    run(server.url, wait(**filters, since=since, after="c/1=", timeout=5))
    [request] = server.requests
    assert request.path == f"{PATH}:await"
    assert request.headers["authorization"] == f"Bearer {TOKEN}"
    # Whole seconds: arrival times have no fraction, and 14:00:00.9 is stored as 14:00:00.
    assert request.query == {
        "filter[subject]": "März & 50% +1",
        "filter[from]": "ann@",
        "filter[to]": 'a"b\\c',
        "since": "2026-05-19T14:00:00+02:00",
        "after": "c/1=",
        "timeout": "5",
    }


def test_what_is_not_given_is_not_sent(run: Run, serve: Serve) -> None:
    server = serve(FOUND)
    run(server.url, wait(since="2026-05-19"))
    assert server.requests[0].query == {"since": "2026-05-19", "timeout": "120"}


@pytest.mark.parametrize(
    ("mailbox", "encoded"),
    [
        ("a/b?c#d@example.com", "a%2Fb%3Fc%23d%40example.com"),
        ("50%40@example.com", "50%2540%40example.com"),
        ("küche@example.com", "k%C3%BCche%40example.com"),
        ("a\r\nb", "a%0D%0Ab"),
    ],
)
def test_a_mailbox_is_one_segment_of_the_path(serve: Serve, mailbox: str, encoded: str) -> None:
    server = serve(FOUND)
    run_blocking(server.url, lambda client: client.await_message(mailbox))
    assert server.requests[0].path == f"/api/v1/email/account/{encoded}/messages:await"


def test_the_service_may_live_below_a_path(serve: Serve) -> None:
    server = serve(FOUND)
    run_blocking(f"{server.url}/mail/", wait())
    assert server.requests[0].path == f"/mail{PATH}:await"


def test_list_and_get(run: Run, serve: Serve) -> None:
    server = serve(answer(FULL, BARE), answer(), FOUND)
    listed = run(server.url, lambda client: client.list_messages(BOX, to="x", limit=2))
    assert ([one.email_id for one in listed], listed.cursor) == (["17", "18"], "c9")
    empty = run(server.url, lambda client: client.list_messages(BOX, after="c9"))
    assert (empty, empty.cursor) == ([], "c9")
    assert run(server.url, lambda client: client.get_message(BOX, "1/7")).email_id == "17"
    assert [(request.path, request.query) for request in server.requests] == [
        (PATH, {"filter[to]": "x", "limit": "2"}),
        (PATH, {"after": "c9"}),
        (f"{PATH}/1%2F7", {}),
    ]


def test_a_time_without_offset_is_refused(run: Run, serve: Serve) -> None:
    naive = datetime(2026, 5, 19)
    with pytest.raises(ValueError, match="no time zone"):
        run("http://127.0.0.1:9", wait(since=naive))


@pytest.mark.parametrize("timeout", [-1, float("nan")])
def test_a_timeout_that_makes_no_sense_is_refused(run: Run, timeout: float) -> None:
    with pytest.raises(ValueError, match="timeout is"):
        run("http://127.0.0.1:9", wait(timeout=timeout))


# What comes back


def test_a_message_has_every_member_of_the_answer(run: Run, serve: Serve) -> None:
    message = run(serve(FOUND).url, wait())
    assert isinstance(message, Message)
    assert message.received_at == datetime(2026, 5, 19, 12, 34, 56, tzinfo=UTC)
    assert message.sent_at is not None
    assert message.sent_at.utcoffset() == timedelta(hours=2)
    assert (message.email_id, message.message_id) == ("17", "<abc@example.com>")
    assert (message.subject, message.text) == ("Überprüfen", "Your code is 123456")
    assert message.html == "<p>Your code is 123456</p>"
    assert message.addresses.from_ == (Address("Ann", "ann@example.org"),)
    assert message.addresses.to == (Address("", BOX),)
    assert message.addresses.reply_to == (Address("", "answers@example.org"),)
    assert message.addresses.cc == message.addresses.bcc == ()
    assert message.links == (Link("https://example.org/verify?t=1", "Verify"),)
    assert message.codes == ("123456",)
    assert message.attachments == (Attachment("2", "a.pdf", "application/pdf", 9, False),)
    assert (message.size_bytes, message.cursor) == (4711, "c9")
    with pytest.raises(AttributeError):
        message.subject = "another"  # type: ignore[misc]


def test_what_a_newer_service_adds_and_an_older_one_lacks(serve: Serve) -> None:
    newer = {**FULL, "spam": {"score": 1}, "links": [{"url": "u", "text": None, "rank": 1}]}
    [full, bare] = run_blocking(
        serve(answer(newer, BARE, cursor=None)).url, lambda client: client.list_messages(BOX)
    )
    assert full.links == (Link("u", ""),)
    assert (bare.sent_at, bare.message_id, bare.html) == (None, None, None)
    assert (bare.subject, bare.text, bare.size_bytes, bare.codes) == ("", "", 0, ())
    assert bare.received_at.utcoffset() == timedelta(0)


# The wait goes on


PASSING = [
    pytest.param(Reply.problem(503, "await-overloaded", headers=LATER), id="overloaded"),
    pytest.param(Reply.problem(503, "shutting-down", headers=LATER), id="shutting-down"),
    pytest.param(Reply.problem(429, "rate-limited", headers=LATER), id="rate-limit"),
    pytest.param(page(502, Retry_After="0.01"), id="proxy-502"),
    pytest.param(page(503, Retry_After="0.01"), id="proxy-503"),
    pytest.param(page(504, Retry_After="0"), id="proxy-504"),
    pytest.param(timed_out("c2"), id="408"),
    pytest.param(timed_out(None), id="408-without-a-look"),
]


@pytest.mark.parametrize("first", PASSING)
def test_what_passes_is_tried_again(run: Run, serve: Serve, first: Reply) -> None:
    server = serve(first, FOUND)
    assert run(server.url, wait(subject="x", after="c1")).email_id == "17"
    before, then = (request.query for request in server.requests)
    cursor = "c2" if b'"c2"' in first.body else "c1"
    left = float(then["timeout"])
    assert left == 120
    assert {**before, "after": cursor} == then


def test_a_connection_that_ends_is_tried_again(run: Run, serve: Serve) -> None:
    server = serve(Drop(), FOUND)
    assert run(server.url, wait(timeout=0.2)).email_id == "17"
    assert len(server.requests) == 2


def test_each_408_moves_the_cursor_on(run: Run, serve: Serve) -> None:
    server = serve(
        timed_out(None),
        timed_out("c1"),
        Reply.problem(503, "await-overloaded", headers={"Retry-After": "0"}),
        timed_out("c2"),
        timed_out(None),
        FOUND,
    )
    assert run(server.url, wait(since="2026-05-19T00:00:00Z")).email_id == "17"
    assert afters(server) == [None, None, "c1", "c1", "c2", "c2"]
    assert {request.query["since"] for request in server.requests} == {"2026-05-19T00:00:00Z"}


def test_a_long_wait_is_cut_into_calls_of_two_minutes(run: Run, serve: Serve) -> None:
    server = serve(timed_out("c1"), timed_out("c2"), FOUND)
    run(server.url, wait(timeout=float("inf")))
    assert [request.query["timeout"] for request in server.requests] == ["120"] * 3


def test_the_last_call_waits_for_what_is_left(serve: Serve) -> None:
    server = serve(timed_out("c1"), FOUND)
    with pytest.raises(AwaitTimeout):
        run_blocking(server.url, wait(timeout=119.5))
    assert server.requests[0].query["timeout"] == "119.5"


@pytest.mark.parametrize(
    ("reply", "seconds"),
    [
        (httpx.Response(503), 1),
        (httpx.Response(502, html="<p>bad"), 1),
        (httpx.Response(503, headers={"Retry-After": "7"}), 7),
        (httpx.Response(429, headers={"Retry-After": "soon"}), 1),
        (httpx.Response(503, headers={"Retry-After": "86400"}), 60),
        (httpx.ConnectError("refused", request=httpx.Request("GET", "http://127.0.0.1")), 1),
    ],
)
def test_the_pause_is_as_told_and_ends_with_the_wait(
    reply: httpx.Response | httpx.RequestError, seconds: float
) -> None:
    if isinstance(reply, httpx.Response):
        reply.request = httpx.Request("GET", "http://127.0.0.1")
    flow = await_message(BOX, {}, 60)
    assert next(flow).pause_seconds == 0
    call = flow.send(reply)
    assert call.pause_seconds == pytest.approx(seconds, abs=0.5)
    assert call.wait_seconds == pytest.approx(60 - seconds, abs=0.5)


def test_retry_after() -> None:
    in_a_minute = format_datetime(datetime.now(UTC) + timedelta(minutes=1), usegmt=True)
    long_ago = "Sun, 06 Nov 1994 08:49:37 GMT"
    assert parse_retry_after(in_a_minute) == pytest.approx(60, abs=2)
    assert parse_retry_after(long_ago) == 0
    for text in (None, "", "soon", "nan", "-1", "Sun, 99 Nov 1994 08:49:37 GMT"):
        assert parse_retry_after(text) is None


# The wait is over


@pytest.mark.parametrize("timeout", [0, 0.05])
def test_a_short_wait_is_one_look(run: Run, serve: Serve, timeout: float) -> None:
    server = serve(timed_out("c1"))
    with pytest.raises(AwaitTimeout) as caught:
        run(server.url, wait(timeout=timeout))
    assert len(server.requests) == 1
    assert float(server.requests[0].query["timeout"]) == pytest.approx(timeout, abs=0.01)
    assert caught.value.problem["cursor"] == "c1"
    assert caught.value.__cause__ is None
    assert str(caught.value).startswith(
        f"no matching message for {BOX} within {timeout:g} s: 408 Request Timeout: No matching"
    )


def test_an_answer_may_come_after_its_wait(run: Run, serve: Serve) -> None:
    server = serve(replace(timed_out("c1"), before=partial(time.sleep, 0.1)))
    with pytest.raises(AwaitTimeout) as caught:
        run(server.url, wait(timeout=0.05))
    assert caught.value.problem["cursor"] == "c1"
    assert len(server.requests) == 1


def test_a_service_that_never_looks_is_asked_until_the_end(run: Run, serve: Serve) -> None:
    server = serve(
        Reply.problem(429, "rate-limited", headers=LATER),
        Reply.problem(503, "await-overloaded", headers={"Retry-After": "60"}),
    )
    with pytest.raises(AwaitTimeout, match=r"within 0.2 s: 503") as caught:
        run(server.url, wait(timeout=0.2))
    assert len(server.requests) == 3  # the last when the time was over
    assert server.requests[-1].query["timeout"] == "0"
    assert caught.value.problem["status"] == 503


def test_nobody_there_until_the_end(run: Run) -> None:
    with ScriptedHttp(FOUND) as gone:
        pass
    with pytest.raises(AwaitTimeout) as caught:
        run(gone.url, wait(timeout=0.05))
    unreachable = caught.value.__cause__
    assert isinstance(unreachable, ServiceUnreachable)
    assert isinstance(unreachable.__cause__, httpx.ConnectError)
    assert gone.url in str(unreachable)
    assert caught.value.problem == {}


def test_the_last_document_is_kept_when_the_connection_fails_afterwards(serve: Serve) -> None:
    server = serve(Reply.problem(503, "not-now", headers=LATER), Drop())
    with pytest.raises(AwaitTimeout) as caught:
        run_blocking(server.url, wait(timeout=0.2))
    assert caught.value.problem["status"] == 503
    assert isinstance(caught.value.__cause__, ServiceUnreachable)


# Errors


@pytest.mark.parametrize("status", [401, 403, 404, 405, 422, 500, 502])
def test_what_waiting_cannot_mend_is_raised_at_once(run: Run, serve: Serve, status: int) -> None:
    server = serve(Reply.problem(status, "some-slug", title="Oh", detail="No."))
    with pytest.raises(ProblemError) as caught:
        run(server.url, wait())
    assert len(server.requests) == 1
    assert (caught.value.status, caught.value.slug) == (status, "some-slug")
    assert caught.value.problem["detail"] == "No."
    assert str(caught.value) == f"{status} Oh: No."


def test_refused_credentials_are_an_error_of_their_own(run: Run, serve: Serve) -> None:
    server = serve(Reply.problem(502, "mailbox-auth-failed"))
    with pytest.raises(MailboxAuthFailed):
        run(server.url, wait())
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [408, 429, 503])
def test_list_tries_once(run: Run, serve: Serve, status: int) -> None:
    server = serve(Reply.problem(status, "not-now", headers={"Retry-After": "9"}))
    with pytest.raises(ProblemError) as caught:
        run(server.url, lambda client: client.list_messages(BOX))
    assert (caught.value.status, caught.value.retry_after_seconds) == (status, 9)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "drop",
    [
        pytest.param(Drop(), id="at-once"),
        pytest.param(Drop(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"), id="half-way"),
        pytest.param(Drop(b"gibberish\r\n"), id="no-http"),
    ],
)
def test_without_a_whole_answer_the_service_is_unreachable(
    run: Run, serve: Serve, drop: Drop
) -> None:
    server = serve(drop)
    with pytest.raises(ServiceUnreachable, match=server.url):
        run(server.url, lambda client: client.get_message(BOX, "1"))
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (page(200), "200 OK with text/html"),
        (page(500), "500 Internal Server Error with text/html"),
        (page(308, Location="https://mail.example.com/"), "redirect to https://mail.example.com/"),
        (Reply(404), "404 Not Found with application/json"),
        (Reply(401, b'{"message": "no"}'), "401 Unauthorized with application/json"),
        (Reply(403, b"[]", content_type=PROBLEM_JSON), "403 Forbidden with application/problem"),
        (Reply(403, b"\xff{", content_type=PROBLEM_JSON), "403 Forbidden with application/problem"),
        (Reply(200, b"[" * 100_000), "200 OK with application/json"),
        (Reply.json({"data": None}), "unknown shape"),
        (Reply.json({"data": {"collection": [{"email_id": 1}]}}), "unknown shape: KeyError"),
        (Reply.json({"data": {"collection": [{**BARE, "datetime": "then"}]}}), "unknown shape"),
        (Reply.json({"data": {"collection": ["text"]}, "meta": []}), "unknown shape"),
        (answer(), "holds none"),
    ],
)
def test_an_answer_of_another_kind_is_named(serve: Serve, reply: Reply, told: str) -> None:
    server = serve(reply)
    with pytest.raises(UnexpectedAnswer) as caught:
        run_blocking(server.url, wait())
    assert told in str(caught.value)
    assert caught.value.status == reply.status
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("url", "token"),
    [
        ("mail.example.com", TOKEN),
        ("ftp://mail.example.com", TOKEN),
        ("https://", TOKEN),
        ("https://user:pass@mail.example.com", TOKEN),
        ("https://mail.example.com", ""),
        ("https://mail.example.com", "s3cret-t0ken with space"),
        ("https://mail.example.com", "s3cret-t0ken\r\nX: 1"),
        ("https://mail.example.com", "s3cret-t0ken-é"),
    ],
)
@pytest.mark.parametrize("kind", [MailroomClient, AsyncMailroomClient])
def test_arguments_that_cannot_work_are_refused_without_repeating_them(
    kind: type[MailroomClient | AsyncMailroomClient], url: str, token: str
) -> None:
    with pytest.raises(ValueError, match=r"base_url|token") as caught:
        kind(url, token)
    assert "t0ken" not in repr(caught.value)
    assert "pass@" not in repr(caught.value)


def test_the_token_is_shown_nowhere(run: Run, serve: Serve) -> None:
    assert TOKEN not in run(serve(FOUND).url, _shown)
    for script in (page(500), Reply.problem(401, "unauthorized"), Drop()):
        with pytest.raises(ClientError) as caught:
            run(serve(script).url, lambda client: client.list_messages(BOX))
        error: BaseException | None = caught.value
        while error is not None:
            assert TOKEN not in f"{error} {error!r} {vars(error)}"
            error = error.__cause__


def _shown(client: Any) -> Any:
    text = f"{client} {client!r} {client._http.headers!r}"
    return text if isinstance(client, MailroomClient) else _later(text)


async def _later(text: str) -> str:
    return text


@pytest.mark.parametrize(
    "error",
    [
        ProblemError(503, {"type": "about:blank", "title": "Busy"}, 2.5),
        MailboxAuthFailed(502, {"detail": "No."}),
        UnexpectedAnswer(502, "a page", None),
        AwaitTimeout("nothing came", {"status": 408}),
        ServiceUnreachable("gone"),
    ],
)
def test_errors_travel_between_processes(error: ClientError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))


# The surroundings


async def test_a_wait_on_trio_can_be_cancelled(serve: Serve) -> None:
    server = serve(Reply.problem(503, "await-overloaded", headers={"Retry-After": "60"}))
    transport = httpx.AsyncHTTPTransport(verify=False)
    async with AsyncMailroomClient(server.url, TOKEN, transport=transport) as client:
        with trio.move_on_after(0.05) as scope:
            await client.await_message(BOX)
    assert scope.cancelled_caught


async def test_more_waits_at_once_than_httpx_allows_by_itself(serve: Serve) -> None:
    all_are_there = threading.Barrier(101)
    server = serve(replace(FOUND, before=partial(all_are_there.wait, 5)))
    async with AsyncMailroomClient(server.url, TOKEN) as client, trio.open_nursery() as nursery:
        for _ in range(all_are_there.parties):
            nursery.start_soon(partial(client.await_message, BOX, timeout=5))
    assert not all_are_there.broken


def test_a_client_without_a_transport_of_its_own(serve: Serve) -> None:
    with MailroomClient(serve(FOUND).url, f"{TOKEN}\n") as client:
        assert client.get_message(BOX, "17").email_id == "17"


def test_importing_it_does_not_import_the_service() -> None:
    code = (
        "import sys, service.client\n"
        "print(*{n.partition('.')[0] for n in sys.modules if not n.startswith('service')})\n"
        "print(*(name for name in sys.modules if name.startswith('service')))"
    )
    command = [sys.executable, "-c", code]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    packages, own = (line.split() for line in output.splitlines())
    heavy = {"trio", "trio_asyncio", "asyncpg", "quart", "hypercorn", "lxml", "pydantic", "asyncio"}
    assert heavy.isdisjoint(packages)
    assert all(name == "service" or name.startswith("service.client") for name in own)
