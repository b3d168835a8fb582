"""A mailbox of the API on a scripted server: its resources, and what may go to the server."""

import base64
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from tests.scripted_imap import Message, ScriptedImap
from tests.servers import wait_until
from tests.system.api import Api

IMAP_TIMEOUT_SECONDS = 2
IN_FLIGHT = "mailroom_waits_in_flight"

_QUOTED = r'"(?:[ !#-\[\]-~]|\\["\\])*"'
_UIDS = r"UID (?P<uid>[1-9]\d*):\*"
_CRITERION = (
    rf"(?:(?:SUBJECT|FROM|TO) {_QUOTED}|SINCE \d\d-[A-Z][a-z]{{2}}-\d{{4}}|UID [1-9]\d*:\*)"
)
CRITERIA = re.compile(rf"ALL|UID \*|{_CRITERION}(?: {_CRITERION})*")
EITHER = re.compile(rf"OR \(((?:{CRITERIA.pattern}))\) \((.*)\)")
ONE_TEXT = re.compile(rf"ALL|(?:SUBJECT|FROM|TO) {_QUOTED}")
# The last one breaks off wherever it is when nobody waits any more.
ROUND = re.compile(
    r"(?:(?:CAPABILITY )?LOGIN EXAMINE UID_SEARCH (?:UID_FETCH )*(?:LOGOUT )?)*"
    r"(?:CAPABILITY )?(?:LOGIN )?(?:EXAMINE )?"
)


@dataclass(frozen=True)
class Mailbox:
    """A mailbox of the API on a scripted server."""

    address: str
    server: ScriptedImap
    api: Api
    client: httpx.Client

    def path(self, rest: str = "") -> str:
        return self.api.messages(self.address, rest)

    def get(self, rest: str = "", **parameters: Any) -> httpx.Response:
        return self.client.get(self.path(rest), params=parameters)

    def subjects(self, **parameters: Any) -> list[str]:
        return subjects_of(self.get(**parameters))


OpenMailbox = Callable[..., Mailbox]


def mail(
    uid: int, subject: str = "", *, content: str = "", structure: str | None = None
) -> Message:
    """A mail; `content` is its type, an empty line and its body."""
    header = (
        f"From: a@example.com\r\nTo: b@example.com\r\nSubject: {subject or uid}\r\n"
        f"Message-ID: <{uid}@example.com>\r\n"
    )
    raw = header + (content or f"\r\ntext {uid}\r\n")
    return Message(uid, raw.encode(), structure=structure)


def mails(*uids: int) -> list[Message]:
    return [mail(uid) for uid in uids]


def encoded_word(text: str) -> str:
    return f"=?utf-8?b?{base64.b64encode(text.encode()).decode()}?="


def subjects_of(response: httpx.Response) -> list[str]:
    assert response.status_code == 200, response.text
    return [message["subject"] for message in response.json()["data"]["collection"]]


def in_turn(lines: Sequence[str]) -> list[str]:
    """What was received, one connection after the other: imaplib begins its tags alike.

    A waiter has its answer before its round says LOGOUT, and its client may be back before that.
    """
    connections = list(dict.fromkeys(line[:4] for line in lines))
    return sorted(lines, key=lambda line: connections.index(line[:4]))


def check_wire(server: ScriptedImap, criteria: re.Pattern[str] = CRITERIA) -> None:
    """Whole rounds with one well-formed SEARCH each, and nothing else, went to the server."""
    wait_until(lambda: server.connections_open == 0)
    words = [line.split(" ") for line in in_turn(server.received)]
    names = ["_".join(line[1:3]) if line[1] == "UID" else line[1] for line in words]
    assert ROUND.fullmatch("".join(f"{name} " for name in names)), names
    searches = [line.partition(" UID SEARCH ") for line in server.received]
    for _, _, asked in (search for search in searches if search[1]):
        alternatives = [asked]
        while either := EITHER.fullmatch(alternatives[-1]):
            alternatives[-1:] = either.groups()
        assert all(criteria.fullmatch(one) for one in alternatives), asked
        assert all(int(uid) < 2**32 for uid in re.findall(r"UID (\d+)", asked)), asked
