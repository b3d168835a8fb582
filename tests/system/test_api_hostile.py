"""The HTTP API under attack: hostile parameters, hostile bytes, hostile mail, hostile mail servers.

Whatever comes, the answer is a document that makes sense, nothing but the expected commands goes
to the mail server, nothing is logged as an error, and the replica goes on serving.
"""

import base64
import itertools
import json
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import psutil
import pytest
import trio

from tests.scripted_imap import Close, Drip, Message, Reply, ScriptedImap
from tests.servers import PostgresCluster, wait_until
from tests.system.api import Api, open_api

IMAP_TIMEOUT_SECONDS = 2
MEGABYTE = 1024 * 1024
IN_FLIGHT = "mailroom_waits_in_flight"

_QUOTED = r'"(?:[ !#-\[\]-~]|\\["\\])*"'
_UIDS = r"UID (?P<uid>[1-9]\d*):\*"
_CRITERION = (
    rf"(?:(?:SUBJECT|FROM|TO) {_QUOTED}|SINCE \d\d-[A-Z][a-z]{{2}}-\d{{4}}|UID [1-9]\d*:\*)"
)
CRITERIA = re.compile(rf"ALL|UID \*|{_CRITERION}(?: {_CRITERION})*")
EITHER = re.compile(rf"OR \(((?:{CRITERIA.pattern}))\) \((.*)\)")
ONE_TEXT = re.compile(rf"ALL|(?:SUBJECT|FROM|TO) {_QUOTED}")
# The last one breaks off wherever it is when nobody waits any more.
ROUND = re.compile(
    r"(?:(?:CAPABILITY )?LOGIN EXAMINE UID_SEARCH (?:UID_FETCH )*(?:LOGOUT )?)*"
    r"(?:CAPABILITY )?(?:LOGIN )?(?:EXAMINE )?"
)

# What somebody may try to leave the quoted string with, or to break what reads it.
TEXTS = [
    '"',
    '""',
    "\\",
    '\\"',
    '\\\\"',
    'x" OR ALL "',
    'x") LOGOUT (',
    "ALL",
    "OR",
    "NOT",
    "UID",
    "UID 1:*",
    "SINCE 01-Jan-1990",
    "LOGOUT",
    "{10}",
    "{10+}",
    "x {3}",
    "*",
    "(",
    ")",
    "]",
    "[",
    "%",
    "%22",
    "%0d%0a",
    "%250d%250a",
    "%s%n{0}",
    "~{4}",
    "a\tb",
    "\x01\x7f",
    "\x1b[31m",
    "$(reboot)`reboot`; DROP TABLE request; --",
    "<script>alert(1)</script>",
    "../../etc/passwd",
    "🦊📬",
    "שלום עולם",
    "\u202eevil\u202c",
    "e\u0301a\u0308",
    "\u0301",
    "ǅ ß İ ﬁ",
    "x\ufeff\u200b\u2028y",
    "\uffff\U0010ffff",
    "x" * 998,
    '"' * 998,
    "\\" * 998,
    "🦊" * 998,
    "\u0301" * 998,
]
# Percent-encoded, as they stand in the query.
REFUSED_TEXTS = [
    "",
    "%20",
    "%0d",
    "%0a",
    "%00",
    "a%0d%0aA1%20LOGOUT",
    "a%22%0d%0aA1%20LOGOUT%0d%0a",
    "%0D%0A",
    "a%00b",
    "%E2%80%A8",  # a line separator alone is blank
    "x" * 999,
    "x" * 10_000,
    "%F0%9F%A6%8A" * 4_000,
]
# Not UTF-8: lone surrogates, overlong forms, broken sequences, and escapes that are none.
UNDECODABLE = ["%ff", "%ED%A0%80", "%C0%80", "%C0%8A", "%E2%82", "a%C3", "%zz", "%", "%u000a"]


