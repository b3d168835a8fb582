"""When a server says to come back: `Retry-After` (RFC 9110 section 10.2.3), and its limit."""

import math
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

MAX_RETRY_AFTER_SECONDS = 86_400.0


def parse_retry_after(value: str | None) -> float | None:
    """Seconds from now, at most a day, of seconds or a date; None when it is of no use."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        seconds = _seconds_until(value)
    return min(seconds, MAX_RETRY_AFTER_SECONDS) if seconds >= 0 else None  # not for NaN either


def _seconds_until(http_date: str) -> float:
    try:
        when = parsedate_to_datetime(http_date)
        return max(0.0, when.timestamp() - datetime.now(UTC).timestamp())
    except (ValueError, OverflowError):
        return math.nan
