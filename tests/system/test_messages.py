"""Index, show and the answer of a wait: one document per mail, filters, pages and cursors.

A real replica reads a real Dovecot; a scripted server where the wire itself is the promise.
"""

import itertools
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta, timezone
from email.message import EmailMessage
from email.policy import SMTP
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import httpx
import pytest

from tests.scripted_imap import Hang, Message, ScriptedImap
from tests.servers import Dovecot, PostgresCluster
from tests.servers.process import free_port
from tests.system.api import Api, open_api

SETTINGS = {"AWAIT_POLL_INTERVAL_SECONDS": "0.2", "IMAP_TIMEOUT_SECONDS": "2"}
READ_COMMANDS = {"CAPABILITY", "LOGIN", "EXAMINE", "UID SEARCH", "UID FETCH", "LOGOUT"}
PAGES = "/docs/errors/email/messages"
ROUTES = ("", "/1", ":await")
NEW_YORK = timezone(timedelta(hours=-5))


@pytest.fixture(scope="module")
def api(
    postgres: PostgresCluster, migrated_template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Api]:
    """A replica for all tests of this module; none of them may make it log an error."""
    url = postgres.create_database("messages", template=migrated_template)
    with open_api(tmp_path_factory.mktemp("messages"), url, **SETTINGS) as api:
        yield api
        assert "ERROR" not in api.replica.log.read_text()


@pytest.fixture(scope="module")
def client(api: Api) -> Iterator[httpx.Client]:
    with api.client(api.create_token()) as client:
        yield client


@pytest.fixture
def mailbox(api: Api, dovecot: Dovecot) -> str:
    """An empty one on Dovecot."""
    user = dovecot.new_user()
    api.add_mailbox(user, dovecot.imap_port)
    return user


class Box:
    """A mailbox's resources, asked for by one client."""

    def __init__(self, client: httpx.Client, address: str) -> None:
        self._client = client
        self._address = address

    def get(self, rest: str = "", **params: object) -> httpx.Response:
        """`subject`, `sender` and `to` are the filters of these names."""
        names = {"subject": "filter[subject]", "sender": "filter[from]", "to": "filter[to]"}
        query = {names.get(name, name): str(value) for name, value in params.items()}
        if rest == ":await":
            query.setdefault("timeout", "0")
        return self._client.get(Api.messages(self._address, rest), params=query)

    def found(self, rest: str = "", **params: object) -> Any:
        """The document of a 200."""
        response = self.get(rest, **params)
        assert response.status_code == 200, response.text
        return response.json()

    def subjects(self, rest: str = "", **params: object) -> list[str]:
        return subjects(self.found(rest, **params))


@pytest.fixture
def box(client: httpx.Client, mailbox: str) -> Box:
    return Box(client, mailbox)


def subjects(document: Any) -> list[str]:
    return [message["subject"] for message in document["data"]["collection"]]


def mail(subject: str, text: str = "Hello", **fields: str) -> bytes:
    message = EmailMessage(policy=SMTP)
    message["Subject"] = subject
    for name, value in {"From": "sender@example.com", "To": "box@example.com", **fields}.items():
        message[name] = value
    message.set_content(text)
    return message.as_bytes()


PDF = b"%PDF-1.7\n" + bytes(range(256)) * 8
LOGO = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 3
URL = "https://example.com/confirm?token=a1&lang=de"
HTML = f'<p>Ihr Code: <b>493817</b></p><p><a href="{URL}">Konto bestätigen</a></p>'
TEXT = f"Ihr Bestätigungscode lautet 493817.\r\n\r\n{URL}\r\n"