@dataclass(frozen=True)
class Answer:
    """What came over a raw socket."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Mailbox:
    """A mailbox of the API on a scripted server."""

    address: str
    server: ScriptedImap
    api: Api
    client: httpx.Client

    def path(self, rest: str = "") -> str:
        return self.api.messages(self.address, rest)

    def get(self, rest: str = "", **parameters: Any) -> httpx.Response:
        return self.client.get(self.path(rest), params=parameters)

    def subjects(self, **parameters: Any) -> list[str]:
        return subjects_of(self.get(**parameters))


OpenMailbox = Callable[..., Mailbox]


@pytest.fixture(scope="module")
def api(
    postgres: PostgresCluster, migrated_template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Api]:
    url = postgres.create_database("api_hostile", template=migrated_template)
    with open_api(
        tmp_path_factory.mktemp("api"),
        url,
        AWAIT_POLL_INTERVAL_SECONDS="0.1",
        AWAIT_MAX_CONCURRENT_WAITS="300",
        IMAP_TIMEOUT_SECONDS=str(IMAP_TIMEOUT_SECONDS),
    ) as opened:
        yield opened


@pytest.fixture(scope="module")
def token(api: Api) -> str:
    return api.create_token()


@pytest.fixture(scope="module")
def client(api: Api, token: str) -> Iterator[httpx.Client]:
    with api.client(token) as opened:
        yield opened


@pytest.fixture(autouse=True)
def replica_goes_on(api: Api, client: httpx.Client) -> Iterator[None]:
    """After each test: nothing of level ERROR in the replica's log, nobody waits, it serves."""
    begin = api.replica.log.stat().st_size
    yield
    wait_until(lambda: f"\n{IN_FLIGHT} 0.0\n" in client.get("/metrics").text)
    assert client.get("/healthz").status_code == 200
    written = api.replica.log.read_bytes()[begin:].decode()
    assert "ERROR" not in written
    assert "Traceback" not in written


@pytest.fixture
def open_mailbox(api: Api, client: httpx.Client) -> Iterator[OpenMailbox]:
    """Opens mailboxes on scripted servers of their own."""
    servers: list[ScriptedImap] = []

    def open_(
        messages: Sequence[Message] = (), script: Mapping[str, Reply] | None = None
    ) -> Mailbox:
        server = ScriptedImap(messages, script)
        servers.append(server.__enter__())
        address = f"m{server.port}-{time.monotonic_ns()}@example.com"
        api.add_mailbox(address, server.port)
        return Mailbox(address, server, api, client)

    yield open_
    for server in servers:
        server.__exit__(None, None, None)


def mail(
    uid: int, subject: str = "", *, content: str = "", structure: str | None = None
) -> Message:
    """A mail; `content` is its type, an empty line and its body."""
    header = (
        f"From: a@example.com\r\nTo: b@example.com\r\nSubject: {subject or uid}\r\n"
        f"Message-ID: <{uid}@example.com>\r\n"
    )
    raw = header + (content or f"\r\ntext {uid}\r\n")
    return Message(uid, raw.encode(), structure=structure)


def mails(*uids: int) -> list[Message]:
    return [mail(uid) for uid in uids]


def encoded_word(text: str) -> str:
    return f"=?utf-8?b?{base64.b64encode(text.encode()).decode()}?="


def subjects_of(response: httpx.Response) -> list[str]:
    assert response.status_code == 200, response.text
    return [message["subject"] for message in response.json()["data"]["collection"]]


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


def check_wire(server: ScriptedImap, criteria: re.Pattern[str] = CRITERIA) -> None:
    """Whole rounds with one well-formed SEARCH each, and nothing else, went to the server."""
    wait_until(lambda: server.connections_open == 0)
    words = [line.split(" ") for line in server.received]
    names = ["_".join(line[1:3]) if line[1] == "UID" else line[1] for line in words]
    assert ROUND.fullmatch("".join(f"{name} " for name in names)), names
    searches = [line.partition(" UID SEARCH ") for line in server.received]
    for _, _, asked in (search for search in searches if search[1]):
        alternatives = [asked]
        while either := EITHER.fullmatch(alternatives[-1]):
            alternatives[-1:] = either.groups()
        assert all(criteria.fullmatch(one) for one in alternatives), asked
        assert all(int(uid) < 2**32 for uid in re.findall(r"UID (\d+)", asked)), asked


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


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    start = time.monotonic()
    yield
    assert time.monotonic() - start < seconds


@contextmanager
def growing_at_most(process_id: int, megabytes: int) -> Iterator[None]:
    """Fails if the process, looked at all the time, grows by more."""
    process = psutil.Process(process_id)
    sizes = [process.memory_info().rss]
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.01):
            sizes.append(process.memory_info().rss)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
    assert max(sizes) - sizes[0] < megabytes * MEGABYTE


# Filters and mailboxes


