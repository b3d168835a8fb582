"""SEARCH criteria and sequence sets: never less than what is new, never another UID."""

from datetime import UTC, date, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.mail.search import new_mail_criteria, uid_set, wire_since

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
        (None, None, ["ALL"]),
        (None, SINCE, ["SINCE", date(2026, 3, 1)]),
        (0, SINCE, ["UID", "1:*"]),
        (41, None, ["UID", "42:*"]),
        (41, SINCE, ["UID", "42:*"]),
    ],
)
def test_the_cursor_wins_over_the_day(
    after_uid: int | None, since: datetime | None, criteria: list[str | date]
) -> None:
    assert new_mail_criteria(after_uid, since) == criteria


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
