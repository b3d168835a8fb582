"""Hostile filters, mailboxes and parameters: each is taken for what it is, or refused as a whole.

Nothing but the expected commands goes to the mail server.
"""

from urllib.parse import quote

import httpx
import pytest

from tests.scripted_imap import Message
from tests.system.api import Api
from tests.system.hostile.mailbox import (
    ONE_TEXT,
    OpenMailbox,
    check_wire,
    encoded_word,
    mails,
    subjects_of,
)
from tests.system.hostile.raw_http import check_response, status_of

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
