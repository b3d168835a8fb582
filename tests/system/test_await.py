"""The wait: what it finds, how it ends, and what it costs the mail server meanwhile."""

import signal
import socket
import struct
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from email.message import EmailMessage
from email.policy import SMTP
from functools import partial
from itertools import groupby
from pathlib import Path

import httpx
import pytest
import trio
import trio.testing
from quart import Blueprint, g
from quart_trio import QuartTrio

from service.db.mailboxes import Access
from service.errors import MailboxUnreachable
from service.listing import Listings
from service.mail.imap import ImapSession
from service.model import ImapConnection
from service.opener import MailboxOpener
from service.settings import Settings
from service.waits import Waits
from service.web.auth import Gate
from service.web.messages import create_messages_blueprint
from service.web.openapi import install_openapi
from service.web.problems import register_problems
from tests.scripted_imap import Close, Hang, HangMidLiteral, Message, Reply, ScriptedImap
from tests.servers import Dovecot
from tests.servers.process import free_port, wait_until
from tests.system.api import Api, open_api
from tests.system.conftest import OpenSharedApi

INTERVAL_SECONDS = 0.2
# Far beyond every time that is measured here, so that no time-out of IMAP stands in for the clamp.
SETTINGS = {
    "AWAIT_POLL_INTERVAL_SECONDS": str(INTERVAL_SECONDS),
    "IMAP_TIMEOUT_SECONDS": "10",
}
LONG = 20
"""A time-out in seconds that no test waits for."""

Params = Mapping[str, object]


@pytest.fixture(scope="module")
def api(open_shared_api: OpenSharedApi) -> Iterator[Api]:
    """A replica for most tests of this module."""
    with open_shared_api("await", **SETTINGS) as api:
        yield api


@pytest.fixture(scope="module")
def crowded(open_shared_api: OpenSharedApi) -> Iterator[Api]:
    """A replica that three clients fill."""
    settings = {**SETTINGS, "AWAIT_MAX_CONCURRENT_WAITS": "3"}
    with open_shared_api("crowded", **settings) as api:
        yield api


@pytest.fixture
def mailbox(api: Api, dovecot: Dovecot) -> str:
    """An empty one on Dovecot."""
    user = dovecot.new_user()
    api.add_mailbox(user, dovecot.imap_port)
    return user


@contextmanager
def open_scripted(api: Api) -> Iterator[tuple[ScriptedImap, str]]:
    """A scripted server and its mailbox's address. Its SEARCH finds everything, so that the service
    has to tell what is meant; at the end no connection may be left."""
    with ScriptedImap() as server:
        server.script["UID SEARCH"] = lambda _: search_all(server)
        address = f"box{server.port}@example.com"
        api.add_mailbox(address, server.port)
        yield server, address
        wait_until(lambda: server.connections_open == 0)


@pytest.fixture
def scripted(api: Api) -> Iterator[tuple[ScriptedImap, str]]:
    with open_scripted(api) as server_and_mailbox:
        yield server_and_mailbox


def search_all(server: ScriptedImap) -> bytes:
    uids = " ".join(str(message.uid) for message in server.messages)
    return f"* SEARCH {uids}".rstrip().encode() + b"\r\n{tag} OK done\r\n"


def mail(subject: str, sender: str = "sender@example.com") -> bytes:
    message = EmailMessage(policy=SMTP)
    message["Subject"], message["From"], message["To"] = subject, sender, "box@example.com"
    message.set_content("Hello")
    return message.as_bytes()


def wait(api: Api, mailbox: str, timeout: float = LONG, **filters: object) -> httpx.Response:
    with api.client(api.create_token()) as client:
        params = {"timeout": str(timeout), **{n: str(value) for n, value in filters.items()}}
        return client.get(api.messages(mailbox, ":await"), params=params)


@asynccontextmanager
async def waiting(
    api: Api, mailbox: str, *each_params: Params, is_watched: bool = True
) -> AsyncIterator[list[httpx.Response | None]]:
    """Clients that wait while the block runs; each one's answer is in the list after it."""
    answers: list[httpx.Response | None] = [None] * len(each_params)
    path = api.messages(mailbox, ":await")

    async def ask(number: int, params: Params) -> None:
        query = {name: str(value) for name, value in {"timeout": LONG, **params}.items()}
        answers[number] = await client.get(path, params=query)

    before = api.metric("mailroom_waits_in_flight")
    async with api.async_client(api.create_token()) as client, trio.open_nursery() as nursery:
        for number, params in enumerate(each_params):
            nursery.start_soon(ask, number, params)
        if is_watched:
            await until(lambda: in_flight(api) == before + len(each_params))
        yield answers


