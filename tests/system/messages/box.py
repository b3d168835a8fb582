"""A mailbox as its HTTP resources show it, and what its documents and problems have to say."""

from datetime import timedelta, timezone
from email.message import EmailMessage
from email.policy import SMTP
from typing import Any
from urllib.parse import unquote

import httpx

from tests.scripted_imap import ScriptedImap
from tests.system.api import Api

PAGES = "/docs/errors/email/messages"
ROUTES = ("", "/1", ":await")
NEW_YORK = timezone(timedelta(hours=-5))


class Box:
    """A mailbox's resources, asked for by one client."""

    def __init__(self, client: httpx.Client, address: str) -> None:
        self._client = client
        self._address = address

    def get(self, rest: str = "", **params: object) -> httpx.Response:
        """`subject`, `sender` and `to` are the filters of these names."""
        names = {"subject": "filter[subject]", "sender": "filter[from]", "to": "filter[to]"}
        query = {names.get(name, name): str(value) for name, value in params.items()}
        if rest == ":await":
            query.setdefault("timeout", "0")
        return self._client.get(Api.messages(self._address, rest), params=query)

    def found(self, rest: str = "", **params: object) -> Any:
        """The document of a 200."""
        response = self.get(rest, **params)
        assert response.status_code == 200, response.text
        return response.json()

    def subjects(self, rest: str = "", **params: object) -> list[str]:
        return subjects(self.found(rest, **params))


def subjects(document: Any) -> list[str]:
    return [message["subject"] for message in document["data"]["collection"]]


def mail(subject: str, text: str = "Hello", **fields: str) -> bytes:
    message = EmailMessage(policy=SMTP)
    message["Subject"] = subject
    for name, value in {"From": "sender@example.com", "To": "box@example.com", **fields}.items():
        message[name] = value
    message.set_content(text)
    return message.as_bytes()


def command(line: str) -> str:
    words = line.split(" ")
    return " ".join(words[1:3]) if words[1] == "UID" else words[1]


def searches(server: ScriptedImap) -> list[str]:
    return [line.split(" ", 3)[3] for line in server.received if command(line) == "UID SEARCH"]


def assert_problem(
    response: httpx.Response, status: int, slug: str, base: str | None = None
) -> None:
    """RFC 9457, and the type's page is there."""
    document = response.json()
    base = base or f"http://{response.url.netloc.decode()}"
    assert response.headers["Content-Type"] == "application/problem+json"
    assert (response.status_code, document["status"]) == (status, status)
    assert document["type"] == f"{base}{PAGES}/{slug}"
    assert document["title"] == httpx.codes.get_reason_phrase(status)
    assert unquote(document["instance"]) == base + unquote(response.url.path)
    assert document["detail"]
    page = httpx.get(str(response.url.join(f"{PAGES}/{slug}")), verify=False)
    assert page.status_code == 200
    assert page.headers["Content-Type"].startswith("text/html")
