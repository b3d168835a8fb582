"""What servers say when they refuse, in the words of the real ones."""

import pytest

from service.errors import ConnectionLost, CredentialsRefused, FetchRefused, MailboxThrottled
from service.mail.replies import (
    decide_fetch_error,
    decide_login_error,
    decide_lost,
    decide_throttling,
)

WRONG_PASSWORD = [
    "[AUTHENTICATIONFAILED] Invalid credentials (Failure)",  # Gmail
    "[ALERT] Application-specific password required: https://support.example.com/1 (Failure)",
    "[ALERT] Please log in via your web browser: https://support.example.com/2 (Failure)",
    "[ALERT] IMAP access is disabled for your domain. Please contact your administrator. (Failure)",
    "[WEBALERT https://accounts.example.com/signin] Web login required.",
    "[AUTHENTICATIONFAILED] Authentication failed.",  # Dovecot
    "[AUTHORIZATIONFAILED] Logins are disabled for this user",
    "[EXPIRED] Password expired.",
    "[PRIVACYREQUIRED] Plaintext authentication disallowed on non-secure connections.",
    "LOGIN failed.",  # Exchange
    "AUTHENTICATE failed.",
    "[AUTHENTICATIONFAILED] LOGIN Invalid credentials",  # Yahoo
    "[AUTHENTICATIONFAILED] Incorrect username, password or access token",  # Fastmail
    "[AUTHENTICATIONFAILED] Too many failed logins, try again later",  # the code is trusted first
    "Login failed: authentication failure",  # Cyrus
    "Login failed: can't request info until later in exchange",
    "Invalid user name or password.",  # hMailServer
    "Login failed.",  # Courier
    "[CONTACTADMIN] Account disabled",
    "",
]

COME_BACK_LATER = [
    "[ALERT] Too many simultaneous connections. (Failure)",  # Gmail
    "[ALERT] Account exceeded command or bandwidth limits. (Failure)",
    "[ALERT] Lockdown in sector 4 (Failure)",
    "[UNAVAILABLE] Temporary System Error (Failure)",
    "System Error (Failure)",
    "[UNAVAILABLE] Temporary authentication failure. [mx1.example.com:2026-03-02 04:48:00]",
    "[UNAVAILABLE] Internal error occurred. Refer to server log for more information.",  # Dovecot
    "[LIMIT] Maximum number of connections from user+IP exceeded (mail_max_userip_connections=10)",
    "[ALERT] Maximum number of connections from user+IP exceeded (mail_max_userip_connections=10)",
    "Internal login failure. Refer to server log for more information.",
    "[INUSE] Mailbox in use",
    "[LIMIT] LOGIN Rate limit hit.",  # Yahoo
    "[SERVERBUG] LOGIN Server error - Please try again later.",
    "[UNAVAILABLE] LOGIN Server error",
    "Server Unavailable. 15",  # Exchange
    "Request is throttled. Suggested Backoff Time: 297456 milliseconds",
    "Temporary problem, please try again later",  # Courier
    "Login failed: generic failure",  # Cyrus: its password daemon is away
    "internal server error",  # the proxy of nginx
    "LOGIN failed: account is in maintenance mode",
    "Server is busy",
    "[unavailable] in small letters",
]


@pytest.mark.parametrize("text", WRONG_PASSWORD)
def test_a_wrong_password(text: str) -> None:
    error = decide_login_error(text)
    assert isinstance(error, CredentialsRefused)
    assert text in str(error)
    assert error.hint is not None


@pytest.mark.parametrize("text", COME_BACK_LATER)
def test_a_login_that_is_refused_for_now_is_no_wrong_password(text: str) -> None:
    error = decide_login_error(text)
    assert isinstance(error, MailboxThrottled)
    assert text in str(error)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("Request is throttled. Suggested Backoff Time: 297456 milliseconds", 297.456),
        ("BYE Session invalidated. Suggested Backoff Time: 30 seconds", 30),
        ("suggested backoff time:7 MILLISECONDS", 0.007),
        ("[ALERT] Too many simultaneous connections. (Failure)", None),
        ("Suggested Backoff Time: soon", None),
        ("Suggested Backoff Time: 99999999999 milliseconds", 86_400),
        (f"Suggested Backoff Time: {'9' * 5000} seconds", 86_400),
    ],
)
def test_the_suggested_time_is_taken_over(text: str, seconds: float | None) -> None:
    error = decide_throttling(text)
    assert error.retry_after_seconds == seconds
    assert decide_lost(text).retry_after_seconds == seconds  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "text",
    [
        "System Error (Failure)",  # case a16
        "[SERVERBUG] Internal error occurred. Refer to server log for more information.",
        "[SERVERBUG] UID FETCH Server error - Please try again later",
        "Command Error. 12",
        "The specified message set is invalid.",
        "Some of the requested messages no longer exist",
        "[EXPUNGEISSUED] Some messages were expunged",
        "[CORRUPTION] Message is damaged",
        "Could not parse command",
    ],
)
def test_a_fetch_that_fails_is_about_the_message(text: str) -> None:
    error = decide_fetch_error(text)
    assert isinstance(error, FetchRefused)
    assert text in str(error)


@pytest.mark.parametrize(
    "text",
    [
        "[LIMIT] UID FETCH Rate limit hit",  # Yahoo
        "[UNAVAILABLE] UID FETCH Server error while fetching messages",
        "[OVERQUOTA] Account exceeded command or bandwidth limits. (Failure)",  # Gmail
        "[ALERT] Account exceeded command or bandwidth limits. (Failure)",
        "[THROTTLED] (Failure)",
        "Request is throttled. Suggested Backoff Time: 297456 milliseconds",
        "Too many simultaneous connections. (Failure)",
    ],
)
def test_a_fetch_that_meets_the_servers_load_is_not_about_the_message(text: str) -> None:
    assert isinstance(decide_fetch_error(text), MailboxThrottled)


@pytest.mark.parametrize(
    "text",
    [
        "socket error: EOF",
        "socket error: timed out",
        "command: UID FETCH => socket error: EOF",
        "Autologout; idle for too long",
        "Session expired, please login again.",
        "Disconnected for inactivity.",
        "Logging out",
        "Connection is closed. 13",
        "unexpected answer: b'* 1 FETCH (UID 1 INTERNALDATE'",
        "command: UID => unexpected response: b'we are too busy, please try again later'",
        "unexpected tagged response: b'A7 we are temporarily closed'",
        "the connection ended in the middle of a literal",
        "the server sent a literal of 9999999 bytes, far more than asked for",
        "the server sent more than 134217728 bytes for one command",
    ],
)
def test_the_end_of_a_connection_is_a_lost_line(text: str) -> None:
    error = decide_lost(text)
    assert isinstance(error, ConnectionLost)
    assert text in str(error)


@pytest.mark.parametrize(
    "text",
    [
        "Request is throttled. Suggested Backoff Time: 297456 milliseconds",
        "[UNAVAILABLE] Server is overloaded",
        "Too many connections from your IP",
        "[LIMIT] Maximum number of connections from user+IP exceeded",
        "Server Unavailable. 15",
        "Account is temporarily unavailable.",
    ],
)
def test_a_bye_may_ask_to_come_back_later(text: str) -> None:
    assert isinstance(decide_lost(text), MailboxThrottled)