def rich_mail() -> bytes:
    """Text and HTML, the HTML with a logo, and a PDF."""
    message = EmailMessage(policy=SMTP)
    message["Subject"] = "Bestätigen Sie Ihr Konto für März"
    message["From"] = "Zoë Müller <zoe@example.org>"
    message["To"] = "Bücher <box@example.com>, plain@example.com"
    message["Cc"] = "Łukasz <lukasz@example.net>"
    message["Reply-To"] = "Kundendienst <hilfe@example.org>"
    message["Message-ID"] = "<rich.1@example.org>"
    message["Date"] = "Sun, 01 Mar 2026 23:47:00 -0500"
    message.set_content(TEXT, cte="quoted-printable")
    message.add_alternative(f'{HTML}<img src="cid:logo@example.org">', subtype="html")
    _, html = message.iter_parts()
    assert isinstance(html, EmailMessage)
    html.add_related(LOGO, "image", "png", cid="<logo@example.org>", filename="logo.png")
    message.add_attachment(PDF, "application", "pdf", filename="Rechnung März.pdf")
    return message.as_bytes()


RICH = rich_mail()
RICH_DOCUMENT = {
    "email_id": "1",
    "message_id": "<rich.1@example.org>",
    "datetime": "2026-03-02T04:48:28+00:00",
    "sent_at": "2026-03-01T23:47:00-05:00",
    "subject": "Bestätigen Sie Ihr Konto für März",
    "addresses": {
        "from": [{"name": "Zoë Müller", "address": "zoe@example.org"}],
        "to": [
            {"name": "Bücher", "address": "box@example.com"},
            {"name": "", "address": "plain@example.com"},
        ],
        "cc": [{"name": "Łukasz", "address": "lukasz@example.net"}],
        "bcc": [],
        "reply_to": [{"name": "Kundendienst", "address": "hilfe@example.org"}],
    },
    "message": TEXT.replace("\r\n", "\n").strip(),
    "html": f'{HTML}<img src="cid:logo@example.org">\n',
    "links": [{"url": URL, "text": "Konto bestätigen"}],
    "codes": ["493817"],
    "attachments": [
        {
            "part_id": "1.2.2",
            "filename": "logo.png",
            "content_type": "image/png",
            "size_bytes": pytest.approx(len(LOGO), abs=4),  # told from the encoded size
            "inline": True,
        },
        {
            "part_id": "2",
            "filename": "Rechnung März.pdf",
            "content_type": "application/pdf",
            "size_bytes": pytest.approx(len(PDF), abs=4),
            "inline": False,
        },
    ],
    "size_bytes": len(RICH),
}


@pytest.mark.parametrize("route", ROUTES)
def test_every_route_gives_the_same_whole_document(
    box: Box, mailbox: str, dovecot: Dovecot, route: str
) -> None:
    arrived_at = datetime(2026, 3, 1, 23, 48, 28, tzinfo=NEW_YORK)
    dovecot.append(mailbox, RICH, internaldate=arrived_at)
    document = box.found(route)
    (message,) = document["data"]["collection"]
    message["html"] = message["html"].replace("\r\n", "\n")
    assert message == RICH_DOCUMENT
    assert document["meta"].keys() == {"emails_count", "imap_search", "cursor"}
    assert document["meta"]["emails_count"] == 1


def test_html_alone_gives_the_text_its_links_and_its_code(
    box: Box, mailbox: str, dovecot: Dovecot
) -> None:
    message = EmailMessage(policy=SMTP)
    message["Subject"] = "Sign in"
    html = '<p>Your code is <b>482 913</b></p><a href="https://example.com/in">Sign in</a>'
    message.set_content(html, subtype="html")
    dovecot.append(mailbox, message.as_bytes())
    (found,) = box.found()["data"]["collection"]
    assert "Your code is 482 913" in found["message"]
    assert "<" not in found["message"]
    assert found["html"].strip() == html
    assert found["links"] == [{"url": "https://example.com/in", "text": "Sign in"}]
    assert found["codes"] == ["482913"]


def test_what_a_mail_does_not_have_is_null_or_empty(
    box: Box, mailbox: str, dovecot: Dovecot
) -> None:
    dovecot.append(mailbox, b"Date: the day before yesterday\r\n\r\nHello\r\n")
    (found,) = box.found()["data"]["collection"]
    nothing = {"message_id": None, "sent_at": None, "subject": None, "html": None}
    assert found.items() >= nothing.items()
    assert [found["links"], found["codes"], found["attachments"]] == [[], [], []]
    assert not any(found["addresses"].values())


