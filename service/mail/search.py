"""IMAP SEARCH criteria as a pre-filter (RFC 3501 section 6.4.4). Pure."""

from collections.abc import Iterable
from datetime import date, datetime, timedelta, timezone

_LAST_ZONE = timezone(timedelta(hours=-12))


def wire_since(since: datetime) -> date:
    """The date to put on the wire for SINCE: no server's own zone makes it exclude the instant.

    SINCE compares dates in the server's zone and knows no time of day, so the exact instant has
    to be checked again on INTERNALDATE.
    """
    return since.astimezone(_LAST_ZONE).date()


def new_mail_criteria(after_uid: int | None, since: datetime | None) -> list[str | date]:
    """What is new: beyond the cursor, or without one whatever arrived since a day."""
    if after_uid is not None:
        return ["UID", f"{after_uid + 1}:*"]
    if since is not None:
        return ["SINCE", wire_since(since)]
    return ["ALL"]


def uid_set(uids: Iterable[int]) -> str:
    """A sequence set (RFC 3501 section 9) that names exactly these UIDs, runs as ranges."""
    runs: list[tuple[int, int]] = []
    for uid in sorted(uids):
        if runs and uid == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], uid)
        else:
            runs.append((uid, uid))
    return ",".join(f"{first}:{last}" if last > first else f"{first}" for first, last in runs)
