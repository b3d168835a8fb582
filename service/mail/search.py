"""IMAP SEARCH criteria as a pre-filter (RFC 3501 section 6.4.4). Pure.

What a server makes of dates and texts differs, so each message that it names is checked again,
and what is put on the wire only has to name no message too few.
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from datetime import date, datetime, timedelta, timezone

from service.model import Query

_LAST_ZONE = timezone(timedelta(hours=-12))
_EARLIEST_YEAR = 1970
_MAX_UID = 2**32 - 1
_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
_PRINTABLE_ASCII = re.compile(r"[ -~]+")
# What stands between a name and its address is written in many ways.
_ADDRESS_ASCII = re.compile(r"[^\x00-\x20\x7f-\U0010ffff\"<>(),;:]+")
# Servers take command lines of 8,000 octets and more (RFC 2683 section 3.2.1.5).
MAX_CRITERIA_CHARS = 4000
MAX_ALTERNATIVES = 20
EVERYTHING = "ALL"
NEWEST = "UID *"


def wire_since(since: datetime) -> date:
    """The date to put on the wire for SINCE: no server's own zone makes it exclude the instant.

    SINCE compares dates in the server's zone and knows no time of day, so the exact instant has
    to be checked again on INTERNALDATE.
    """
    return since.astimezone(_LAST_ZONE).date()


def new_mail_criteria(after_uid: int | None, since: datetime | None) -> str:
    """What is new: beyond the cursor, or without one whatever arrived since a day."""
    if after_uid is not None:
        return _beyond(after_uid)
    return _since(since) or EVERYTHING


def query_criteria(query: Query, after_uid: int | None, *, with_texts: bool) -> str:
    """What may match, `after_uid` being the cursor's UID where it counts in this folder.

    Behind a cursor there are few messages: all of them are taken, so that it can be said which
    filter turned away how many.
    """
    criteria = []
    if with_texts and after_uid is None:
        criteria.append(_text("SUBJECT", query.subject, _PRINTABLE_ASCII))
        criteria.append(_text("FROM", query.sender, _ADDRESS_ASCII))
        criteria.append(_text("TO", query.recipient, _ADDRESS_ASCII))
    criteria.append(_since(query.since))
    if after_uid is not None:
        criteria.append(_beyond(after_uid))
    return " ".join(filter(None, criteria)) or EVERYTHING


def first_criteria(query: Query, after_uid: int | None, *, with_texts: bool) -> str:
    """As `query_criteria`; who asks for nothing in particular gets the newest message."""
    return NEWEST if query == Query() else query_criteria(query, after_uid, with_texts=with_texts)


def look_criteria(
    queries: Sequence[tuple[Query, int | None]], *, with_texts: bool, newest_will_do: bool = False
) -> str:
    """One SEARCH for all queries, each with its cursor's UID: as narrow as one command can be."""
    criteria = first_criteria if newest_will_do else query_criteria
    alternatives = [
        criteria(query, after_uid, with_texts=with_texts) for query, after_uid in queries
    ]
    return any_of(alternatives) or _coarse_criteria(queries)


def _coarse_criteria(queries: Sequence[tuple[Query, int | None]]) -> str:
    floors = [after_uid for _, after_uid in queries if after_uid is not None]
    days = [query.since for query, after_uid in queries if after_uid is None]
    known_days = [day for day in days if day is not None]
    if len(known_days) < len(days):
        return EVERYTHING
    alternatives = [new_mail_criteria(min(floors), None)] if floors else []
    if known_days:
        alternatives.append(new_mail_criteria(None, min(known_days)))
    return any_of(alternatives) or EVERYTHING


def any_of(alternatives: Iterable[str]) -> str | None:
    """Criteria for what matches any of these; None when they are too many for one command."""
    distinct = sorted(set(alternatives))
    if EVERYTHING in distinct:
        return EVERYTHING
    joined = distinct[0]
    for alternative in distinct[1:]:
        joined = f"OR ({alternative}) ({joined})"
    fits = len(distinct) <= MAX_ALTERNATIVES and len(joined) <= MAX_CRITERIA_CHARS
    return joined if fits or len(distinct) == 1 else None


def uid_set(uids: Iterable[int]) -> str:
    """A sequence set (RFC 3501 section 9) that names exactly these UIDs, runs as ranges."""
    runs: list[tuple[int, int]] = []
    for uid in sorted(uids):
        if runs and uid == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], uid)
        else:
            runs.append((uid, uid))
    return ",".join(f"{first}:{last}" if last > first else f"{first}" for first, last in runs)


def _beyond(uid: int) -> str:
    """A client's cursor may be beyond the last UID that there can be (RFC 3501 section 9)."""
    return f"UID {min(uid + 1, _MAX_UID)}:*"


def _since(since: datetime | None) -> str:
    """Nothing for times before all mail: not every server takes such dates."""
    if since is None or since.year <= _EARLIEST_YEAR:
        return ""
    day = wire_since(since)
    return f"SINCE {day.day:02}-{_MONTHS[day.month - 1]}-{day.year:04}"


def _text(key: str, text: str | None, run: re.Pattern[str]) -> str:
    """The longest run of ASCII in the text, quoted: other characters need a CHARSET, which many
    servers refuse (BADCHARSET)."""
    composed = unicodedata.normalize("NFC", text or "")
    longest = max(run.findall(composed), key=len, default="").strip()
    quoted = longest.replace("\\", "\\\\").replace('"', '\\"')
    return f'{key} "{quoted}"' if longest else ""