@pytest.mark.parametrize("text", TEXTS, ids=ascii)
def test_any_text_is_only_a_text(open_mailbox: OpenMailbox, text: str) -> None:
    """It finds the mail that holds it, and nothing but one quoted string goes to the server."""
    word = encoded_word(text)
    raw = f"Subject: {word}\r\nFrom: {word} <a@example.com>\r\nTo: {word} <b@example.com>\r\n\r\nx"
    other = b"Subject: +\r\nFrom: + <c@example.net>\r\nTo: + <d@example.net>\r\n\r\nx"
    found_both = b"* SEARCH 1 2\r\n{tag} OK done\r\n"
    mailbox = open_mailbox(
        [Message(1, raw.encode()), Message(2, other)], {"UID SEARCH": found_both}
    )
    for name in ("filter[subject]", "filter[from]", "filter[to]"):
        for rest, more in (("", {}), (":await", {"timeout": "0"})):
            response = check_response(mailbox.get(rest, **{name: text}, **more))
            assert response.status_code == 200, response.text
            assert [one["email_id"] for one in response.json()["data"]["collection"]] == ["1"]
    check_wire(mailbox.server, ONE_TEXT)
    assert sum(" UID SEARCH " in line for line in mailbox.server.received) == 6


@pytest.mark.parametrize("name", ["filter[subject]", "filter[from]", "filter[to]"])
def test_refused_texts_never_reach_the_mail_server(
    open_mailbox: OpenMailbox, token: str, name: str
) -> None:
    mailbox = open_mailbox(mails(1))
    for text in REFUSED_TEXTS:
        for rest in ("", ":await"):
            target = f"{mailbox.path(rest)}?{quote(name)}={text}"
            assert status_of(mailbox.api, target, token) == 422, text[:100]
    assert mailbox.server.connections_total == 0


@pytest.mark.parametrize("name", ["filter[subject]", "filter[from]", "filter[to]", "since"])
def test_undecodable_texts_match_nothing(open_mailbox: OpenMailbox, token: str, name: str) -> None:
    mailbox = open_mailbox(mails(1))
    for text in UNDECODABLE:
        status = status_of(mailbox.api, f"{mailbox.path()}?{quote(name)}={text}", token)
        assert status in (200, 422), text
        target = f"{mailbox.path(':await')}?timeout=0&{quote(name)}={text}"
        assert status_of(mailbox.api, target, token) in (408, 422), text
    check_wire(mailbox.server)


@pytest.mark.parametrize("rest", ["", ":await", "/1"])
def test_a_hostile_mailbox_is_not_found(api: Api, token: str, rest: str) -> None:
    encoded = [quote(text, safe="") for text in TEXTS]
    for mailbox in [*encoded, *REFUSED_TEXTS[1:], *UNDECODABLE, "%2e%2e", "..", "x%2Fy", "x/y"]:
        target = f"/api/v1/email/account/{mailbox}/messages{rest}"
        assert status_of(api, target, token) in (404, 422), mailbox[:100]


@pytest.mark.parametrize("mailbox", ["a%0d%0ab", "%0a", "%00", "a%00b"])
def test_line_breaks_and_nul_in_a_mailbox_are_refused(api: Api, token: str, mailbox: str) -> None:
    assert status_of(api, f"/api/v1/email/account/{mailbox}/messages", token) == 422


@pytest.mark.parametrize(
    "address", ['"q"\\@example.com', "50%25@example.com", "ü🦊@example.com", "a b'c@example.com"]
)
def test_a_mailbox_with_a_strange_address_is_itself(
    open_mailbox: OpenMailbox, api: Api, client: httpx.Client, address: str
) -> None:
    mailbox = open_mailbox(mails(7))
    api.add_mailbox(address, mailbox.server.port)
    mailbox.server.capabilities = "IMAP4rev1 AUTH=PLAIN"  # LOGIN takes only ASCII
    assert subjects_of(client.get(api.messages(address))) == ["7"]


# Parameters


@pytest.mark.parametrize(
    "query",
    [
        "unknown=1",
        "filter[subjekt]=1",
        "filter[Subject]=1",
        "filter[subject][]=1",
        "filter[subject][0]=1",
        "filter[subject][$ne]=1",
        "filter[]=1",
        "filter=1",
        "filter",
        "subject=1",
        "sender=1",
        "filter[subject]=1&filter[subject]=1",
        "filter[subject]=1&filter%5Bsubject%5D=2",
        "filter[from]=a&filter[from]=b",
        "filter[subject]=1&subject=1",
        "filter[subject]",
        "filter[from]=",
        "since=2026-03-02&since=2026-03-03",
        "=",
        "=1",
        "%00=1",
        "%ff=1",
        "%F0%9F%A6%8A=1",
        "x" * 5000,
        "&".join(f"p{number}=1" for number in range(1000)),
        "since=",
        "since=yesterday",
        "since=1767225600",
        "since=-1",
        "since=2026-02-30",
        "since=2026-13-01",
        "since=2026-03-02T25:00:00Z",
        "since=10000-01-01",
        "since=0000-01-01",
        "since=2026-03-02T00:00:00%2B25:00",
        "since=0001-01-01T00:00:00%2B14:00",
        "since=9999-12-31T23:59:59-14:00",
        "since=2026-03-02%00",
        "since=2026-03-02%0d%0aX",
        "since=" + "9" * 10_000,
        "after=",
        "after=x",
        "after=1",
        "after=1.1",
        "after=1.1.1.1",
        "after=-1.-1.-1",
        "after=1.1.1%0a",
        "after=1.1.%D9%A3",
        "after=" + ".".join(["9" * 5000] * 3),
        "after=999999999.1.1",
    ],
    ids=lambda query: query[:40],
)
def test_wrong_parameters_are_refused(open_mailbox: OpenMailbox, token: str, query: str) -> None:
    mailbox = open_mailbox(mails(1))
    for rest in ("", ":await"):
        assert status_of(mailbox.api, f"{mailbox.path(rest)}?{query}", token) == 422
    assert mailbox.server.connections_total == 0


