"""Filters and `since`: what they find, and the one SEARCH that they become."""

import unicodedata
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

import httpx
import pytest

from tests.scripted_imap import Message, ScriptedImap
from tests.servers import Dovecot
from tests.system.api import Api
from tests.system.messages.box import NEW_YORK, Box, assert_problem, mail, searches, subjects

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


@pytest.mark.parametrize("rest", ["", ":await"])
def test_a_server_that_finds_whole_words_only_gets_no_text(
    api: Api, client: httpx.Client, rest: str
) -> None:
    address = f"gmail{len(rest)}@example.com"
    with ScriptedImap(
        [Message(1, mail("Your invoices"))], capabilities="IMAP4rev1 X-GM-EXT-1"
    ) as server:
        api.add_mailbox(address, server.port)
        assert Box(client, address).subjects(rest, subject="voice") == ["Your invoices"]
        (sent,) = searches(server)
    assert "voice" not in sent