async def until(condition: Callable[[], object], *, seconds: float = 10) -> None:
    """`wait_until` while others go on."""
    await trio.to_thread.run_sync(partial(wait_until, condition, seconds=seconds))


def in_flight(api: Api) -> float:
    return api.metric("mailroom_waits_in_flight")


async def until_rounds(server: ScriptedImap, count: int) -> None:
    """So many more connections were made, all but the last one done with."""
    aim = server.connections_total + count
    await until(lambda: server.connections_total >= aim)


def subjects(answers: Sequence[httpx.Response | None]) -> list[str]:
    documents = [answer.json() for answer in answers if answer is not None]
    return [document["data"]["collection"][0]["subject"] for document in documents]


def problems(answers: Sequence[httpx.Response | None]) -> Counter[tuple[int, str]]:
    """The problems by status and slug."""
    documents = [answer.json() for answer in answers if answer is not None]
    return Counter((one["status"], one["type"].rpartition("/")[2]) for one in documents)


def lines_by_connection(server: ScriptedImap) -> dict[str, list[str]]:
    """imaplib begins the tags of a connection with four letters of its own."""
    found: dict[str, list[str]] = {}
    for line in server.received:
        found.setdefault(line[:4], []).append(line.partition(" ")[2])
    return found


async def test_a_match_that_is_there_is_answered_at_the_first_look(
    api: Api, scripted: tuple[ScriptedImap, str]
) -> None:
    server, mailbox = scripted
    server.messages = [Message(1, mail("Welcome"))]
    async with waiting(api, mailbox, {}, is_watched=False) as answers:
        pass
    assert subjects(answers) == ["Welcome"]
    assert server.connections_total == 1


async def test_a_mail_that_arrives_during_the_wait_is_found_by_the_next_look(
    api: Api, scripted: tuple[ScriptedImap, str]
) -> None:
    server, mailbox = scripted
    server.messages = [Message(1, mail("Newsletter"))]
    async with waiting(api, mailbox, {"filter[subject]": "code"}) as answers:
        await until_rounds(server, 4)
        server.messages.append(Message(2, mail("Your code")))
        connections = server.connections_total
    assert subjects(answers) == ["Your code"]
    assert server.connections_total <= connections + 1


@pytest.mark.parametrize(
    ("params", "subject"), [({}, "Second"), ({"since": "2020-01-01"}, "First")]
)
async def test_of_two_that_arrive_together_the_newest_or_from_a_beginning_the_earliest_is_taken(
    api: Api, scripted: tuple[ScriptedImap, str], params: Params, subject: str
) -> None:
    server, mailbox = scripted
    async with waiting(api, mailbox, params) as answers:
        await until_rounds(server, 2)
        server.messages = [Message(1, mail("First")), Message(2, mail("Second"))]
    assert subjects(answers) == [subject]


async def test_a_delivery_is_answered_within_an_interval_and_a_bit(
    api: Api, mailbox: str, dovecot: Dovecot
) -> None:
    rounds = api.metric("mailroom_rounds_total", outcome="ok")
    async with waiting(api, mailbox, {"filter[subject]": "code"}) as answers:
        await until(lambda: api.metric("mailroom_rounds_total", outcome="ok") > rounds + 1)
        dovecot.deliver(mailbox, mail("Your code"))
        delivered_at = time.monotonic()
    assert subjects(answers) == ["Your code"]
    assert time.monotonic() - delivered_at < INTERVAL_SECONDS + 2


async def test_later_looks_read_only_what_is_new(
    api: Api, scripted: tuple[ScriptedImap, str]
) -> None:
    server, mailbox = scripted
    server.script = {}
    server.messages = [Message(uid, mail(f"Newsletter {uid}")) for uid in (1, 2, 3)]
    async with waiting(api, mailbox, {"filter[subject]": "code"}):
        await until_rounds(server, 3)
        server.messages.append(Message(4, mail("Your code")))
    searches = [line for line in server.received if "UID SEARCH" in line]
    fetches = [line.split(" ")[3] for line in server.received if "UID FETCH" in line]
    assert searches[0].endswith('UID SEARCH SUBJECT "code"')
    assert {line.partition(" ")[2] for line in searches[1:]} == {"UID SEARCH UID 4:*"}
    assert fetches == ["1:3", "4", "4"]  # headers, headers, text