@pytest.mark.parametrize(
    "value",
    [
        *["", "-1", "-0.001", "abc", "nan", "NaN", "inf", "-inf", "Infinity", "0x10", "5s", "1,5"],
        *["1&timeout=1", "9" * 5000 + "x", "true", "null", "[]", "%F0%9F%A6%8A", "%00"],
    ],
    ids=lambda value: value[:20],
)
def test_wrong_timeouts_are_refused(open_mailbox: OpenMailbox, token: str, value: str) -> None:
    mailbox = open_mailbox(mails(1))
    target = f"{mailbox.path(':await')}?timeout={value}"
    assert status_of(mailbox.api, target, token) == 422
    assert mailbox.server.connections_total == 0


@pytest.mark.parametrize("value", ["1e9", "1e308", "121", "9" * 300, "%205%20", "%2B5", "0", "-0"])
def test_any_number_of_seconds_will_do(open_mailbox: OpenMailbox, token: str, value: str) -> None:
    mailbox = open_mailbox(mails(1))
    target = f"{mailbox.path(':await')}?timeout={value}"
    assert status_of(mailbox.api, target, token) == 200


@pytest.mark.parametrize("value", ["%D9%A3", "5_0", "1e400"])
def test_a_timeout_that_may_be_taken_for_a_number(
    open_mailbox: OpenMailbox, token: str, value: str
) -> None:
    mailbox = open_mailbox(mails(1))
    target = f"{mailbox.path(':await')}?timeout={value}"
    assert status_of(mailbox.api, target, token) in (200, 422)


@pytest.mark.parametrize(
    "value", ["0", "-1", "201", "abc", "", "1.5", "1e2", "9" * 5000, "1&limit=1"]
)
def test_wrong_limits_are_refused(open_mailbox: OpenMailbox, token: str, value: str) -> None:
    mailbox = open_mailbox(mails(1))
    assert status_of(mailbox.api, f"{mailbox.path()}?limit={value}", token) == 422
    assert mailbox.server.connections_total == 0


@pytest.mark.parametrize(
    ("since", "found"),
    [
        ("2099-01-01T00:00:00Z", []),
        ("9999-12-31T23:59:59Z", []),
        ("9999-12-31T23:59:59.999999+14:00", []),
        ("2026-03-03", []),
        ("2026-03-02", ["1"]),
        ("2026-03-02T09:30:00", ["1"]),
        ("2026-03-02T09:30:00.999999", ["1"]),  # INTERNALDATE knows whole seconds
        ("20260302T093000Z", ["1"]),
        ("2026-W10-1", ["1"]),
        ("2026-03-02T21:30:00+12:00", ["1"]),
        ("2026-03-02T21:30:01 12:00", []),  # a plus sign that nobody encoded
        ("1970-01-01T00:00:00Z", ["1"]),
        ("1969-12-31", ["1"]),
        ("0001-01-01T00:00:00Z", ["1"]),
        ("0001-01-01T00:00:00-14:00", ["1"]),
    ],
)
def test_any_instant_can_be_asked_for(
    open_mailbox: OpenMailbox, since: str, found: list[str]
) -> None:
    mailbox = open_mailbox(mails(1))
    assert mailbox.subjects(since=since) == found
    response = check_response(mailbox.get(":await", since=since, timeout=0))
    assert response.status_code == (200 if found else 408)
    check_wire(mailbox.server)


