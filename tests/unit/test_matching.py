"""The check that counts: texts as people read them, times to the second."""

from datetime import UTC, datetime, timedelta

import pytest

from service.mail.matching import Matcher, read_envelope
from service.model import Overview, Part, Query

NOON = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)


def rejections(header: str | bytes, **query: object) -> tuple[str, ...]:
    raw = header if isinstance(header, bytes) else header.encode()
    overview = Overview("1", raw.replace(b"\n", b"\r\n"), Part("1", "text/plain"), NOON, 100)
    return Matcher(Query(**query)).rejections(read_envelope(overview))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("header", "query"),
    [
        ("Subject: Your code\n", {}),
        ("Subject: Your code\n", {"subject": "YOUR"}),
        ("Subject: Your\n code\n", {"subject": "your code"}),
        ("Subject: =?utf-8?q?Rechnung_f=C3=BCr_M=C3=A4rz?=\n", {"subject": "rechnung FÜR märz"}),
        ("Subject: Rechnung fu\u0308r Ma\u0308rz\n", {"subject": "für März"}),
        ("Subject: =?utf-8?b?0JLQsNGIINC60L7QtA==?=\n", {"subject": "ВАШ КОД"}),
        ("Subject: STRASSE\n", {"subject": "straße"}),
        (b"Subject: M\xe4rz\n", {"subject": "märz"}),
        ('From: "Example, Inc." <noreply@example.com>\n', {"sender": "example, inc"}),
        ("From: Anna <anna@example.com>\n", {"sender": "Anna <anna@"}),
        ("From: anna@example.com (Anna)\n", {"sender": "anna <anna@example.com>"}),
        ("From: =?utf-8?q?J=C3=BCrg?= <j@example.com>\n", {"sender": "jürg"}),
        ("To: a@example.com,\n b@example.com\n", {"recipient": "B@EXAMPLE.com"}),
        ("To: a@example.com\nTo: b@example.com\n", {"recipient": "b@example.com"}),
        ("To: undisclosed-recipients:;\n", {"recipient": "undisclosed"}),
        ("Subject: x\n", {"since": NOON}),
        ("Subject: x\n", {"since": NOON - timedelta(seconds=1)}),
    ],
)
def test_what_people_would_call_a_match_is_one(
    header: str | bytes, query: dict[str, object]
) -> None:
    assert rejections(header, **query) == ()


@pytest.mark.parametrize(
    ("header", "query", "names"),
    [
        ("Subject: Your code\n", {"subject": "codes"}, ("subject",)),
        ("Subject: a\n\nSubject: code\n", {"subject": "code"}, ("subject",)),
        ("From: anna@example.com\n", {"subject": "anna", "recipient": "anna"}, ("subject", "to")),
        ("To: a@example.com\nCc: b@example.com\n", {"recipient": "b@"}, ("to",)),
        ("Reply-To: anna@example.com\n", {"sender": "anna"}, ("from",)),
        ("Subject: x\n", {"since": NOON + timedelta(seconds=1)}, ("since",)),
        ("", {"subject": "a", "sender": "b", "recipient": "c"}, ("subject", "from", "to")),
    ],
)
def test_every_filter_that_turns_away_is_named(
    header: str, query: dict[str, object], names: tuple[str, ...]
) -> None:
    assert rejections(header, **query) == names