async def test_a_new_uidvalidity_during_a_wait_loses_nothing(
    api: Api, scripted: tuple[ScriptedImap, str]
) -> None:
    server, mailbox = scripted
    server.messages = [Message(7, mail("Newsletter"))]
    async with waiting(api, mailbox, {"filter[subject]": "code"}) as answers:
        await until_rounds(server, 2)
        server.uidvalidity, server.messages = 2, [Message(1, mail("Your code"))]
    assert subjects(answers) == ["Your code"]


def test_a_timeout_of_zero_looks_once(api: Api, scripted: tuple[ScriptedImap, str]) -> None:
    server, mailbox = scripted
    document = wait(api, mailbox, timeout=0).json()
    assert (document["status"], document["timeout_seconds"], document["rounds"]) == (408, 0, 1)
    assert server.connections_total == 1
    server.messages = [Message(1, mail("Welcome"))]
    assert wait(api, mailbox, timeout=0).status_code == 200


def test_a_408_says_what_was_seen_and_what_turned_it_away(
    api: Api, scripted: tuple[ScriptedImap, str]
) -> None:
    server, mailbox = scripted
    server.messages = [
        Message(1, mail("Your code", "newsletter@example.com")),
        Message(2, mail("News", "newsletter@example.com")),
        Message(3, mail("News", "noreply@example.com")),
    ]
    filters = {"filter[subject]": "code", "filter[from]": "noreply", "filter[to]": "box@"}
    response = wait(api, mailbox, timeout=1, **filters, since="2999-01-01")
    document = response.json()
    assert response.headers["Content-Type"] == "application/problem+json"
    assert (response.status_code, document["title"]) == (408, "Request Timeout")
    assert document["type"] == f"{api.origin}/docs/errors/email/messages/await-timeout"
    assert document["instance"].endswith(":await")
    assert document["timeout_seconds"] == 1
    assert 2 <= document["rounds"] <= 1 / INTERVAL_SECONDS + 1
    assert document["messages_seen"] == 3
    assert document["rejected_by"] == {"subject": 2, "from": 2, "to": 0, "since": 3}
    assert document["last_error"] is None
    assert document["cursor"].endswith(".1.3")
    assert "No matching messages found within 1 second" in document["detail"]
    assert "3 seen, turned away by: " in document["detail"]
    assert all(part in document["detail"] for part in ("subject 2", "from 2", "since 3"))


def test_a_408_on_dovecot_has_its_rounds_and_a_cursor(api: Api, mailbox: str) -> None:
    document = wait(api, mailbox, timeout=1, **{"filter[subject]": "code"}).json()
    assert document["rounds"] >= 2
    assert (document["messages_seen"], document["rejected_by"]) == (0, {"subject": 0})
    assert (document["last_error"], document["cursor"].rpartition(".")[2]) == (None, "0")


class OpenGate(Gate):
    """Lets everybody in, without a database."""

    def __init__(self) -> None:
        pass

    def guard_mailboxes(self, blueprint: Blueprint, _scope: str) -> None:
        async def admit() -> None:
            connection = ImapConnection("127.0.0.1", 1, "none", "a@example.com")
            g.access = Access(1, "a@example.com", connection, b"")

        blueprint.before_request(admit)


class UnreachableServer(MailboxOpener):
    """Fails without taking any time of the real clock."""

    def __init__(self) -> None:
        pass

    @asynccontextmanager
    async def look(self, _access: Access) -> AsyncIterator[ImapSession]:
        raise MailboxUnreachable("the server is away")
        yield


@pytest.mark.parametrize(
    ("query", "seconds"),
    [("", 30), ("?timeout=90", 90), ("?timeout=120.5", 120), ("?timeout=1e9", 120)],
)
async def test_the_timeout_is_30_seconds_and_never_beyond_120(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery, query: str, seconds: int
) -> None:
    """The only test in this process: nobody waits two minutes for a clamp."""
    settings, opener = Settings.load(), UnreachableServer()
    waits = Waits(opener, settings, trio.Event())
    app = QuartTrio("service")
    app.config["PUBLIC_BASE_URL"] = None
    register_problems(app)
    app.register_blueprint(create_messages_blueprint(OpenGate(), Listings(opener, settings), waits))
    install_openapi(app)
    await nursery.start(waits.run)
    began = trio.current_time()
    response = await app.test_client().get(Api.messages("a@example.com", f":await{query}"))
    assert trio.current_time() - began == pytest.approx(seconds)
    assert response.status_code == 408
    assert (await response.get_json())["timeout_seconds"] == seconds