@pytest.mark.parametrize("uid", [0, 1, 2**32 - 2, 2**32 - 1, 2**32, 9_999_999_999])
def test_a_made_up_cursor_asks_for_nothing_impossible(open_mailbox: OpenMailbox, uid: int) -> None:
    mailbox = open_mailbox(mails(1))
    mailbox_id = mailbox.get().json()["meta"]["cursor"].split(".")[0]
    for uidvalidity in (0, 1, 999_999_999_999_999_999):
        after = f"{mailbox_id}.{uidvalidity}.{uid}"
        assert check_response(mailbox.get(after=after)).status_code in (200, 422)
        response = check_response(mailbox.get(":await", after=after, timeout=0))
        assert response.status_code in (200, 408, 422)
    check_wire(mailbox.server)


def test_a_cursor_of_another_mailbox_is_refused(open_mailbox: OpenMailbox) -> None:
    mailbox, other = open_mailbox(mails(1)), open_mailbox(mails(1))
    cursor = other.get().json()["meta"]["cursor"]
    assert mailbox.get(after=cursor).status_code == 422
    assert mailbox.get(":await", after=cursor).status_code == 422
    assert mailbox.server.connections_total == 0


@pytest.mark.parametrize(
    "email_id",
    [
        *["abc", "0", "-1", "+1", "1.0", "1e0", "01" * 6, "4294967296", str(2**64), "9" * 5000],
        *["%D9%A1", "%C2%B9", "1%00", "1%0a", "%201", "1:*", "*", "1,2", "1%20BODY[]", "%ff", "🦊"],
        *["..", "%2e%2e", "..%2f..", "../..", "1/2", "%00", "1%22", "x" * 10_000],
    ],
    ids=lambda text: ascii(text[:20]),
)
def test_a_made_up_email_id_is_not_found(
    open_mailbox: OpenMailbox, token: str, email_id: str
) -> None:
    mailbox = open_mailbox(mails(1))
    target = mailbox.path("/") + quote(email_id, safe="%/:*,[]+")
    assert status_of(mailbox.api, target, token) == 404
    assert mailbox.server.connections_total == 0


# Bytes that are hardly HTTP


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


# Hostile mail


def naming_all(server: ScriptedImap) -> Reply:
    """SEARCH names all messages, whatever it is asked: what a server may make of any criteria."""
    return lambda _args: server.default_reply("UID SEARCH", "ALL")


def refusing(server: ScriptedImap, uid: int) -> Callable[[str], bytes | None]:
    """FETCH answers NO whenever this message is among those asked for."""

    def reply(args: str) -> bytes | None:
        answer = server.default_reply("UID FETCH", args)
        return b"{tag} NO [SERVERBUG] no\r\n" if b"(UID %d " % uid in answer else None

    return reply


def test_what_no_json_can_hold_is_left_out(open_mailbox: OpenMailbox) -> None:
    lone = encoded_word("A").replace("QQ==", base64.b64encode(b"\xed\xa0\x80\0").decode())
    raw = (
        b"Subject: a\0b \xed\xa0\x80 \xff " + lone.encode() + b" end\r\n"
        b"From: \0\xed\xa0\x80 <x\0y\xff@example.com>\r\n"
        b"Message-ID: <\xed\xa0\x80\0@example.com>\r\n"
        b'Content-Type: text/html; charset="utf-7\xff"\r\n\r\n'
        b"<a href='http://example.com/\0\xed\xa0\x80'>\0\xed\xa0\x80\xff&#xD800;&#0;</a>"
    )
    structure = '("text" "html" ("charset" "utf-7") NIL NIL "8bit" 60 1)'
    mailbox = open_mailbox([Message(1, raw, structure=structure)])
    for response in (mailbox.get(), mailbox.get("/1"), mailbox.get(":await", timeout=0)):
        (message,) = check_response(response).json()["data"]["collection"]
        text = json.dumps(message, ensure_ascii=False)
        assert "\\u0000" not in text
        text.encode()  # UnicodeEncodeError for a lone surrogate
        assert message["subject"].startswith("ab")
        assert message["subject"].endswith("end")


def test_a_header_of_a_megabyte_is_searched_as_far_as_it_is_read(
    open_mailbox: OpenMailbox,
) -> None:
    header = "Subject: first\r\n" + "".join(
        f"X-{number}: {'x' * 900}\r\n" for number in range(1100)
    )
    long_subject = "Subject: begin " + "x" * MEGABYTE + "\r\n"
    mailbox = open_mailbox(
        [
            Message(1, f"{header}\r\ntext".encode()),
            Message(2, f"{long_subject}\r\ntext".encode()),
            mail(3, "first"),
        ]
    )
    found = check_response(mailbox.get(**{"filter[subject]": "first"})).json()
    assert [one["email_id"] for one in found["data"]["collection"]] == ["3", "1"]
    found = check_response(mailbox.get(":await", **{"filter[subject]": "begin", "timeout": 0}))
    assert found.status_code == 200
    assert len(found.content) < MEGABYTE


