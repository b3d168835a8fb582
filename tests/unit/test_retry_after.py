"""`Retry-After`: seconds or a date, bounded, and never an error."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from service.retry_after import MAX_RETRY_AFTER_SECONDS, parse_retry_after


def test_it_is_seconds_or_a_date() -> None:
    assert parse_retry_after("120") == 120
    assert parse_retry_after(" 0 ") == 0
    in_a_minute = format_datetime(datetime.now(UTC) + timedelta(minutes=1), usegmt=True)
    assert parse_retry_after(in_a_minute) == pytest.approx(60, abs=5)
    assert parse_retry_after("Sun, 06 Nov 1994 08:49:37 GMT") == 0


@pytest.mark.parametrize("value", ["1e9", "inf", "99999999"])
def test_it_is_at_most_a_day(value: str) -> None:
    assert parse_retry_after(value) == MAX_RETRY_AFTER_SECONDS


@pytest.mark.parametrize(
    "value", [None, "", "soon", "-5", "nan", "Mon, 99 Foo 2026", "Sun, 99 Nov 1994 08:49:37", "\0"]
)
def test_what_says_nothing_usable_is_none(value: str | None) -> None:
    assert parse_retry_after(value) is None