async def test_twenty_waiters_share_one_connection_and_one_search_an_interval(
    api: Api, scripted: tuple[ScriptedImap, str]
) -> None:
    server, mailbox = scripted
    began = time.monotonic()
    each = [{"filter[subject]": f"code {number}", "timeout": 2} for number in range(20)]
    async with waiting(api, mailbox, *each) as answers:
        pass
    elapsed_seconds = time.monotonic() - began
    assert problems(answers) == {(408, "await-timeout"): 20}
    assert server.connections_total <= elapsed_seconds / INTERVAL_SECONDS + 2
    connections = list(lines_by_connection(server).values())
    for lines in connections[:-1]:  # the last one may have been cut off by the end
        assert sum(line.startswith("UID SEARCH") for line in lines) == 1


async def test_each_of_twenty_waiters_gets_its_own_mail(
    api: Api, scripted: tuple[ScriptedImap, str]
) -> None:
    server, mailbox = scripted
    each = [{"filter[subject]": f"code {number}!"} for number in range(20)]
    async with waiting(api, mailbox, *each) as answers:
        await until_rounds(server, 2)
        server.messages = [Message(n + 1, mail(f"Your code {n}!")) for n in range(20)]
        connections = server.connections_total
    assert subjects(answers) == [f"Your code {number}!" for number in range(20)]
    assert server.connections_total <= connections + 1


async def test_who_comes_later_still_looks_back(
    api: Api, scripted: tuple[ScriptedImap, str]
) -> None:
    server, mailbox = scripted
    server.messages = [Message(1, mail("Old news"))]
    async with waiting(api, mailbox, {"filter[subject]": "code"}) as waiters:
        await until_rounds(server, 2)
        async with waiting(api, mailbox, {"filter[subject]": "old"}, is_watched=False) as late:
            pass
        server.messages.append(Message(2, mail("Your code")))
    assert (subjects(late), subjects(waiters)) == (["Old news"], ["Your code"])


async def test_rounds_open_and_close_one_connection_after_the_other(
    api: Api, scripted: tuple[ScriptedImap, str]
) -> None:
    server, mailbox = scripted
    async with waiting(api, mailbox, *[{"timeout": 1}] * 3):
        pass
    assert api.metric("mailroom_imap_connections") == 0
    spans = [tag for tag, _ in groupby(line[:4] for line in server.received)]
    assert len(spans) == len(set(spans)) >= 2
    for lines in list(lines_by_connection(server).values())[:-1]:
        assert lines[-1] == "LOGOUT"


@pytest.mark.parametrize(
    ("name", "reply"),
    [
        ("LOGIN", b"{tag} NO [UNAVAILABLE] later\r\n"),
        ("EXAMINE", b"{tag} NO no such folder\r\n"),
        ("UID SEARCH", b"{tag} BAD what?\r\n"),
        ("UID FETCH", Close(b"* 1 FETCH (UID 1 BODY[HEADER]<0> {100}\r\nSubj")),
    ],
)
async def test_trouble_is_told_and_leaves_no_connection(
    api: Api, scripted: tuple[ScriptedImap, str], name: str, reply: Reply
) -> None:
    server, mailbox = scripted
    server.messages = [Message(1, mail("Hello"))]
    server.script = {name: reply}
    async with waiting(api, mailbox, {"timeout": 1}) as answers:
        pass
    assert problems(answers) == {(408, "await-timeout"): 1}
    (answer,) = answers
    assert answer is not None
    assert answer.json()["last_error"]
    assert answer.json()["last_error"] in answer.json()["detail"]
    assert answer.json()["rounds"] == 0
    assert answer.json()["cursor"] is None
    await until(lambda: server.connections_open == 0)
    await until(lambda: api.metric("mailroom_imap_connections") == 0)


def test_a_server_that_is_away_is_told_in_the_408(api: Api) -> None:
    port = free_port()
    api.add_mailbox("away@example.com", port)
    document = wait(api, "away@example.com", timeout=0.5).json()
    assert document["status"] == 408
    assert f"cannot connect to 127.0.0.1:{port}" in document["last_error"]
    assert "The mailbox could not be looked into." in document["detail"]


async def test_a_server_that_comes_back_is_used(
    api: Api, scripted: tuple[ScriptedImap, str]
) -> None:
    server, mailbox = scripted
    server.messages = [Message(1, mail("Welcome"))]
    server.script["GREETING"] = Close()
    async with waiting(api, mailbox, {}) as answers:
        await until_rounds(server, 3)
        del server.script["GREETING"]
    assert subjects(answers) == ["Welcome"]