@pytest.mark.parametrize("route", ROUTES)
def test_no_file_is_fetched_and_nothing_but_reading_asked_of_the_server(
    api: Api, client: httpx.Client, route: str
) -> None:
    with ScriptedImap([Message(1, RICH)]) as server:
        address = f"files{ROUTES.index(route)}@example.com"
        api.add_mailbox(address, server.port)
        (message,) = Box(client, address).found(route)["data"]["collection"]
    assert [file["part_id"] for file in message["attachments"]] == ["1.2.2", "2"]
    fetches = [line for line in server.received if "UID FETCH" in line]
    assert fetches
    for fetch in fetches:
        assert "BODY[" not in fetch
        for section in ("[]", "[TEXT]", "[1]", "[1.2]", "[1.2.2]", "[2]"):
            assert section not in fetch
    assert {command(line) for line in server.received} <= READ_COMMANDS


def command(line: str) -> str:
    words = line.split(" ")
    return " ".join(words[1:3]) if words[1] == "UID" else words[1]


def test_no_flag_is_changed(box: Box, mailbox: str, dovecot: Dovecot) -> None:
    dovecot.append(mailbox, RICH)

    def flags() -> object:
        with dovecot.client(mailbox) as imap:
            imap.select_folder("INBOX", readonly=True)
            return imap.get_flags([1])

    before = flags()
    for route in ROUTES:
        box.found(route)
    assert flags() == before
    assert b"\\Seen" not in str(before).encode()


FILTERED = {
    "März": mail("Rechnung für März", From="Zoë Müller <zoe@example.org>"),
    "words": (
        b"Subject: =?utf-8?Q?Verifi?= =?iso-8859-1?Q?cation_n=E9cessaire?=\r\n"
        b"From: noreply@example.com\r\n\r\nHello\r\n"
    ),
    "invoice": mail("Invoice 7", From="Billing <billing@example.com>", To="Bücher <a@example.com>"),
    "other": mail("Invoice 8", From="alice@example.com", To="b@example.com"),
    "quotes": mail('Say "hi" \\o/ 100 %', From="alice@example.com"),
    "cyrillic": mail("Счёт на оплату", From="alice@example.com"),
}
NAMES = list(FILTERED)


@pytest.fixture(scope="module")
def filtered(api: Api, client: httpx.Client, dovecot: Dovecot) -> Box:
    """A mailbox with the mails above in their order."""
    user = dovecot.new_user()
    api.add_mailbox(user, dovecot.imap_port)
    dovecot.append(user, *FILTERED.values())
    return Box(client, user)


@pytest.mark.parametrize(
    ("filters", "names"),
    [
        ({"subject": "invoice"}, ["invoice", "other"]),
        ({"subject": "INVOICE 7"}, ["invoice"]),
        ({"sender": "ALICE@example"}, ["other", "quotes", "cyrillic"]),
        ({"to": "b@example.com"}, ["other"]),
        ({"subject": "invoice", "sender": "alice"}, ["other"]),
        ({"subject": "invoice", "sender": "alice", "to": "a@example.com"}, []),
        ({"subject": "rechnung FÜR märz"}, ["März"]),
        ({"subject": unicodedata.normalize("NFD", "für März")}, ["März"]),
        ({"sender": "zoë mü"}, ["März"]),
        ({"to": "BÜCHER"}, ["invoice"]),
        ({"subject": "счЁт"}, ["cyrillic"]),
        ({"subject": "verification NÉCESSAIRE"}, ["words"]),
        ({"subject": 'say "HI" \\o'}, ["quotes"]),
        ({"subject": "100 %"}, ["quotes"]),
        ({"subject": "In%e"}, []),
        ({"subject": "Invoice_7"}, []),
    ],
)
def test_filters_are_substrings_whatever_case_and_script(
    filtered: Box, filters: Mapping[str, str], names: Sequence[str]
) -> None:
    uids = [str(NAMES.index(name) + 1) for name in names]
    listed = filtered.found(**filters)["data"]["collection"]
    assert [message["email_id"] for message in listed] == uids[::-1]
    awaited = filtered.get(":await", **filters)
    if uids:
        assert awaited.json()["data"]["collection"] == listed[:1]
    else:
        assert awaited.status_code == 408