@pytest.mark.parametrize(
    "structure",
    [
        "NIL",
        "()",
        "((((",
        "))))",
        "(" * 5000 + ")" * 5000,
        '("text" "plain")',
        '("text" "plain" NIL NIL NIL "7bit" -1 -1)',
        '("text" "plain" NIL NIL NIL "7bit" 99999999999999999999999 1)',
        "(1 2 3 4 5 6 7)",
        '"text"',
        "{5}\r\nhello",
    ],
    ids=lambda text: ascii(text[:30]),
)
def test_a_structure_that_makes_no_sense_costs_its_mail_only(
    open_mailbox: OpenMailbox, structure: str
) -> None:
    mailbox = open_mailbox([mail(1), mail(2, structure=structure), mail(3)])
    assert [one for one in mailbox.subjects() if one != "2"] == ["3", "1"]
    assert subjects_of(mailbox.get(":await", **{"filter[subject]": "1", "timeout": 0})) == ["1"]
    assert check_response(mailbox.get("/2")).status_code in (200, 404)


def test_a_message_that_cannot_be_read_is_named(open_mailbox: OpenMailbox) -> None:
    mailbox = open_mailbox([mail(1), mail(2, structure="NIL"), mail(3)])
    response = mailbox.get(":await", **{"filter[subject]": "nothing", "timeout": 0.5})
    assert response.status_code == 408
    assert "message 2 cannot be read" in response.json()["last_error"]
    assert response.json()["messages_seen"] == 2
    assert mailbox.get("/2").status_code == 404


def test_a_fetch_that_is_refused_for_one_mail_costs_that_mail_only(
    open_mailbox: OpenMailbox,
) -> None:
    mailbox = open_mailbox(mails(1, 2, 3))
    mailbox.server.script["UID FETCH"] = refusing(mailbox.server, 2)
    assert mailbox.subjects() == ["3", "1"]
    assert subjects_of(mailbox.get(":await", timeout=0)) == ["3"]
    response = mailbox.get(":await", **{"filter[subject]": "2", "timeout": 0.5})
    assert response.status_code == 408
    assert response.json()["last_error"].startswith("message 2 cannot be read: ")
    assert response.json()["last_error"].endswith("[SERVERBUG] no")
    assert response.json()["rejected_by"] == {"subject": 2}


def test_texts_that_are_refused_cost_their_mail_only(open_mailbox: OpenMailbox) -> None:
    mailbox = open_mailbox(mails(1, 2, 3))
    refuse = refusing(mailbox.server, 2)
    mailbox.server.script["UID FETCH"] = lambda args: (
        None if "BODYSTRUCTURE" in args else refuse(args)
    )
    assert mailbox.subjects() == ["3", "1"]
    response = mailbox.get(":await", **{"filter[subject]": "2", "timeout": 0.5})
    assert response.status_code == 408
    assert "message 2 cannot be read" in response.json()["last_error"]
    mailbox.server.messages.append(mail(4, "2 again"))
    assert mailbox.get(":await", **{"filter[subject]": "2", "timeout": 5}).status_code == 200


@pytest.mark.parametrize(
    "answer",
    [
        b"* SEARCH 1 2 3 4\r\n{tag} OK done\r\n",  # 2 and 4 are deleted meanwhile
        b"* SEARCH 3 1\r\n* SEARCH 1 99\r\n{tag} OK done\r\n",
        b"* SEARCH 0 -5 1 3 4294967296 99999999999999999999 18446744073709551617\r\n{tag} OK\r\n",
    ],
    ids=["deleted", "twice", "impossible"],
)
def test_what_search_names_wrongly_is_passed_over(open_mailbox: OpenMailbox, answer: bytes) -> None:
    mailbox = open_mailbox(mails(1, 3), {"UID SEARCH": answer})
    assert mailbox.subjects() == ["3", "1"]
    assert subjects_of(mailbox.get(":await", timeout=0)) == ["3"]
    assert mailbox.get("/2").status_code == 404
    response = mailbox.get(":await", **{"filter[subject]": "2", "timeout": 0.5})
    assert (response.status_code, response.json()["messages_seen"]) == (408, 2)


