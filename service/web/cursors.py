"""The cursors of mailboxes as clients get them: opaque, and checked when they come back.

`<mailbox>.<UIDVALIDITY>.<UID>` of an IMAP mailbox, `<mailbox>.<base64url of JSON>` of the others.
"""

import base64
import re

from pydantic import TypeAdapter

from service.db.mailboxes import Access
from service.model import (
    Connection,
    Cursor,
    GmailConnection,
    GmailCursor,
    GraphCursor,
    ImapConnection,
    ImapCursor,
)
from service.web.problems import invalid_request

CURSOR_PATTERN = r"^[0-9]{1,19}\.[A-Za-z0-9_.-]{1,4000}$"

_IMAP = re.compile(r"([0-9]{1,19})\.([0-9]{1,10})")
_GMAIL = TypeAdapter(GmailCursor)
_GRAPH = TypeAdapter(GraphCursor)


def format_cursor(access: Access, cursor: Cursor) -> str:
    """The cursor as clients get it."""
    if isinstance(cursor, ImapCursor):
        return f"{access.mailbox_id}.{cursor.uidvalidity}.{cursor.uid}"
    if isinstance(cursor, GmailCursor):
        document = _GMAIL.dump_json(cursor, exclude_defaults=True)
    else:
        document = _GRAPH.dump_json(cursor, exclude_defaults=True)
    return f"{access.mailbox_id}.{base64.urlsafe_b64encode(document).decode().rstrip('=')}"


def parse_cursor(text: str, access: Access) -> Cursor:
    """The cursor of a text that matches CURSOR_PATTERN. A 422 problem if it is another's."""
    mailbox_id, _, rest = text.partition(".")
    try:
        if int(mailbox_id) == access.mailbox_id:
            return _parse(rest, access.connection)
    except ValueError:
        pass
    raise invalid_request("after", f"is no cursor of the mailbox {access.address}")


def _parse(text: str, connection: Connection) -> Cursor:
    if isinstance(connection, ImapConnection):
        numbers = _IMAP.fullmatch(text)
        if numbers is None:
            raise ValueError(text)
        return ImapCursor(int(numbers[1]), int(numbers[2]))
    document = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    adapter = _GMAIL if isinstance(connection, GmailConnection) else _GRAPH
    return adapter.validate_json(document)