@pytest.mark.parametrize("route", ["", ":await"])
def test_filters_compose_into_one_search(api: Api, client: httpx.Client, route: str) -> None:
    with ScriptedImap() as server:
        address = f"search{route[1:]}@example.com"
        api.add_mailbox(address, server.port)
        Box(client, address).get(
            route, subject='In"voi\\ce', sender="alice@example.com", since="2026-05-19T00:00:00Z"
        )
    expected = 'SUBJECT "In\\"voi\\\\ce" FROM "alice@example.com" SINCE 18-May-2026'
    assert searches(server) == [expected]


def searches(server: ScriptedImap) -> list[str]:
    return [line.split(" ", 3)[3] for line in server.received if command(line) == "UID SEARCH"]


def test_the_answer_says_what_was_searched_for(filtered: Box) -> None:
    for route in ("", ":await"):
        meta = filtered.found(route, sender="noreply@example.com")["meta"]
        assert meta["imap_search"] == 'FROM "noreply@example.com"'


def refuse_charsets(args: str) -> bytes | None:
    """Case a17: a server that knows ASCII alone, with numbers in its words."""
    if args.isascii() and "CHARSET" not in args:
        return None
    return b"{tag} NO [BADCHARSET (US-ASCII)] 1 charset, not 2\r\n"


@pytest.mark.parametrize("route", ["", ":await"])
def test_a_server_without_charsets_finds_any_script(
    api: Api, client: httpx.Client, route: str
) -> None:
    mails = [Message(1, mail("Rechnung fur Marz")), Message(2, FILTERED["März"])]
    with ScriptedImap(mails, {"UID SEARCH": refuse_charsets}) as server:
        address = f"a17{route[1:]}@example.com"
        api.add_mailbox(address, server.port)
        found = Box(client, address).subjects(route, subject="Rechnung für März")
    assert found == ["Rechnung für März"]
    assert all(line.isascii() and "CHARSET" not in line for line in server.received)


def test_the_words_of_a_refusal_are_never_read_as_uids(api: Api, client: httpx.Client) -> None:
    refusal = b"{tag} NO [BADCHARSET (US-ASCII)] 1\r\n"
    with ScriptedImap([Message(1, mail("Hello"))], {"UID SEARCH": refusal}) as server:
        api.add_mailbox("refusal@example.com", server.port)
        response = Box(client, "refusal@example.com").get()
    assert_problem(response, 502, "mailbox-unavailable")
    assert not [line for line in server.received if "FETCH" in line]


@pytest.mark.parametrize("route", ["", ":await"])
def test_since_is_exact_across_midnight(
    box: Box, mailbox: str, dovecot: Dovecot, route: str
) -> None:
    """Case a18."""
    for seconds, subject in ((0, "before"), (508, "after")):
        arrived_at = datetime(2026, 3, 1, 23, 40, tzinfo=NEW_YORK) + timedelta(seconds=seconds)
        dovecot.append(mailbox, mail(subject), internaldate=arrived_at)
    document = box.found(route, since="2026-03-02T04:48:00Z")
    assert subjects(document) == ["after"]
    assert document["meta"]["imap_search"] == "SINCE 01-Mar-2026"


@pytest.fixture(scope="module")
def dated(api: Api, client: httpx.Client, dovecot: Dovecot) -> Box:
    """A mailbox with one mail of 2 March 2026, 09:30 UTC."""
    user = dovecot.new_user()
    api.add_mailbox(user, dovecot.imap_port)
    arrived_at = datetime(2026, 3, 2, 9, 30, tzinfo=UTC)
    dovecot.append(user, mail("Dated"), internaldate=arrived_at)
    return Box(client, user)