@pytest.mark.parametrize(
    ("answer", "index_status"),
    [
        (b"{tag} OK done\r\n", 200),
        (b"* SEARCH\r\n{tag} OK done\r\n", 200),
        (b"* SEARCH one two\r\n{tag} OK done\r\n", 502),
        (b"* SEARCH (1)\r\n{tag} OK done\r\n", 502),
        (b"{tag} BAD what\r\n", 502),
        (b"{tag} NO [UNAVAILABLE] later\r\n", 502),
        (b"garbage\r\n{tag} OK done\r\n", 502),
        (Close(b"* BYE \xff\0<script>\r\n"), 502),
        (Close(b"* SEARCH 1"), 502),
    ],
    ids=["missing", "empty", "words", "list", "bad", "later", "garbage", "bye", "half"],
)
def test_a_search_without_a_usable_answer_finds_nothing(
    open_mailbox: OpenMailbox, answer: Reply, index_status: int
) -> None:
    mailbox = open_mailbox(mails(1), {"UID SEARCH": answer})
    assert check_response(mailbox.get()).status_code == index_status
    response = check_response(mailbox.get(":await", timeout=0))
    assert response.status_code == 408
    assert (response.json()["last_error"] is None) == (index_status == 200)


@pytest.mark.parametrize("left_out", ["UIDNEXT", "UIDVALIDITY", "EXISTS", "UID", "*"])
def test_a_folder_opens_also_without_its_numbers(open_mailbox: OpenMailbox, left_out: str) -> None:
    mailbox = open_mailbox(mails(1, 2))
    lines = mailbox.server.default_reply("EXAMINE", "INBOX").splitlines(keepends=True)
    kept = [line for line in lines if left_out.encode() not in line]
    mailbox.server.script["EXAMINE"] = b"".join(kept)
    assert mailbox.subjects() == ["2", "1"]
    response = mailbox.get(":await", **{"filter[subject]": "3", "timeout": 0.5})
    assert response.status_code == 408
    assert response.json()["messages_seen"] == 2
    after = response.json()["cursor"]
    mailbox.server.messages.append(mail(3))
    assert subjects_of(mailbox.get(":await", after=after, timeout=5)) == ["3"]


