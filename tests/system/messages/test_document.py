"""One document per mail, the same from index, show and a wait; and nothing but reading for it."""

from datetime import datetime
from email.message import EmailMessage
from email.policy import SMTP

import httpx
import pytest

from tests.scripted_imap import Message, ScriptedImap
from tests.servers import Dovecot
from tests.system.api import Api
from tests.system.messages.box import NEW_YORK, ROUTES, Box, command

READ_COMMANDS = {"CAPABILITY", "LOGIN", "EXAMINE", "UID SEARCH", "UID FETCH", "LOGOUT"}

PDF = b"%PDF-1.7\n" + bytes(range(256)) * 8
LOGO = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 3
URL = "https://example.com/confirm?token=a1&lang=de"
HTML = f'<p>Ihr Code: <b>493817</b></p><p><a href="{URL}">Konto bestätigen</a></p>'
TEXT = f"Ihr Bestätigungscode lautet 493817.\r\n\r\n{URL}\r\n"


def rich_mail() -> bytes:
    """Text and HTML, the HTML with a logo, and a PDF."""
    message = EmailMessage(policy=SMTP)
    message["Subject"] = "Bestätigen Sie Ihr Konto für März"
    message["From"] = "Zoë Müller <zoe@example.org>"
    message["To"] = "Bücher <box@example.com>, plain@example.com"
    message["Cc"] = "Łukasz <lukasz@example.net>"
    message["Reply-To"] = "Kundendienst <hilfe@example.org>"
    message["Message-ID"] = "<rich.1@example.org>"
    message["Date"] = "Sun, 01 Mar 2026 23:47:00 -0500"
    message.set_content(TEXT, cte="quoted-printable")
    message.add_alternative(f'{HTML}<img src="cid:logo@example.org">', subtype="html")
    _, html = message.iter_parts()
    assert isinstance(html, EmailMessage)
    html.add_related(LOGO, "image", "png", cid="<logo@example.org>", filename="logo.png")
    message.add_attachment(PDF, "application", "pdf", filename="Rechnung März.pdf")
    return message.as_bytes()


RICH = rich_mail()
RICH_DOCUMENT = {
    "email_id": "1",
    "message_id": "<rich.1@example.org>",
    "datetime": "2026-03-02T04:48:28+00:00",
    "sent_at": "2026-03-01T23:47:00-05:00",
    "subject": "Bestätigen Sie Ihr Konto für März",
    "addresses": {
        "from": [{"name": "Zoë Müller", "address": "zoe@example.org"}],
        "to": [
            {"name": "Bücher", "address": "box@example.com"},
            {"name": "", "address": "plain@example.com"},
        ],
        "cc": [{"name": "Łukasz", "address": "lukasz@example.net"}],
        "bcc": [],
        "reply_to": [{"name": "Kundendienst", "address": "hilfe@example.org"}],
    },
    "message": TEXT.replace("\r\n", "\n").strip(),
    "html": f'{HTML}<img src="cid:logo@example.org">\n',
    "links": [{"url": URL, "text": "Konto bestätigen"}],
    "codes": ["493817"],
    "attachments": [
        {
            "part_id": "1.2.2",
            "filename": "logo.png",
            "content_type": "image/png",
            "size_bytes": pytest.approx(len(LOGO), abs=4),  # told from the encoded size
            "inline": True,
        },
        {
            "part_id": "2",
            "filename": "Rechnung März.pdf",
            "content_type": "application/pdf",
            "size_bytes": pytest.approx(len(PDF), abs=4),
            "inline": False,
        },
    ],
    "size_bytes": len(RICH),
}


@pytest.mark.parametrize("route", ROUTES)
def test_every_route_gives_the_same_whole_document(
    box: Box, mailbox: str, dovecot: Dovecot, route: str
) -> None:
    arrived_at = datetime(2026, 3, 1, 23, 48, 28, tzinfo=NEW_YORK)
    dovecot.append(mailbox, RICH, internaldate=arrived_at)
    document = box.found(route)
    (message,) = document["data"]["collection"]
    message["html"] = message["html"].replace("\r\n", "\n")
    assert message == RICH_DOCUMENT
    assert document["meta"].keys() == {"emails_count", "imap_search", "cursor"}
    assert document["meta"]["emails_count"] == 1


def test_html_alone_gives_the_text_its_links_and_its_code(
    box: Box, mailbox: str, dovecot: Dovecot
) -> None:
    message = EmailMessage(policy=SMTP)
    message["Subject"] = "Sign in"
    html = '<p>Your code is <b>482 913</b></p><a href="https://example.com/in">Sign in</a>'
    message.set_content(html, subtype="html")
    dovecot.append(mailbox, message.as_bytes())
    (found,) = box.found()["data"]["collection"]
    assert "Your code is 482 913" in found["message"]
    assert "<" not in found["message"]
    assert found["html"].strip() == html
    assert found["links"] == [{"url": "https://example.com/in", "text": "Sign in"}]
    assert found["codes"] == ["482913"]


def test_what_a_mail_does_not_have_is_null_or_empty(
    box: Box, mailbox: str, dovecot: Dovecot
) -> None:
    dovecot.append(mailbox, b"Date: the day before yesterday\r\n\r\nHello\r\n")
    (found,) = box.found()["data"]["collection"]
    nothing = {"message_id": None, "sent_at": None, "subject": None, "html": None}
    assert found.items() >= nothing.items()
    assert [found["links"], found["codes"], found["attachments"]] == [[], [], []]
    assert not any(found["addresses"].values())


@pytest.mark.parametrize("route", ROUTES)
def test_no_file_is_fetched_and_nothing_but_reading_asked_of_the_server(
    api: Api, client: httpx.Client, route: str
) -> None:
    with ScriptedImap([Message(1, RICH)]) as server:
        address = f"files{ROUTES.index(route)}@example.com"
        api.add_mailbox(address, server.port)
        (message,) = Box(client, address).found(route)["data"]["collection"]
    assert [file["part_id"] for file in message["attachments"]] == ["1.2.2", "2"]
    fetches = [line for line in server.received if "UID FETCH" in line]
    assert fetches
    for fetch in fetches:
        assert "BODY[" not in fetch
        for section in ("[]", "[TEXT]", "[1]", "[1.2]", "[1.2.2]", "[2]"):
            assert section not in fetch
    assert {command(line) for line in server.received} <= READ_COMMANDS


def test_no_flag_is_changed(box: Box, mailbox: str, dovecot: Dovecot) -> None:
    dovecot.append(mailbox, RICH)

    def flags() -> object:
        with dovecot.client(mailbox) as imap:
            imap.select_folder("INBOX", readonly=True)
            return imap.get_flags([1])

    before = flags()
    for route in ROUTES:
        box.found(route)
    assert flags() == before
    assert b"\\Seen" not in str(before).encode()