@pytest.mark.parametrize(
    ("since", "count"),
    [
        ("2026-03-02T09:30:00Z", 1),
        ("2026-03-02T09:30:01Z", 0),
        ("2026-03-02T09:30:00", 1),
        ("2026-03-02T09:30:01", 0),
        ("2026-03-02T11:30:00+02:00", 1),
        ("2026-03-02T11:30:01+02:00", 0),
        ("2026-03-02T11:30:00 02:00", 1),  # a "+" that was not encoded
        ("2026-03-02T11:30:01 02:00", 0),
        ("2026-03-02T04:30:01-05:00", 0),
        ("2026-03-02", 1),
        ("2026-03-03", 0),
        ("1969-12-31T23:59:59Z", 1),
        ("0001-01-01", 1),
        ("2999-01-01T00:00:00Z", 0),
    ],
)
def test_since_in_every_spelling(dated: Box, since: str, count: int) -> None:
    assert dated.found(since=since)["meta"]["emails_count"] == count
    assert dated.get(":await", since=since).status_code == (200 if count else 408)


@pytest.fixture
def start(box: Box) -> str:
    """The cursor of the box while it is empty."""
    return str(box.found()["meta"]["cursor"])


def test_the_index_gives_the_newest_first_and_a_cursor_for_what_comes_next(
    box: Box, mailbox: str, dovecot: Dovecot
) -> None:
    dovecot.append(mailbox, *[mail(f"Mail {number}") for number in range(1, 8)])
    newest = box.found(limit=3)
    assert subjects(newest) == ["Mail 7", "Mail 6", "Mail 5"]
    dovecot.append(mailbox, mail("Mail 8"))
    assert box.subjects(after=newest["meta"]["cursor"]) == ["Mail 8"]


@pytest.mark.parametrize("beginning", ["after", "since"])
def test_pages_from_end_to_end_lose_and_repeat_nothing(
    box: Box, start: str, mailbox: str, dovecot: Dovecot, beginning: str
) -> None:
    dovecot.append(mailbox, *[mail(f"Mail {number}") for number in range(1, 8)])
    pages = [box.found(limit=3, **{beginning: start if beginning == "after" else "2020-01-01"})]
    while pages[-1]["data"]["collection"]:
        pages.append(box.found(limit=3, after=pages[-1]["meta"]["cursor"]))
    assert [page["meta"]["emails_count"] for page in pages] == [3, 3, 1, 0]
    listed = list(itertools.chain.from_iterable(map(subjects, pages)))
    assert listed == [f"Mail {number}" for number in range(1, 8)]


def test_pages_of_a_filter_lose_and_repeat_nothing(
    box: Box, start: str, mailbox: str, dovecot: Dovecot
) -> None:
    dovecot.append(mailbox, *[mail(f"{'even' if n % 2 == 0 else 'odd'} {n}") for n in range(7)])
    first = box.found(limit=3, after=start, subject="even")
    second = box.found(limit=3, after=first["meta"]["cursor"], subject="even")
    assert [subjects(first), subjects(second)] == [["even 0", "even 2", "even 4"], ["even 6"]]


def test_a_page_has_50_messages_unless_asked_otherwise(
    box: Box, mailbox: str, dovecot: Dovecot
) -> None:
    dovecot.write_maildir(mailbox, [mail(f"Mail {number}") for number in range(1, 61)])
    assert box.subjects() == [f"Mail {number}" for number in range(60, 10, -1)]
    assert len(box.subjects(limit=200)) == 60


@pytest.mark.parametrize(
    ("beginning", "subject"), [(None, "third"), ("since", "first"), ("after", "first")]
)
def test_a_wait_takes_the_newest_or_from_a_beginning_the_earliest(
    box: Box, start: str, mailbox: str, dovecot: Dovecot, beginning: str | None, subject: str
) -> None:
    dovecot.append(mailbox, mail("first"), mail("second"), mail("third"))
    beginnings = {None: {}, "since": {"since": "2020-01-01"}, "after": {"after": start}}
    assert box.subjects(":await", **beginnings[beginning]) == [subject]