def test_a_list_of_monstrous_mails_fits_into_memory(open_mailbox: OpenMailbox) -> None:
    body = ("\r\n" + ("x" * 70 + "\r\n") * (MEGABYTE // 72)).encode()
    raw = b"Subject: big\r\nFrom: a@example.com\r\n"
    structure = f'("text" "plain" NIL NIL NIL "7bit" {len(body)} {len(body) // 72})'
    mailbox = open_mailbox([Message(uid, raw + body, structure=structure) for uid in range(1, 301)])
    with growing_at_most(mailbox.api.replica.process.pid, 250):
        found = mailbox.subjects(limit=200)
    assert 1 <= len(found) <= 40
    assert subjects_of(mailbox.get(":await", timeout=5)) == ["big"]


def test_deeply_nested_html_holds_nobody_up(open_mailbox: OpenMailbox) -> None:
    html = "<div><b>" * (2 * MEGABYTE // 8 - 10) + "the end"
    mailbox = open_mailbox([mail(1, content=f"Content-Type: text/html\r\n\r\n{html}")])
    responses: list[httpx.Response] = []
    reader = threading.Thread(target=lambda: responses.append(mailbox.get()))
    with at_most(20):
        reader.start()
        while reader.is_alive():
            with at_most(3), mailbox.api.client("-") as other:
                assert other.get("/healthz").status_code == 200
            reader.join(0.1)
    assert subjects_of(responses[0]) == ["1"]


def test_many_different_waiters_share_one_search_and_get_their_own_mail(
    open_mailbox: OpenMailbox, token: str
) -> None:
    """So many alternatives do not fit into one command, which then asks for more than is wanted."""
    count = 200
    mailbox = open_mailbox(mails(1))
    mailbox.server.script["UID SEARCH"] = naming_all(mailbox.server)
    subjects: dict[int, list[str]] = {}

    async def wait_for(client: httpx.AsyncClient, number: int) -> None:
        query = {"filter[subject]": f"code {number}.", "timeout": "25"}
        subjects[number] = subjects_of(await client.get(mailbox.path(":await"), params=query))

    async def wait_for_all() -> None:
        async with mailbox.api.async_client(token) as client, trio.open_nursery() as nursery:
            for number in range(count):
                nursery.start_soon(wait_for, client, number)
            await trio.to_thread.run_sync(
                lambda: wait_until(lambda: mailbox.api.metric(IN_FLIGHT) == count, seconds=20)
            )
            mailbox.server.messages += [mail(10 + n, f"code {n}.") for n in range(count)]

    trio.run(wait_for_all)
    assert subjects == {number: [f"code {number}."] for number in range(count)}
    check_wire(mailbox.server)


@pytest.mark.parametrize("since", ["0001-01-01", "2026-03-02"])
def test_many_waiters_may_look_back_to_any_time(
    open_mailbox: OpenMailbox, token: str, since: str
) -> None:
    """Held up by the greeting, so that most of them look for the first time in one round."""
    begin = threading.Event()

    def greet(_args: str) -> None:
        begin.wait(20)

    mailbox = open_mailbox(mails(1), {"GREETING": greet})
    mailbox.server.script["UID SEARCH"] = naming_all(mailbox.server)
    statuses = []

    async def wait_for(client: httpx.AsyncClient, number: int) -> None:
        query = {"filter[subject]": f"code {number}", "timeout": "3", "since": since}
        response = await client.get(mailbox.path(":await"), params=query)
        statuses.append(response.status_code)
        assert response.json()["last_error"] is None or "no answer" in response.json()["last_error"]

    async def wait_for_all() -> None:
        async with mailbox.api.async_client(token) as client, trio.open_nursery() as nursery:
            for number in range(30):
                nursery.start_soon(wait_for, client, number)
            await trio.to_thread.run_sync(
                lambda: wait_until(lambda: mailbox.api.metric(IN_FLIGHT) == 30, seconds=3)
            )
            begin.set()

    trio.run(wait_for_all)
    assert statuses == [408] * 30
    check_wire(mailbox.server)


def test_a_server_that_drips_does_not_outlast_the_time_given(open_mailbox: OpenMailbox) -> None:
    dripped = Drip(b"* 1 FETCH (UID 1 RFC822.SIZE 10 BODY[HEADER] {900}\r\n" + b"x" * 900, 0.05)
    mailbox = open_mailbox(mails(1), {"UID FETCH": dripped})
    with at_most(2.5):
        response = mailbox.get(":await", timeout=1)
    assert (response.status_code, response.json()["messages_seen"]) == (408, 0)
    with at_most(2 * IMAP_TIMEOUT_SECONDS + 4):
        response = check_response(mailbox.get())
    assert response.status_code == 502


def dying_at_fetch(server: ScriptedImap, dies: Callable[[int, str], bool]) -> Reply:
    """The connection ends within the answer to each FETCH of which `dies(number, args)` is true."""
    fetches = 0

    def reply(args: str) -> Close | None:
        nonlocal fetches
        fetches += 1
        usual = server.default_reply("UID FETCH", args)
        return Close(usual[: len(usual) // 2]) if dies(fetches, args) else None

    return reply


def test_a_server_that_always_dies_is_tried_again_until_the_end(
    open_mailbox: OpenMailbox,
) -> None:
    mailbox = open_mailbox(mails(1, 2))
    mailbox.server.script["UID FETCH"] = dying_at_fetch(mailbox.server, lambda *_: True)
    response = check_response(mailbox.get(":await", timeout=1.5))
    document = response.json()
    assert (response.status_code, document["rounds"], document["messages_seen"]) == (408, 0, 0)
    assert document["last_error"]
    assert mailbox.server.connections_total > 2
    assert check_response(mailbox.get()).status_code == 502
    check_wire(mailbox.server)


def test_messages_are_counted_once_however_often_a_look_breaks_off(
    open_mailbox: OpenMailbox,
) -> None:
    """The second batch of messages is never had in the first four rounds."""
    mailbox = open_mailbox(mails(*range(1, 16)))
    dies = dying_at_fetch(mailbox.server, lambda number, _args: number <= 8 and number % 2 == 0)
    mailbox.server.script["UID FETCH"] = dies
    wanted = {"filter[subject]": "nothing", "timeout": 3}
    document = mailbox.get(":await", **wanted).json()
    assert document["status"] == 408
    assert document["messages_seen"] == 15
    assert document["rejected_by"] == {"subject": 15}


def test_a_match_whose_text_cannot_be_had_is_counted_at_most_once(
    open_mailbox: OpenMailbox,
) -> None:
    mailbox = open_mailbox(mails(1, 2))
    dies = dying_at_fetch(mailbox.server, lambda _number, args: "BODYSTRUCTURE" not in args)
    mailbox.server.script["UID FETCH"] = dies
    document = mailbox.get(":await", **{"filter[subject]": "2", "timeout": 1.5}).json()
    assert document["status"] == 408
    assert document["messages_seen"] <= 2
    assert document["rejected_by"]["subject"] <= 1
    del mailbox.server.script["UID FETCH"]
    assert subjects_of(mailbox.get(":await", **{"filter[subject]": "2", "timeout": 5})) == ["2"]
