"""What the measurements of waiting share: mailboxes, the mail that is waited for, a client of the
API, and the rival's round.

Each mailbox gets one mail that its waiters wait for. Any other outcome than that mail raises.
Times are those of the monotonic clock, which all processes of a Linux machine share.
"""

import json
import smtplib
import statistics
import time
from collections.abc import Sequence
from http.client import HTTPConnection
from types import TracebackType
from typing import Self
from urllib.parse import quote, urlencode

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.stage import Stage
from tests.servers import Dovecot
from tests.system.api import Api

HOST = "127.0.0.1"
WAIT_SECONDS = 120  # the longest that the service grants
CLIENT_TIMEOUT_SECONDS = WAIT_SECONDS + 10
# The default of AWAIT_POLL_INTERVAL_SECONDS, under which all is measured.
INTERVAL_SECONDS = 2

_MAIL = """\
From: Jane Sender <sender@example.org>
To: {user}
Subject: Confirm {user}
Date: Mon, 02 Mar 2026 10:00:00 +0100
Message-ID: <confirm.{user}>
MIME-Version: 1.0
Content-Type: text/plain; charset=utf-8

Thank you for signing up. Your code is 482913, or follow this link:
https://example.org/confirm?code=482913&user={user}
"""
_OVERVIEW = ["BODY.PEEK[HEADER]", "BODYSTRUCTURE", "INTERNALDATE", "RFC822.SIZE"]


def add_mailboxes(stage: Stage, api: Api, count: int) -> list[str]:
    """New and empty ones, that nobody polls."""
    users = [stage.dovecot.new_user() for _ in range(count)]
    for user in users:
        api.add_mailbox(user, stage.dovecot.imap_port)
    return users


def await_target(user: str, timeout_seconds: float = WAIT_SECONDS) -> str:
    """The request target of a wait for the mail of `deliver`."""
    query = {"filter[subject]": _subject(user), "timeout": timeout_seconds}
    address = quote(user, safe="")
    return f"/api/v1/email/account/{address}/messages:await?{urlencode(query)}"


def deliver(dovecot: Dovecot, user: str) -> float:
    """Deliver the mail that is waited for through LMTP; returns when it was accepted."""
    with smtplib.LMTP(HOST, dovecot.lmtp_port) as client:
        client.sendmail("sender@example.org", [user], _MAIL.format(user=user))
        return time.monotonic()


def bare_round(dovecot: Dovecot, user: str) -> float:
    """Seconds in which a bare IMAPClient reads the mail: connect, login, EXAMINE, SEARCH, two
    FETCH, logout."""
    began = time.monotonic()
    with dovecot.client(user) as client:
        client.select_folder("INBOX", readonly=True)
        uids = client.search(f'SUBJECT "{_subject(user)}"')
        overviews = client.fetch(uids, _OVERVIEW)
        texts = client.fetch(uids, ["BODY.PEEK[1]"])
    seconds = time.monotonic() - began
    if len(overviews) != 1 or len(texts) != 1:
        raise RuntimeError(f"the bare round found {len(overviews)} mails")
    return seconds


class Client:
    """One keep-alive connection to the API, as a test suite has it."""

    def __init__(self, api: Api, token: str) -> None:
        port = api.replica.http_port
        self._connection = HTTPConnection(HOST, port, timeout=CLIENT_TIMEOUT_SECONDS)
        self._headers = {"Authorization": f"Bearer {token}"}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._connection.close()

    def ask(self, user: str) -> None:
        """Send the request that waits for the user's mail."""
        self._connection.request("GET", await_target(user), headers=self._headers)

    def receive(self, user: str) -> float:
        """Read the answer; returns when it was complete."""
        response = self._connection.getresponse()
        content = response.read()
        received_at = time.monotonic()
        if response.status != 200:
            raise RuntimeError(f"{response.status} instead of the mail: {content.decode()}")
        found = json.loads(content)["data"]["collection"]
        if [message["subject"] for message in found] != [_subject(user)]:
            raise RuntimeError(f"{user} got another mail: {found}")
        return received_at


class Metrics:
    """What the replica counts, over a connection of its own: cheap enough to look often."""

    def __init__(self, api: Api) -> None:
        self._port = api.replica.http_port

    def read(self, *names: str) -> list[float]:
        """The samples of these names at one moment, each summed over its labels."""
        connection = HTTPConnection(HOST, self._port, timeout=CLIENT_TIMEOUT_SECONDS)
        try:
            connection.request("GET", "/metrics")
            text = connection.getresponse().read().decode()
        finally:
            connection.close()
        totals = dict.fromkeys(names, 0.0)
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name in totals:
                    totals[sample.name] += sample.value
        return list(totals.values())


def percentile(values: Sequence[float], percent: int) -> float:
    """Interpolated between the two nearest values."""
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def _subject(user: str) -> str:
    return f"Confirm {user}"