def test_the_cursor_of_a_wait_that_found_something_goes_on_behind_it(
    box: Box, start: str, mailbox: str, dovecot: Dovecot
) -> None:
    dovecot.append(mailbox, mail("first"), mail("second"), mail("third"))
    cursor, taken = start, []
    for _ in range(3):
        document = box.found(":await", after=cursor)
        cursor = document["meta"]["cursor"]
        taken += subjects(document)
    assert taken == ["first", "second", "third"]
    assert box.get(":await", after=cursor).status_code == 408


def test_the_cursor_of_a_408_goes_on_behind_what_it_saw(
    box: Box, mailbox: str, dovecot: Dovecot
) -> None:
    dovecot.append(mailbox, mail("seen"))
    cursor = box.get(":await", subject="later").json()["cursor"]
    dovecot.append(mailbox, mail("later"))
    assert box.subjects(after=cursor) == ["later"]
    assert box.subjects(":await", after=cursor) == ["later"]


def test_the_cursor_of_an_empty_mailbox_shows_all_that_comes(
    box: Box, mailbox: str, dovecot: Dovecot
) -> None:
    cursor = box.get(":await").json()["cursor"]
    dovecot.append(mailbox, mail("first"))
    assert box.subjects(":await", after=cursor) == ["first"]


@pytest.mark.parametrize("route", ["", ":await"])
def test_a_cursor_of_another_mailbox_is_refused(
    api: Api, client: httpx.Client, box: Box, start: str, dovecot: Dovecot, route: str
) -> None:
    user = dovecot.new_user()
    api.add_mailbox(user, dovecot.imap_port)
    assert_problem(Box(client, user).get(route, after=start), 422, "invalid-request")


def test_a_cursor_from_before_a_new_uidvalidity_loses_nothing(
    box: Box, mailbox: str, dovecot: Dovecot
) -> None:
    dovecot.append(mailbox, mail("first"), mail("second"))
    cursor = box.found()["meta"]["cursor"]
    dovecot.change_uidvalidity(mailbox)
    assert box.subjects(":await", after=cursor) == ["first"]
    assert box.subjects(after=cursor) == ["first", "second"]


def assert_problem(
    response: httpx.Response, status: int, slug: str, base: str | None = None
) -> None:
    """RFC 9457, and the type's page is there."""
    document = response.json()
    base = base or f"http://{response.url.netloc.decode()}"
    assert response.headers["Content-Type"] == "application/problem+json"
    assert (response.status_code, document["status"]) == (status, status)
    assert document["type"] == f"{base}{PAGES}/{slug}"
    assert document["title"] == httpx.codes.get_reason_phrase(status)
    assert unquote(document["instance"]) == base + unquote(response.url.path)
    assert document["detail"]
    page = httpx.get(str(response.url.join(f"{PAGES}/{slug}")), verify=False)
    assert page.status_code == 200
    assert page.headers["Content-Type"].startswith("text/html")


@pytest.mark.parametrize("email_id", ["2", "0", "-1", "4294967296", "99999999999", "abc", "1:*"])
def test_a_message_that_is_not_there_is_a_404(
    box: Box, mailbox: str, dovecot: Dovecot, email_id: str
) -> None:
    dovecot.append(mailbox, mail("first"))
    assert_problem(box.get(f"/{email_id}"), 404, "not-found")


@pytest.mark.parametrize(
    ("route", "query"),
    [
        ("", "filter[cc]=x"),
        ("", "subject=x"),
        ("", "timeout=1"),
        ("", "limit=0"),
        ("", "limit=201"),
        ("", "limit=x"),
        ("", "since=yesterday"),
        ("", "since="),
        ("", "since=0001-01-01T00:00:00%2B14:00"),
        ("", "after=1"),
        ("", "after=1.2.x"),
        ("", "filter[subject]=a&filter[subject]=b"),
        ("", "filter[subject]="),
        ("", "filter[subject]=a%0D%0Ab"),
        ("", "filter[from]=a%0Ab"),
        ("", "filter[to]=a%00b"),
        ("/1", "limit=1"),
        (":await", "limit=1"),
        (":await", "filter[body]=x"),
        (":await", "timeout=-1"),
        (":await", "timeout=abc"),
        (":await", "timeout=nan"),
        (":await", "timeout=inf"),
        (":await", "timeout=1&timeout=2"),
        (":await", "since=32.13.2026"),
    ],
)
def test_a_parameter_that_makes_no_sense_is_a_422_that_names_it(
    client: httpx.Client, dated: Box, route: str, query: str
) -> None:
    url = f"{dated.get().url.path}{route}?{query}"
    response = client.get(url)
    assert_problem(response, 422, "invalid-request")
    assert query.partition("=")[0] in response.json()["detail"]
    assert query.partition("=")[0] in {one["parameter"] for one in response.json()["errors"]}


