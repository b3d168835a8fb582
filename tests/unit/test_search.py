"""SEARCH criteria and sequence sets: never less than what is new, never another UID."""

import re
from datetime import UTC, date, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.mail.search import (
    any_of,
    first_criteria,
    look_criteria,
    new_mail_criteria,
    query_criteria,
    uid_set,
    wire_since,
)
from service.model import ImapCursor, Query

ZONES = [timezone(timedelta(minutes=minutes)) for minutes in range(-12 * 60, 14 * 60 + 1, 15)]


@pytest.mark.parametrize(
    ("since", "on_the_wire"),
    [
        ("2026-03-02T04:48:00+00:00", date(2026, 3, 1)),  # case a18
        ("2026-03-02T11:59:59+00:00", date(2026, 3, 1)),
        ("2026-03-02T12:00:00+00:00", date(2026, 3, 2)),
        ("2026-03-02T00:00:00+14:00", date(2026, 2, 28)),
        ("2026-03-01T23:48:00-12:00", date(2026, 3, 1)),
        ("2026-01-01T00:00:00+00:00", date(2025, 12, 31)),
    ],
)
def test_since_is_the_date_where_the_day_ends_last(since: str, on_the_wire: date) -> None:
    assert wire_since(datetime.fromisoformat(since)) == on_the_wire


@given(
    since=st.datetimes(
        datetime(1990, 1, 1), datetime(2100, 1, 1), timezones=st.sampled_from(ZONES)
    ),
    later=st.timedeltas(timedelta(0), timedelta(days=400)),
    server_zone=st.sampled_from(ZONES),
)
def test_no_zone_of_a_server_excludes_what_arrived_since(
    since: datetime, later: timedelta, server_zone: timezone
) -> None:
    arrived_on = (since + later).astimezone(server_zone).date()
    assert arrived_on >= wire_since(since)


SINCE = datetime(2026, 3, 2, 4, 48, tzinfo=UTC)


@pytest.mark.parametrize(
    ("after_uid", "since", "criteria"),
    [
        (None, None, "ALL"),
        (None, SINCE, "SINCE 01-Mar-2026"),
        (0, SINCE, "UID 1:*"),
        (41, None, "UID 42:*"),
        (41, SINCE, "UID 42:*"),
    ],
)
def test_the_cursor_wins_over_the_day(
    after_uid: int | None, since: datetime | None, criteria: str
) -> None:
    assert new_mail_criteria(after_uid, since) == criteria


@pytest.mark.parametrize(
    ("text", "on_the_wire"),
    [
        ("Invoice", 'SUBJECT "Invoice"'),
        ('say "hi" \\ bye', r'SUBJECT "say \"hi\" \\ bye"'),
        ("Rechnung für März", 'SUBJECT "Rechnung f"'),
        ("für 2026 März", 'SUBJECT "r 2026 M"'),
        ("код 123456", 'SUBJECT "123456"'),
        ("a\tlonger text", 'SUBJECT "longer text"'),
        ("a) LOGOUT\r\nA1 LOGOUT", 'SUBJECT "a) LOGOUT"'),
        ("验证码", "ALL"),
        ("é é", "ALL"),
    ],
)
def test_of_a_text_the_longest_run_of_ascii_is_on_the_wire(text: str, on_the_wire: str) -> None:
    assert query_criteria(Query(subject=text), None, with_texts=True) == on_the_wire


@given(st.text(max_size=30), st.text(max_size=30))
def test_no_text_can_leave_its_quotes(subject: str, sender: str) -> None:
    criteria = query_criteria(Query(subject=subject, sender=sender), None, with_texts=True)
    assert criteria.isascii()
    assert criteria.isprintable()
    outside = re.sub(r'"(?:[^"\\]|\\.)*"', "", criteria)
    assert set(outside.split()) <= {"SUBJECT", "FROM", "ALL"}


def test_a_since_before_the_first_mail_is_not_on_the_wire() -> None:
    for year in (1, 1969, 1970):
        query = Query(since=datetime(year, 1, 1, tzinfo=UTC))
        assert query_criteria(query, None, with_texts=True) == "ALL"


