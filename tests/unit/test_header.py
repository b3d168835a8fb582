"""Headers as they are sent: ids untouched, everything else decoded as far as it can be."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.mail.header import HEADER_MAX_BYTES, Header, clean, parse_header


def header(*lines: str | bytes) -> Header:
    raw = b"\r\n".join(line if isinstance(line, bytes) else line.encode() for line in lines)
    return parse_header(raw + b"\r\n\r\n")


def test_all_fields_of_an_ordinary_header() -> None:
    assert header(
        "Received: from mx.example.com\r\n\tby mx.example.org",
        "From: Jane Doe <jane@example.com>",
        "To: intake@example.org, Bob <bob@example.net>",
        "CC: =?utf-8?q?J=C3=B6rg?= <joerg@example.net>",
        "Bcc: hidden@example.org",
        "Subject: Order 1",
        "Date: Mon, 02 Mar 2026 10:00:00 +0100",
        "Message-ID: <1@example.com>",
    ) == Header(
        message_id="<1@example.com>",
        subject="Order 1",
        sender="Jane Doe <jane@example.com>",
        recipients=(
            {"kind": "to", "name": "", "address": "intake@example.org"},
            {"kind": "to", "name": "Bob", "address": "bob@example.net"},
            {"kind": "cc", "name": "Jörg", "address": "joerg@example.net"},
            {"kind": "bcc", "name": "", "address": "hidden@example.org"},
        ),
        sent_at=datetime(2026, 3, 2, 10, tzinfo=timezone(timedelta(hours=1))),
        raw_date="Mon, 02 Mar 2026 10:00:00 +0100",
        raw_from=b"Jane Doe <jane@example.com>",
        raw_date_bytes=b"Mon, 02 Mar 2026 10:00:00 +0100",
        raw_subject=b"Order 1",
    )


@pytest.mark.parametrize(
    "raw", [b"", b"\r\n", b"no colon", b"\r\nSubject: in the body", b":\r\n: x"]
)
def test_an_empty_header_is_a_header(raw: bytes) -> None:
    assert parse_header(raw) == Header(None, None, None, (), None, None, b"", b"", b"")


@pytest.mark.parametrize(
    ("line", "message_id"),
    [
        ("Message-ID: <abc:111@example.com>", "<abc:111@example.com>"),  # case a01
        ("Message-ID: <[83c4@example.com]>", "<[83c4@example.com]>"),  # case a02
        ("Message-ID: \r\n <f04@example.com>", "<f04@example.com>"),  # case a04
        ("Message-ID:\r\n\t<f04@example.com>  ", "<f04@example.com>"),
        ("message-id : <a  b>\r\n <c>", "<a  b> <c>"),
        ("MESSAGE-ID: no brackets", "no brackets"),
        ("Message-ID: =?utf-8?q?a?=", "=?utf-8?q?a?="),
        (b"Message-ID: <\xe4\x85@example.com>", "<ä\x85@example.com>"),
        ("Message-ID: <a\0b@example.com>", "<ab@example.com>"),
        ("Message-ID: <" + "x" * 4000 + ">", "<" + "x" * 4000 + ">"),
        ("Message-ID:   ", None),
        ("Message-ID: \0", None),
        ("X-Message-ID: <x>", None),
        ("Message-ID: \r\nMessage-ID: <second@example.com>", "<second@example.com>"),
        ("Message-ID: <first>\r\nMessage-ID: <second>", "<first>"),
    ],
)
def test_the_message_id_is_kept_as_sent(line: str | bytes, message_id: str | None) -> None:
    assert header(line).message_id == message_id


@pytest.mark.parametrize(
    ("raw", "subject"),
    [
        (b"plain", "plain"),
        (b"folded\r\n line\r\n\tand tab", "folded line and tab"),
        (b"=?utf-8?Q?Gr=C3=BC=C3=9Fe?=", "Grüße"),
        (b"=?UTF-8?b?R3LDvMOfZQ==?=", "Grüße"),
        (b"=?utf-8?q?one?= =?utf-8?q?two?=", "onetwo"),
        (b"=?utf-8?q?one?= and =?utf-8?q?two?=", "one and two"),
        (b"a=?utf-8?q?b?=c", "abc"),
        (b"=?utf-8?q?_?= =?iso-8859-1?q?=E4?=", "ä"),
        (b"=?utf-8?b?w6Q=?= =?utf-8?b?w7Y=?=", "äö"),
        (b"=?utf-8?b?w?= =?utf-8?b?6Q=?=", "é"),  # a word too short, and one that lies
        (b"=?utf-8?q?=C3?= =?utf-8?q?=A4?=", "ä"),  # a character over two words
        (b"=?utf-8*de?q?=C3=A4?=", "ä"),
        (b"=?utf-8?b?????=", None),
        (b"=?utf-8?q?Really??=", "Really?"),
        (b"=?nonsense?q?=E4?=", "ä"),
        (b"=?utf-8?x?abc?=", "=?utf-8?x?abc?="),
        (b"=?utf-8?q?open", "=?utf-8?q?open"),
        (b"=?utf-8?b?R3LDvMOfZQ?=", "Grüße"),  # no padding
        (b"=?utf-8?b?R3L!DvMOf ZQ?=", "Grüße"),  # noise
        (b"=?gb2312?B?xOO6ww==?=", "你好"),
        (b"=?ks_c_5601-1987?B?x9GxuQ==?=", "한국"),
        (b"=?iso-8859-1?Q?Die_Fr\xf6sche?=", "Die Frösche"),  # raw octets in a word
        ("Grüße".encode(), "Grüße"),
        ("Grüße".encode("latin-1"), "Grüße"),
        (b"=?utf-8?q?nul=00here?=", "nulhere"),  # case a13
        (b"=?utf-8?q?a=0D=0Ab?=", "a b"),
        (b"=?utf-7?q?+2AA-?=", "\ufffd"),
        (b"", None),
        (b"=?utf-8?q??=", None),
    ],
)
def test_subjects_are_decoded(raw: bytes, subject: str | None) -> None:
    assert header(b"Subject: " + raw).subject == subject


@pytest.mark.parametrize(
    ("raw", "sender"),
    [
        (b"a@example.com", "a@example.com"),
        (b"<a@example.com>", "a@example.com"),
        (b"Jane Doe <a@example.com>", "Jane Doe <a@example.com>"),
        (b'"Doe, Jane" <a@example.com>', "Doe, Jane <a@example.com>"),
        (b'"a \\"b\\" c" <a@example.com>', 'a "b" c <a@example.com>'),
        (b"a@example.com (Jane Doe)", "Jane Doe <a@example.com>"),
        (b"=?utf-8?q?Doe,_J=C3=B6rg?= <a@example.com>", "Doe, Jörg <a@example.com>"),
        (b'"=?utf-8?q?J=C3=B6rg?=" <a@example.com>', "Jörg <a@example.com>"),
        (b"=?utf-8?q?a=40example.com?=", "a@example.com"),
        ("Jörg <jörg@bücher.example>".encode(), "Jörg <jörg@bücher.example>"),
        (b"First <a@example.com>, Second <b@example.com>", "First <a@example.com>"),
        (b"Team: a@example.com, b@example.com;", "a@example.com"),
        (b"undisclosed-recipients:;", "undisclosed-recipients:;"),
        (b"just a name", "just a name"),
        (b"(" * 5000 + b" a@example.com", "a@example.com"),
        (b"<<a@example.com>>", "a@example.com"),
        (b"", None),
    ],
)
def test_senders_are_read(raw: bytes, sender: str | None) -> None:
    assert header(b"From: " + raw).sender == sender


def test_recipients_of_all_fields_are_listed() -> None:
    recipients = header(
        "To: undisclosed-recipients:;",
        "To: a@example.com,, <b@example.com>",
        "Cc: Team: c@example.com;, d@example.com",
    ).recipients
    assert [(one["kind"], one["address"]) for one in recipients] == [
        ("to", "a@example.com"),
        ("to", "b@example.com"),
        ("cc", "c@example.com"),
        ("cc", "d@example.com"),
    ]


@pytest.mark.parametrize(
    ("raw", "sent_at"),
    [
        ("Mon, 02 Mar 2026 10:00:00 +0100", "2026-03-02T10:00:00+01:00"),
        ("2 Mar 2026 10:00 GMT", "2026-03-02T10:00:00+00:00"),
        ("Mon, 02 Mar 2026 10:00:00 -0000", "2026-03-02T10:00:00+00:00"),
        ("Mon, 02 Mar 2026 10:00:00", "2026-03-02T10:00:00+00:00"),
        ("Mon, 02 Mar 2026 10:00:00 +1400", "2026-03-02T10:00:00+14:00"),
        ("2002/09/14 Sat 13:06:03 GMT", None),  # case a14
        ("Thu, 32 Jan 2026 25:61:00 +9999", None),
        ("Wed, 14 Jun 100 05:41:34 -0700 (PDT)", None),
        ("Mon, 02 Mar 2026 10:00:00 +2300", None),
        ("Mon, 02 Mar 2026 10:00:00 -9959", None),
        ("Thu, 01 Jan 1969 00:00:00 +0000", None),
        ("Fri, 01 Jan 2201 00:00:00 +0000", None),
        ("Mon, 02 Mar 99999999999999999999 10:00:00 +0000", None),
        ("yesterday", None),
        (",", None),
    ],
)
def test_dates_are_aware_or_unusable(raw: str, sent_at: str | None) -> None:
    parsed = header(f"Date: {raw}")
    assert parsed.sent_at == (datetime.fromisoformat(sent_at) if sent_at else None)
    assert parsed.raw_date == raw


def test_a_date_without_zone_is_utc() -> None:
    assert header("Date: Mon, 02 Mar 2026 10:00:00").sent_at == datetime(2026, 3, 2, 10, tzinfo=UTC)


def test_only_the_beginning_of_an_endless_header_is_read() -> None:
    filler = b"X-Filler: x\r\n" * (HEADER_MAX_BYTES // 13)
    parsed = header(b"Subject: first", filler, b"Message-ID: <late@example.com>")
    assert (parsed.subject, parsed.message_id) == ("first", None)


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [("plain", "plain"), ("a\0b", "ab"), ("ä\0\ud800b\udfff", "ä\ufffdb\ufffd"), ("😀", "😀")],
)
def test_clean_text_can_be_stored(text: str, cleaned: str) -> None:
    assert clean(text) == cleaned


NAMES = st.sampled_from([b"From", b"To", b"Subject", b"Date", b"Message-ID", b"Cc"])
PIECES = st.sampled_from([
    b"=?utf-8?q?", b"=?utf-7?b?", b"?=", b"=?", b"<", b">", b"(", b'"', b"\\", b",", b":", b";",
    b"@", b"a@b.c", b"+2AA-", b"=00", b"\0", b"\r", b"\n ", b"\xff", b"Mon, 2 Mar 2026", b"-0700",
])  # fmt: skip


@given(st.lists(st.tuples(NAMES, st.lists(PIECES | st.binary(max_size=4)).map(b"".join))))
def test_any_header_gives_text_that_can_be_stored(fields: list[tuple[bytes, bytes]]) -> None:
    parsed = parse_header(b"".join(b"%b: %b\r\n" % field for field in fields))
    texts = [parsed.message_id, parsed.subject, parsed.sender, parsed.raw_date]
    for text in [*texts, *(value for one in parsed.recipients for value in one.values())]:
        assert text is None or text == clean(text)