@pytest.mark.parametrize("mailbox_path", ["a%0D%0Ab@example.com", "a%0Ab", "a%00b"])
def test_a_mailbox_with_line_breaks_or_nul_is_refused(
    client: httpx.Client, mailbox_path: str
) -> None:
    response = client.get(f"/api/v1/email/account/{mailbox_path}/messages:await")
    assert (response.status_code, response.json()["type"][-15:]) == (422, "invalid-request")


def test_a_filter_stays_one_string_of_one_search(api: Api, client: httpx.Client) -> None:
    with ScriptedImap() as server:
        api.add_mailbox("inject@example.com", server.port)
        Box(client, "inject@example.com").get(":await", subject='x" ALL UID 1:* {5}')
    assert searches(server) == ['SUBJECT "x\\" ALL UID 1:* {5}"']


@pytest.mark.parametrize("route", ROUTES)
def test_another_method_is_a_405_that_names_the_right_one(
    client: httpx.Client, box: Box, route: str
) -> None:
    response = client.post(box.get().url.path + route)
    assert_problem(response, 405, "method-not-allowed")
    assert "GET" in response.headers["Allow"]


@pytest.mark.parametrize("route", ["", "/1"])
def test_refused_credentials_are_a_502(api: Api, client: httpx.Client, route: str) -> None:
    with ScriptedImap(script={"LOGIN": b"{tag} NO [AUTHENTICATIONFAILED] no\r\n"}) as server:
        address = f"refused{route[1:]}@example.com"
        api.add_mailbox(address, server.port)
        response = Box(client, address).get(route)
    assert_problem(response, 502, "mailbox-auth-failed")


def test_a_server_that_is_away_is_a_502(api: Api, client: httpx.Client) -> None:
    api.add_mailbox("away@example.com", free_port())
    assert_problem(Box(client, "away@example.com").get(), 502, "mailbox-unavailable")


def test_a_server_that_hangs_is_a_502_in_time(api: Api, client: httpx.Client) -> None:
    with ScriptedImap(script={"UID SEARCH": Hang()}) as server:
        api.add_mailbox("hangs@example.com", server.port)
        response = Box(client, "hangs@example.com").get()
    assert_problem(response, 502, "mailbox-unavailable")
    assert 2 <= response.elapsed.total_seconds() <= 8


def test_a_message_that_cannot_be_read_costs_itself_only(api: Api, client: httpx.Client) -> None:
    def refuse_second(args: str) -> bytes | None:
        uids = args.split(" ")[0]
        return b"{tag} NO [SERVERBUG] no\r\n" if uids in ("2", "1:2", "1:3", "2:3") else None

    mails = [Message(uid, mail(f"Mail {uid}")) for uid in (1, 2, 3)]
    with ScriptedImap(mails, {"UID FETCH": refuse_second}) as server:
        api.add_mailbox("broken@example.com", server.port)
        assert Box(client, "broken@example.com").subjects() == ["Mail 3", "Mail 1"]


def test_problem_types_stand_below_the_public_base_url(database_url: str, tmp_path: Path) -> None:
    base = "https://mail.example.org/mailroom"
    with open_api(tmp_path, database_url, PUBLIC_BASE_URL=f"{base}/") as api:
        with api.client(api.create_token()) as client:
            response = client.get(api.messages("nobody@example.com"))
        assert_problem(response, 404, "not-found", base)