async def test_a_match_that_cannot_be_read_does_not_hide_the_next_one(
    api: Api, scripted: tuple[ScriptedImap, str]
) -> None:
    def refuse_text_of_first(args: str) -> bytes | None:
        is_text = "BODYSTRUCTURE" not in args
        return b"{tag} NO [SERVERBUG] no\r\n" if is_text and args[0] == "1" else None

    server, mailbox = scripted
    server.messages = [Message(1, mail("First")), Message(2, mail("Second"))]
    server.script["UID FETCH"] = refuse_text_of_first
    params = {"since": "2020-01-01", "timeout": 1}
    async with waiting(api, mailbox, params, is_watched=False) as answers:
        pass
    assert subjects(answers) == ["Second"]


@pytest.mark.parametrize(
    ("phase", "reply"),
    [
        ("GREETING", Hang()),
        ("LOGIN", Hang()),
        ("EXAMINE", Hang(b"* 1 EXISTS\r\n")),
        ("UID SEARCH", Hang()),
        ("UID FETCH", HangMidLiteral(10)),
    ],
)
async def test_the_clamp_holds_when_the_server_hangs(
    api: Api, scripted: tuple[ScriptedImap, str], phase: str, reply: Reply
) -> None:
    server, mailbox = scripted
    server.messages = [Message(1, mail("Hello"))]
    server.script = {phase: reply}
    began_seconds = api.metric("mailroom_wait_seconds_sum")
    async with waiting(api, mailbox, {"timeout": 1}) as answers:
        await until(lambda: api.metric("mailroom_imap_connections") == 1)
    assert problems(answers) == {(408, "await-timeout"): 1}
    assert 1 <= api.metric("mailroom_wait_seconds_sum") - began_seconds <= 1.5
    await until(lambda: server.connections_open == 0, seconds=3)


async def test_a_hanging_server_holds_up_no_other_mailbox(
    api: Api, scripted: tuple[ScriptedImap, str], mailbox: str, dovecot: Dovecot
) -> None:
    server, hanging_mailbox = scripted
    server.script = {"LOGIN": Hang()}
    dovecot.append(mailbox, mail("Welcome"))
    async with waiting(api, hanging_mailbox, {"timeout": 2}) as hanging:
        async with waiting(api, mailbox, {}, is_watched=False) as answers:
            pass
        assert hanging == [None]
    assert subjects(answers) == ["Welcome"]


async def test_refused_credentials_end_all_waits_at_once(
    api: Api, scripted: tuple[ScriptedImap, str]
) -> None:
    server, mailbox = scripted
    async with waiting(api, mailbox, {}, {}, {}) as answers:
        server.script["LOGIN"] = b"{tag} NO [AUTHENTICATIONFAILED] no\r\n"
    assert problems(answers) == {(502, "mailbox-auth-failed"): 3}


def test_a_wrong_password_at_dovecot_is_a_502_at_once(api: Api, dovecot: Dovecot) -> None:
    user = dovecot.new_user()
    api.add_mailbox(user, dovecot.imap_port, password=b"wrong")
    response = wait(api, user)
    assert problems([response]) == {(502, "mailbox-auth-failed"): 1}
    assert response.elapsed.total_seconds() < LONG / 4  # Dovecot itself takes two seconds


async def test_over_the_cap_is_a_503_at_once_without_a_connection(crowded: Api) -> None:
    refused = crowded.metric("mailroom_waits_total", outcome="TooManyWaits")
    with open_scripted(crowded) as (server, mailbox), open_scripted(crowded) as (other, unseen):
        async with waiting(crowded, mailbox, {}, {}, {}) as answers:
            fourth = await trio.to_thread.run_sync(wait, crowded, unseen)
            server.messages = [Message(1, mail("Welcome"))]
        assert problems([fourth]) == {(503, "await-overloaded"): 1}
        assert int(fourth.headers["Retry-After"]) >= 1
        assert fourth.elapsed.total_seconds() < 2
        assert other.connections_total == 0
        assert subjects(answers) == ["Welcome"] * 3
        assert wait(crowded, mailbox).status_code == 200  # the slots are free again
    assert crowded.metric("mailroom_waits_total", outcome="TooManyWaits") == refused + 1


