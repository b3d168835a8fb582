"""What a server's refusal means: a wrong password, a request to come back later, or a lost line.

Pure. Servers word these freely; response codes (RFC 5530) are trusted first, then known phrases.
"""

import re

from service.errors import (
    ConnectionLost,
    CredentialsRefused,
    FetchRefused,
    MailboxThrottled,
    MailError,
)
from service.retry_after import MAX_RETRY_AFTER_SECONDS

_BACKOFF = re.compile(r"Suggested Backoff Time:\s*(\d+)\s*(milli)?seconds", re.IGNORECASE)
# ALERT is not in any of these: it says that people should read the text, not what is in it.
_REFUSED = re.compile(r"\[(AUTHENTICATIONFAILED|AUTHORIZATIONFAILED|EXPIRED)\b", re.IGNORECASE)
_LOAD = (
    r"\[(UNAVAILABLE|LIMIT|THROTTLED|OVERQUOTA)\b"
    r"|too many (simultaneous |concurrent |open )?(connections|sessions|requests|commands)"
    r"|throttl|rate.?limit|bandwidth|backoff|maximum number of"
)
_THROTTLED = re.compile(_LOAD, re.IGNORECASE)
_LATER = re.compile(
    _LOAD + r"|\[(INUSE|SERVERBUG)\b"
    r"|too many|try again|(try|retry|again|back) later|temporar|exceeded|lockdown|overload|busy"
    r"|unavailable|maintenance|\binternal\b|(system|server) (error|failure)|generic failure"
    r"|timed out",
    re.IGNORECASE,
)
_IMAPLIB = re.compile(r"unexpected (tagged )?response:|socket error:")


def decide_login_error(text: str) -> MailError:
    """What a NO to LOGIN or AUTHENTICATE means."""
    if not _REFUSED.search(text) and _LATER.search(text):
        return decide_throttling(text)
    return CredentialsRefused(
        f"the server refused the user name or password: {text}",
        hint="check both; many providers want an app password instead of the account's own",
    )


def decide_fetch_error(text: str) -> MailError:
    """What a NO to FETCH means: one bad message, unless the server plainly speaks of its load."""
    if _THROTTLED.search(text):
        return decide_throttling(text)
    return FetchRefused(f"FETCH failed: {text}")


def decide_lost(text: str) -> MailError:
    """What the end of a connection means: BYE may carry a request to come back later.

    In imaplib's own words there is none; what it could not make sense of may quote a mail.
    """
    if _IMAPLIB.search(text) or not _LATER.search(text):
        return ConnectionLost(text)
    return decide_throttling(text)


def decide_throttling(text: str) -> MailboxThrottled:
    """Throttling, with the time that the server suggests if it does, at most a day."""
    match = _BACKOFF.search(text)
    seconds = int(match[1][:12]) / (1000 if match[2] else 1) if match else None
    if seconds is not None:
        seconds = min(seconds, MAX_RETRY_AFTER_SECONDS)
    message = f"the server asks to come back later: {text}"
    return MailboxThrottled(message, retry_after_seconds=seconds)