@pytest.mark.parametrize(
    ("alternatives", "criteria"),
    [
        (["UID 5:*", "UID 5:*"], "UID 5:*"),
        (["UID 5:*", "ALL"], "ALL"),
        (["A", "B", "C"], "OR (C) (OR (B) (A))"),
        ([f"UID {n}:*" for n in range(21)], None),
    ],
)
def test_alternatives_are_one_command(alternatives: list[str], criteria: str | None) -> None:
    assert any_of(alternatives) == criteria


@pytest.mark.parametrize(
    ("uids", "text"),
    [
        ([], ""),
        ([7], "7"),
        ([1, 2, 3], "1:3"),
        ([9, 1, 3, 2], "1:3,9"),
        ([1, 3, 5], "1,3,5"),
        ([4_294_967_294, 4_294_967_295], "4294967294:4294967295"),
    ],
)
def test_runs_become_ranges(uids: list[int], text: str) -> None:
    assert uid_set(uids) == text


@given(st.sets(st.integers(1, 4_294_967_295) | st.integers(1, 60), max_size=50))
def test_a_set_names_exactly_these_uids(uids: set[int]) -> None:
    named: list[int] = []
    for entry in filter(None, uid_set(uids).split(",")):
        first, _, last = entry.partition(":")
        named.extend(range(int(first), int(last or first) + 1))
    assert named == sorted(uids)


NOON = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
SUBJECT = 'SUBJECT "code"'


def one(after_uid: int | None = None, **query: object) -> tuple[Query, int | None]:
    """A query, and the UID of its cursor where that counts in the folder."""
    return Query(**query), after_uid  # type: ignore[arg-type]


def criteria(*queries: tuple[Query, int | None], with_texts: bool = True) -> str:
    return look_criteria(queries, with_texts=with_texts, newest_will_do=True)


@pytest.mark.parametrize(
    ("queries", "expected"),
    [
        ([one()], "UID *"),
        ([one(subject="code")], SUBJECT),
        ([one(4, subject="code", after=ImapCursor(7, 4))], "UID 5:*"),
        ([one(subject="code", after=ImapCursor(6, 4))], SUBJECT),
        ([one(subject="code", since=NOON)], f"{SUBJECT} SINCE 02-Mar-2026"),
        ([one(9, after=ImapCursor(7, 9)), one(subject="code")], f"OR (UID 10:*) ({SUBJECT})"),
        ([one(subject="код")], "ALL"),
        ([one(subject="код"), one(9, after=ImapCursor(7, 9))], "ALL"),
    ],
)
def test_one_search_asks_for_all(queries: list[tuple[Query, int | None]], expected: str) -> None:
    assert criteria(*queries) == expected


def test_a_page_of_all_messages_is_not_the_newest_one() -> None:
    assert look_criteria([one()], with_texts=True) == "ALL"
    assert look_criteria([one()], with_texts=True, newest_will_do=True) == "UID *"


def test_a_server_that_finds_words_only_is_not_asked_for_texts() -> None:
    assert criteria(one(subject="code"), with_texts=False) == "ALL"
    assert criteria(one(subject="code", since=NOON), with_texts=False) == "SINCE 02-Mar-2026"


def test_too_many_alternatives_become_the_narrowest_common_ones() -> None:
    dated = [one(subject=f"n{n}", since=NOON + timedelta(days=n)) for n in range(30)]
    following = [one(100, after=ImapCursor(7, 100)), one(50, after=ImapCursor(7, 50))]
    assert criteria(*dated) == "SINCE 02-Mar-2026"
    assert criteria(*dated, *following) == "OR (UID 51:*) (SINCE 02-Mar-2026)"
    assert criteria(*dated, one(subject="b")) == "ALL"


def test_a_command_line_stays_short() -> None:
    long_ones = [one(subject=f"{n}" * 900, since=NOON) for n in range(5)]
    assert criteria(*long_ones) == "SINCE 02-Mar-2026"
    assert criteria(long_ones[0]) == f'SUBJECT "{"0" * 900}" SINCE 02-Mar-2026'


def test_all_filters_are_on_the_wire() -> None:
    query = Query(subject="Invoice", sender="alice@example.com", recipient="b@", since=NOON)
    expected = 'SUBJECT "Invoice" FROM "alice@example.com" TO "b@" SINCE 02-Mar-2026'
    assert first_criteria(query, None, with_texts=True) == expected