async def test_of_ten_at_once_exactly_the_cap_gets_in(crowded: Api) -> None:
    with open_scripted(crowded) as (server, mailbox):
        async with waiting(crowded, mailbox, *[{}] * 10, is_watched=False) as answers:
            await until(lambda: sum(answer is not None for answer in answers) == 7)
            assert in_flight(crowded) == 3
            assert problems(answers) == {(503, "await-overloaded"): 7}
            server.messages = [Message(1, mail("Welcome"))]
    assert sum(answer is not None and answer.status_code == 200 for answer in answers) == 3


def leave_with_fin(client: socket.socket) -> None:
    client.close()


def leave_with_rst(client: socket.socket) -> None:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


@pytest.mark.parametrize("leave", [leave_with_fin, leave_with_rst])
def test_a_client_that_goes_away_frees_its_slot_at_once(
    crowded: Api, leave: Callable[[socket.socket], None]
) -> None:
    gone = crowded.metric("mailroom_waits_total", outcome="disconnected")
    with open_scripted(crowded) as (_, mailbox):
        request = (
            f"GET {crowded.messages(mailbox, ':await')}?timeout={LONG} HTTP/1.1\r\n"
            f"Host: localhost\r\nAuthorization: Bearer {crowded.create_token()}\r\n\r\n"
        )
        address = ("127.0.0.1", crowded.replica.http_port)
        clients = [socket.create_connection(address) for _ in range(3)]
        for client in clients:
            client.sendall(request.encode())
        wait_until(lambda: in_flight(crowded) == 3)
        for client in clients:
            leave(client)
        wait_until(lambda: in_flight(crowded) == 0, seconds=2)
        assert wait(crowded, mailbox, timeout=0).status_code == 408
    assert crowded.metric("mailroom_waits_total", outcome="disconnected") == gone + 3


async def test_sigterm_answers_all_waiters_and_ends_well(
    database_url: str, tmp_path: Path, dovecot: Dovecot
) -> None:
    """A poll that hangs for three seconds keeps the replica there for a moment to be looked at."""
    settings = {**SETTINGS, "POLL_INTERVAL_SECONDS": "0.2", "IMAP_TIMEOUT_SECONDS": "3"}
    hanging = ScriptedImap(script={"GREETING": Hang()})
    with hanging, open_api(tmp_path, database_url, **settings) as api:
        user = dovecot.new_user()
        api.add_mailbox(user, dovecot.imap_port)
        async with waiting(api, user, *[{}] * 50) as answers:
            api.add_mailbox("hanging@example.com", hanging.port)
            api.execute("UPDATE email_mailbox_config SET enabled = true WHERE address <> %s", user)
            await until(lambda: hanging.connections_open == 1)
            api.replica.process.send_signal(signal.SIGTERM)
            signalled_at = time.monotonic()
            await until(lambda: all(answers), seconds=5)
            assert api.replica.status("/readyz") == 503
            assert api.replica.status("/healthz") == 200
            refused = await trio.to_thread.run_sync(wait, api, user)
        assert problems(answers) == {(503, "shutting-down"): 50}
        assert problems([refused]) == {(503, "shutting-down"): 1}
        assert int(refused.headers["Retry-After"]) >= 1
        assert api.replica.process.wait(10) == 0
        assert time.monotonic() - signalled_at < 10
        assert "ERROR" not in api.replica.log.read_text()


def test_metrics_tell_of_waits_rounds_and_requests(
    api: Api, mailbox: str, dovecot: Dovecot
) -> None:
    route = "/api/v1/email/account/<mailbox>/messages:await"
    names: list[tuple[str, dict[str, str]]] = [
        ("mailroom_waits_total", {"outcome": "found"}),
        ("mailroom_waits_total", {"outcome": "timeout"}),
        ("mailroom_wait_seconds_count", {}),
        ("mailroom_http_requests_total", {"route": route, "status": "200"}),
        ("mailroom_http_requests_total", {"route": route, "status": "408"}),
        ("mailroom_rounds_total", {"outcome": "ok"}),
        ("mailroom_round_seconds_count", {}),
    ]

    def read() -> list[float]:
        return [api.metric(name, **labels) for name, labels in names]

    before = read()
    assert wait(api, mailbox, timeout=0).status_code == 408
    dovecot.append(mailbox, mail("Welcome"))
    assert wait(api, mailbox).status_code == 200
    wait_until(lambda: api.metric("mailroom_imap_connections") == 0)
    assert [after - old for after, old in zip(read(), before, strict=True)] == [1, 1, 2, 1, 1, 2, 2]
    assert in_flight(api) == 0
